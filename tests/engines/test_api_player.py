"""What an API player counts of its requests: tokens, time and money, also of answers that fail."""

from __future__ import annotations

import contextlib

import pytest
from tests.harness.chat_server import ChatHandler, completion, serving

from rlforge.config.pool import ApiConfig
from rlforge.engines.api_player import ApiPlayer
from rlforge.errors import EngineError
from rlforge.types import PolicyRef

USAGE = {"prompt_tokens": 1000, "total_tokens": 1200}


class Handler(ChatHandler):
    """Says what an answer cost as OpenRouter does, or not."""

    def respond(self, asked, tries):
        mood = self.server.mood
        if mood == "broken":
            self.send(400, {"error": {"message": "no"}})
        elif mood == "no text":
            self.send(200, completion("", "length", usage=USAGE | {"cost": 0.5}))
        elif mood == "no counts":
            self.send(200, completion("[4]"))
        else:
            price = {} if mood == "good" else {"cost": mood}
            self.send(200, completion("[4]", usage=USAGE | price))


@pytest.fixture
def server():
    with serving(Handler) as server:
        yield server


async def used(server, *moods, **config):
    """What ``openai:m`` took for a request in each mood."""
    player = ApiPlayer(ApiConfig(openai_base_url=server.url, **config), retries=0)
    for server.mood in moods:
        with contextlib.suppress(EngineError):
            await player.chat(
                [{"role": "user", "content": "?"}], PolicyRef(uid="openai:m", kind="api")
            )
    (usage,) = player.take_usage()
    assert player.take_usage() == ()
    await player.close()
    return usage


async def test_tokens_time_and_what_the_provider_says_an_answer_cost(server):
    usage = await used(server, 0.25, 0.5)
    assert (usage.uid, usage.requests, usage.failed, usage.games) == ("openai:m", 2, 0, 0)
    assert (usage.prompt_tokens, usage.answer_tokens) == (2000, 400)
    assert (usage.cost, usage.unpriced) == (0.75, 0)
    assert 0 < usage.latency_s < 10


@pytest.mark.parametrize("stated", [float("nan"), -1, "0.5", None])
async def test_a_price_that_is_none_is_reckoned_by_the_tokens(server, stated):
    mood = "good" if stated is None else stated
    usage = await used(server, mood, prices=[2.0, 10.0])
    assert usage.cost == pytest.approx(1000 * 2e-6 + 200 * 10e-6)
    assert usage.unpriced == 0


async def test_what_the_provider_says_comes_before_the_prices(server):
    assert (await used(server, 0.25, prices=[2.0, 10.0])).cost == 0.25


async def test_an_answer_of_unknown_price_is_counted_as_such(server):
    usage = await used(server, "good", "no counts")
    assert (usage.requests, usage.cost, usage.unpriced) == (2, 0.0, 2)


async def test_an_answer_without_text_costs_and_a_refusal_does_not(server):
    usage = await used(server, "no text", "broken")
    assert (usage.requests, usage.failed) == (2, 2)
    assert (usage.answer_tokens, usage.cost, usage.unpriced) == (200, 0.5, 0)
