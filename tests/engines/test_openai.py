"""API players against a local HTTP server that answers well, badly, slowly or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.chat_server import ChatHandler, ChatServer, completion, serving

from rlforge.config.schema import ApiConfig
from rlforge.engines.openai import ApiPlayer, check_api
from rlforge.errors import ConfigError, EngineError, PromptTooLongError
from rlforge.types import PolicyRef

MESSAGES = [{"role": "user", "content": "Your move?"}]


class Handler(ChatHandler):
    def respond(self, asked: dict[str, Any], tries: int) -> None:
        mood = self.server.mood
        if mood == "slow":
            time.sleep(1)
        if mood == "busy":
            time.sleep(0.05)
        if mood == "byte by byte":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        elif mood == "broken" or (mood == "recovers" and tries < 3):
            self.send(500, {"error": {"message": "boiler burst"}}, retry_after_ms="10")
        elif mood == "refuses":
            self.send(404, {"error": {"message": "no such model"}})
        elif mood in TOO_LONG:
            self.send(400, {"error": TOO_LONG[mood]})
        else:
            self.send(200, ANSWERS.get(mood, completion("[4]")))


TOO_LONG = {
    "too long": {"message": "too much", "code": "context_length_exceeded"},
    "too long, in words": {"message": "This model's maximum context length is 8 tokens."},
}
ANSWERS = {
    "not json": b"<html>hello</html>",
    "half json": b'{"choices": [',
    "no choices": completion("[4]", choices=[]),
    "choices null": completion("[4]", choices=None),
    "a list": [1, 2],
    "no text": completion(None, "tool_calls"),
    "cut": completion("I think", "length"),
}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving(Handler) as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def _config(server: ChatServer, **changes: Any) -> ApiConfig:
    return ApiConfig(**{"openai_base_url": server.url, "max_retries": 2, **changes})


async def _chat(config: ApiConfig, name: str = "openai:m") -> Any:
    player = ApiPlayer(config)
    try:
        policy = PolicyRef(uid=name, kind="api", path_or_name=name)
        return await player.chat(MESSAGES, policy)
    finally:
        await player.close()


async def test_an_answer_becomes_a_completion(server: ChatServer) -> None:
    completion = await _chat(_config(server, temperature=0.3, max_tokens=77))
    assert completion.text == "[4]"
    assert completion.finish_reason == "stop"
    assert completion.policy_uid == "openai:m"
    assert completion.token_ids == completion.logprobs == completion.prompt_token_ids == ()
    (asked,) = server.requests
    assert asked["model"] == "m"
    assert asked["messages"] == MESSAGES
    assert asked["temperature"] == 0.3
    assert asked["max_tokens"] == 77


async def test_openrouter_uses_its_own_address_and_key(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    config = ApiConfig(openrouter_base_url=server.url)
    await _chat(config, "openrouter:org/m:free")
    assert server.requests[0]["model"] == "org/m:free"
    assert server.requests[0]["key"] == "Bearer secret-1"


async def test_an_answer_cut_short_says_so(server: ChatServer) -> None:
    server.mood = "cut"
    assert (await _chat(_config(server))).finish_reason == "length"


async def test_server_errors_are_tried_again(server: ChatServer) -> None:
    server.mood = "recovers"
    assert (await _chat(_config(server))).text == "[4]"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("mood", "message", "tries"),
    [
        ("broken", r"HTTP status 500.*boiler burst", 3),
        ("refuses", r"HTTP status 404.*no such model", 1),
        ("not json", r"openai:m at http\S+ gave an", 1),
        ("half json", r"openai:m at http\S+ gave an", 1),
        ("no choices", "without choices", 1),
        ("choices null", "without choices", 1),
        ("a list", "without choices", 1),
        ("no text", r"without text \(finish_reason 'tool_calls'\)", 1),
    ],
)
async def test_an_unusable_answer_is_an_engine_error(
    server: ChatServer, mood: str, message: str, tries: int
) -> None:
    server.mood = mood
    with pytest.raises(EngineError, match=message):
        await _chat(_config(server))
    assert len(server.requests) == tries


@pytest.mark.parametrize("mood", TOO_LONG)
async def test_a_conversation_that_does_not_fit_is_told_apart(
    server: ChatServer, mood: str
) -> None:
    """A game is cut there, where it would fail after another error."""
    server.mood = mood
    with pytest.raises(PromptTooLongError, match=str(TOO_LONG[mood]["message"])):
        await _chat(_config(server))
    assert len(server.requests) == 1


async def test_a_slow_server_is_given_up_after_the_retries(server: ChatServer) -> None:
    server.mood = "slow"
    with pytest.raises(EngineError, match=r"no answer within 0.1 s in 2 tries.*timeout_s"):
        await _chat(_config(server, timeout_s=0.1, max_retries=1))
    assert len(server.requests) == 2


async def test_a_server_that_sends_single_bytes_is_given_up(server: ChatServer) -> None:
    server.mood = "byte by byte"
    with pytest.raises(EngineError, match=r"no answer within 0\.3 s in 1 try"):
        await _chat(_config(server, timeout_s=0.3, max_retries=0))


async def test_an_address_without_a_server_is_named(server: ChatServer) -> None:
    config = _config(server, openai_base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(
        EngineError, match=r"openai:m at http://127.0.0.1:9/v1 cannot be reached in 1 try;"
    ):
        await _chat(config)


async def test_requests_wait_for_a_place(server: ChatServer) -> None:
    server.mood = "busy"
    player = ApiPlayer(_config(server, max_concurrency=3))
    policy = PolicyRef(uid="p", kind="api", path_or_name="openai:m")
    await asyncio.gather(*(player.chat(MESSAGES, policy) for _ in range(12)))
    await player.close()
    assert len(server.requests) == 12
    assert server.most_running <= 3


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openai:gpt", "OPENAI_API_KEY"), ("openrouter:org/m", "OPENROUTER_API_KEY")],
)
def test_a_missing_key_is_named_before_anything_starts(name: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        check_api(name, ApiConfig())
    with pytest.raises(ConfigError, match=variable):
        check_api(name, ApiConfig(openai_base_url="https://a.example/v1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_server_on_this_machine_needs_no_key(host: str) -> None:
    url = f"http://{host}:8000/v1"
    assert check_api("openai:m", ApiConfig(openai_base_url=url)).base_url == url


@pytest.mark.parametrize("name", ["gpt", "openai:", "azure:gpt", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="write openai:MODEL or openrouter:MODEL"):
        check_api(name, ApiConfig())


async def test_a_key_is_not_part_of_an_error(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-3")
    server.mood = "broken"
    with pytest.raises(EngineError) as caught:
        await _chat(_config(server, max_retries=0))
    assert server.requests[0]["key"] == "Bearer secret-3"
    assert "secret-3" not in str(caught.value)
