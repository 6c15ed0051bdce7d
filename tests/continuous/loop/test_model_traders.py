"""Language models of other providers trade beside the run's agents, in a market that goes on."""

import asyncio
import json
import re
import time
from functools import partial
from pathlib import Path

import pytest
from tests.factories import causal_folder
from tests.harness.chat_server import ChatHandler, completion, serving

from rlforge.continuous.decisions.store import StoreReader
from rlforge.continuous.loop.trainer import assembled
from rlforge.continuous.report import page
from rlforge.errors import RunError
from rlforge.show.report.data import load_run

TRADES = '{"type": "BUY_SHARES", "marketId": "%s", "outcome": "YES", "amount": 20, "note": "mine"}'
TICKS = 6


class Handler(ChatHandler):
    """Buys in the first market of the prompt; fails in its moods, or after so many."""

    def respond(self, asked, tries):
        if tries == 1:
            # Requests that are not sent at once would wait for this answer.
            deadline = time.monotonic() + 5
            while self.server.most_running < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
        if tries == 5:
            vars(self.server).get("at_fifth", int)()
        if self.server.mood == "small":
            self.send(400, {"error": {"message": "context length exceeded"}})
            return
        ticks = vars(self.server).get("refused_ticks", ())
        if (tries - 1) // 2 in ticks:
            self.send(400, {"error": {"message": "kettle is cold"}})
            return
        if self.server.mood == "broken" or 0 < self.server.good_after < tries:
            self.send(500, {"error": {"message": "boiler burst"}}, retry_after_ms="1")
            return
        market = re.search(r"market-\d+(?=:)", asked["messages"][-1]["content"])[0]
        said = f'Not {{"type": "NO_OP"}}, but {TRADES % market}'
        usage = {"prompt_tokens": 900_000, "total_tokens": 1_000_000}
        self.send(200, completion(said, usage=usage))


@pytest.fixture
def server():
    with serving(Handler) as found:
        yield found


@pytest.fixture
def config(make_config, server):
    def make(*overrides):
        return make_config(
            *("continuous.windows=1", "continuous.compare_episodes=0"),
            *("market.traders.openai:rival-2.5=2", f"traders.api.openai_base_url={server.url}"),
            *overrides,
        )

    return make


def decided(provider):
    found = StoreReader(Path("run/store")).decisions(window_id="2024-11-13-10:00")
    return [one for one in found if one.metadata.provider == provider]


def api():
    return json.loads(Path("run/api.json").read_text())


def test_a_model_behind_an_api_reads_the_market_in_prose_and_trades_by_its_last_action(
    config, execute, server
):
    run_dir = execute(config("traders.api.prices=[1,10]"))
    made = decided("openai:rival-2.5")
    assert {one.agent_id for one in made} == {"openai:rival-2.5-1", "openai:rival-2.5-2"}
    assert len(made) == len(server.requests) == 2 * TICKS
    assert {one.action["type"] for one in made} == {"BUY_SHARES"}
    assert all(one.result.investment > 0 for one in made if not one.refused)
    assert all("BUY_SHARES" in one.metadata.reasoning for one in made)
    assert not any(one.metadata.learns for one in made)
    asked = server.requests[0]
    assert asked["model"] == "rival-2.5"
    assert asked["messages"][0]["content"].startswith("You trade in a market.")
    assert made[0].observation == "\n\n".join(m["content"] for m in asked["messages"])
    # Both are asked at once, with the policy's agents.
    assert server.most_running == 2
    (used,) = api()["players"]
    assert (used["uid"], used["requests"], used["failed"]) == ("openai:rival-2.5", 12, 0)
    assert (used["prompt_tokens"], used["answer_tokens"]) == (12 * 900_000, 12 * 100_000)
    assert used["cost"] == pytest.approx(12 * 1.9)
    (row,) = (json.loads(line) for line in Path("run/windows.jsonl").read_text().splitlines())
    assert row["players"]["openai:rival-2.5"]["decisions"] == 12
    assert row["players"]["policy"]["decisions"] == 24
    assert "Traders behind APIs" in page(load_run(run_dir))


def test_a_constrained_trader_is_asked_for_one_action_that_its_state_allows(
    config, execute, server
):
    execute(config("traders.constrained=true"))
    form = server.requests[0]["response_format"]["json_schema"]["schema"]
    assert {"BUY_SHARES", "NO_OP"} <= {one["properties"]["type"]["const"] for one in form["anyOf"]}


def test_a_server_that_fails_later_costs_decisions_and_not_the_run(config, execute, server, capfd):
    server.good_after = 4
    execute(config())
    made = decided("openai:rival-2.5")
    silent = [one for one in made if one.action["type"] == "NO_OP"]
    assert len(made) == 12
    assert len(silent) == api()["players"][0]["failed"] == 8
    assert all("boiler burst" in one.metadata.reasoning for one in silent)
    said = capfd.readouterr().err
    assert said.count("openai:rival-2.5 does nothing where it does not answer") == 1


@pytest.mark.parametrize(("refused_ticks", "again"), [((1, 3, 5), 0), ((1,), 1), ((), 0)])
def test_a_server_that_fails_now_and_then_is_named_once_until_it_answers_steadily(
    config, execute, server, capfd, refused_ticks, again
):
    server.refused_ticks = refused_ticks
    execute(config())
    assert api()["players"][0]["failed"] == 2 * len(refused_ticks)
    said = capfd.readouterr().err
    assert said.count("kettle is cold; openai:rival-2.5 does nothing") == min(len(refused_ticks), 1)
    assert said.count("openai:rival-2.5 answers again") == again


@pytest.mark.parametrize(
    ("mood", "said"), [("broken", "boiler burst"), ("small", "exceeded; lower market.prompt_chars")]
)
def test_a_server_that_never_answers_ends_the_run(config, execute, server, mood, said):
    server.mood = mood
    with pytest.raises(RunError, match=rf"none of the 2 traders of openai:rival-2.5 .*{said}"):
        execute(config())


def test_traders_are_not_asked_once_their_money_is_spent(config, execute, server, capfd):
    execute(config("traders.api.prices=[1,1]", "traders.api.max_cost=4"))
    made = decided("openai:rival-2.5")
    assert len(server.requests) == 4
    assert sum(one.action["type"] == "NO_OP" for one in made) == 8
    assert "traders.api.max_cost=4 is used: $4.00 in 4 requests" in made[-1].metadata.reasoning
    assert "traders behind APIs do nothing from now on" in capfd.readouterr().err


async def test_a_resumed_run_does_not_ask_again_what_is_recorded(
    config, in_process, server, tmp_path
):
    made = config()

    async def trade(stop):
        context = await in_process.make_context(made, tmp_path / "run")
        async with assembled(context, stop) as trainer:
            await context.actors.tracker.resume_windows.remote([])
            await trainer.learner.begin()
            done = await trainer.run()
            await context.actors.tracker.close.remote({})
        return done

    (tmp_path / "run").mkdir()
    stop = asyncio.Event()
    server.at_fifth = partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set)
    assert not await trade(stop)
    first = len(decided("openai:rival-2.5"))
    assert await trade(asyncio.Event())
    # Only the tick that was under way is asked again.
    assert 4 <= first < 2 * TICKS
    assert len(server.requests) <= 2 * TICKS + 2
    assert len(decided("openai:rival-2.5")) == 2 * TICKS


def test_another_local_model_trades_in_the_runs_engine(make_config, execute, tmp_path):
    # It reads 2,048 tokens, most of which a whole state would fill, a byte each.
    rival = causal_folder(tmp_path / "rival", "gpt2")
    execute(
        make_config(
            *("continuous.windows=1", "continuous.compare_episodes=0", "traders.constrained=true"),
            f'market.traders={{"hf:{rival}": 1}}',
            "traders.hf.max_tokens=200",
        )
    )
    made = decided(f"hf:{rival}")
    assert len(made) == TICKS
    assert not any(one.metadata.learns or one.completion.token_ids for one in made)
    assert any(not one.refused for one in made)
    assert "You trade in a market." in made[0].observation
