"""API players against a local HTTP server that answers well, badly, slowly or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any

import pytest
from tests.harness.chat_server import ChatHandler, ChatServer, completion, refusal, serving

from rlforge.config.pool import ApiConfig
from rlforge.engines.openai import ApiPlayer, check_api
from rlforge.errors import ConfigError, EngineError, PromptTooLongError
from rlforge.types import PolicyRef

MESSAGES = [{"role": "user", "content": "Your move?"}]
POLICY = PolicyRef(uid="p", kind="api", path_or_name="openai:m")


class Handler(ChatHandler):
    def respond(self, asked: dict[str, Any], tries: int) -> None:
        mood = self.server.mood
        if mood == "slow":
            time.sleep(4)
        if mood == "busy":
            time.sleep(0.05)
        if mood == "byte by byte":
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        elif isinstance(mood, dict):  # what the answer took
            self.send(200, completion("[4]", usage=mood))
        elif mood == "broken" or (mood == "recovers" and tries < 3):
            self.send(500, {"error": {"message": "boiler burst"}}, retry_after_ms="10")
        elif mood == "refuses":
            self.send(404, {"error": {"message": "no such model"}})
        elif mood == "reasons" and "temperature" in asked:
            self.send(400, {"error": {"message": "'temperature' does not support 0.3"}})
        elif mood == "neither":
            name = next(name for name in asked if name.startswith("max_"))
            self.send(400, {"error": {"message": f"{name} is not supported"}})
        elif mood in UNKNOWN and "max_tokens" in asked:
            self.send(400, {"error": {"message": UNKNOWN[mood]}})
        elif mood in TOO_LONG:
            status, error = TOO_LONG[mood]
            self.send(status, {"error": error})
        elif mood in OTHERS:
            status, message = OTHERS[mood]
            self.send(status, {"error": {"message": message}}, retry_after_ms="10")
        else:
            self.send(200, ANSWERS.get(mood, completion("[4]")))


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"message": message, **more}


#: Statuses and errors of servers for messages that are too long.
TOO_LONG: dict[str, tuple[int, Any]] = {
    "OpenAI": (400, said("too much", code="context_length_exceeded")),
    "vLLM": (400, said("This model's maximum context length is 8 tokens.")),
    "a new vLLM": (400, said("The prompt (length 9) is longer than the maximum model length")),
    "SGLang": (400, said("The input (9 tokens) is longer than the model's context length")),
    "llama.cpp": (
        400,
        said("request (9 tokens) exceeds the available context size (8 tokens)", code=400),
    ),
    "llama.cpp, while it answers": (500, said("Context size has been exceeded.")),
    "llama-cpp-python": (400, said("Requested tokens (9) exceed context window of 8")),
    "Anthropic": (400, said("prompt is too long: 9 tokens > 8 maximum")),
    "Anthropic, with the answer": (400, said("input length and `max_tokens` exceed context limit")),
    "Anthropic, in bytes": (413, said("Request exceeds the maximum size")),
    "LM Studio": (400, "the model is loaded with context length of only 8 tokens"),
    "LM Studio, without a status": (200, "Context size has been exceeded."),
    "Ollama": (400, {"message": "the input length exceeds the context length"}),
    "text-generation-inference": (
        422,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8. "
        "Given: 9 `inputs` tokens and 1 `max_new_tokens`",
    ),
    "text-generation-inference, alone": (422, "`inputs` must have less than 8 tokens. Given: 9"),
    "xAI": (400, said("This model's maximum prompt length is 8 but the request has 9")),
    "Gemini": (400, said("The input token count (9) exceeds the maximum number of tokens")),
    "Bedrock": (400, said("Input is too long for requested model.")),
}
#: What servers say that take ``max_completion_tokens`` alone.
UNKNOWN = {
    "OpenAI's newer models": (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    ),
    "a gateway": "body.max_tokens: Extra inputs are not permitted",
}
#: Those for requests that are wrong in another way.
OTHERS: dict[str, tuple[int, str]] = {
    "the answer is too long": (400, "max_tokens is too large: 99. This model supports at most 9"),
    "TGI's answer is too long": (422, "Input validation error: `max_new_tokens` must be <= 9"),
    "a rate limit": (429, "Limit of input tokens reached: the context window of your tier is full"),
    "no access": (403, "your key has no access to this context length"),
}
ANSWERS = {
    "not json": b"<html>hello</html>",
    "half json": b'{"choices": [',
    "no choices": completion("[4]", choices=[]),
    "choices null": completion("[4]", choices=None),
    "a list": [1, 2],
    "no text": completion(None, "tool_calls"),
    "refusal": refusal("I will not play."),
    "filtered": completion(None, "content_filter"),
    "cut": completion("I think", "length"),
    "spent": completion("", "length"),
    "anthropic": {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "[5]"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    },
    "cut by the context": completion(
        "I think", "length", usage={"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 15}
    ),
    "paid without text": completion(
        "", "length", usage={"prompt_tokens": 1000, "total_tokens": 1200, "cost": 0.5}
    ),
    "cut in its thoughts": completion(
        None, "length", usage={"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    ),
}


@pytest.fixture
def server():
    with serving(Handler) as server:
        yield server


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def _config(server: ChatServer, **changes: Any) -> ApiConfig:
    return ApiConfig(**{"openai_base_url": server.url, **changes})


async def _chat(config: ApiConfig, name: str = "openai:m", retries: int = 2) -> Any:
    player = ApiPlayer(config, retries)
    try:
        policy = PolicyRef(uid=name, kind="api", path_or_name=name)
        return await player.chat(MESSAGES, policy)
    finally:
        await player.close()


async def test_an_answer_becomes_a_completion(server):
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


async def test_what_is_null_is_left_to_the_endpoint(server):
    await _chat(_config(server, temperature=None, max_tokens=None))
    (asked,) = server.requests
    assert set(asked) == {"model", "messages", "key"}


async def test_openrouter_uses_its_own_address_and_key(server, monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret-1")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-2")
    monkeypatch.setattr("rlforge.engines.openai.OPENROUTER_URL", server.url)
    await _chat(ApiConfig(), "openrouter:org/m:free")
    assert server.requests[0]["model"] == "org/m:free"
    assert server.requests[0]["key"] == "Bearer secret-1"


@pytest.mark.parametrize(
    ("mood", "most", "reason"),
    [
        ("cut", 1024, "length"),
        ("cut by the context", 6, "context"),
        ("cut by the context", 5, "length"),
        ("cut by the context", 2, "length"),
    ],
)
async def test_an_answer_cut_before_its_most_tokens_was_cut_by_the_context(
    server, mood, most, reason
):
    """Five tokens, of which three are thoughts that the server does not count."""
    server.mood = mood
    assert (await _chat(_config(server, max_tokens=most))).finish_reason == reason


async def test_an_answer_cut_by_the_context_before_it_has_text_is_a_full_context(server):
    server.mood = "cut in its thoughts"
    with pytest.raises(PromptTooLongError, match="without text"):
        await _chat(_config(server, max_tokens=6))
    with pytest.raises(EngineError) as caught:
        await _chat(_config(server, max_tokens=5))
    assert not isinstance(caught.value, PromptTooLongError)


async def test_server_errors_are_tried_again(server):
    server.mood = "recovers"
    assert (await _chat(_config(server))).text == "[4]"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("mood", "config", "message", "tries"),
    [
        ("broken", {}, r"HTTP status 500.*boiler burst", 3),
        ("refuses", {}, r"HTTP status 404.*no such model", 1),
        ("not json", {}, r"openai:m at http\S+ gave an", 1),
        ("half json", {}, r"openai:m at http\S+ gave an", 1),
        ("no choices", {}, "without choices", 1),
        ("choices null", {}, "without choices", 1),
        ("a list", {}, "without choices", 1),
        ("no text", {}, r"without text \(finish_reason 'tool_calls'\)", 1),
        ("refusal", {}, r"openai:m at http\S+ refuses to answer: I will not play\.", 1),
        ("filtered", {}, "refuses to answer: its content filter holds the answer back", 1),
        ("spent", {"max_tokens": 77}, r"used up pool\.api\.max_tokens=77; raise it", 1),
        ("slow", {"timeout_s": 1}, r"no answer within 1 s in 3 tries.*timeout_s", 3),
    ],
)
async def test_an_unusable_answer_is_an_engine_error(server, mood, config, message, tries):
    server.mood = mood
    with pytest.raises(EngineError, match=message):
        await _chat(_config(server, **config))
    assert len(server.requests) == tries


async def test_a_conversation_that_does_not_fit_is_told_apart_from_other_refusals(server):
    player = ApiPlayer(_config(server), 0)
    for server.mood in (*TOO_LONG, *OTHERS):
        with pytest.raises(EngineError) as caught:
            await player.chat(MESSAGES, POLICY)
        fits = server.mood in OTHERS
        assert isinstance(caught.value, PromptTooLongError) is not fits, server.mood
        if not fits:
            _, error = TOO_LONG[server.mood]
            said = error if isinstance(error, str) else error["message"]
            assert said[:20] in str(caught.value), server.mood
    await player.close()
    assert len(server.requests) == len(TOO_LONG) + len(OTHERS)


async def test_a_server_that_sends_single_bytes_is_given_up(server):
    server.mood = "byte by byte"
    with pytest.raises(EngineError, match=r"no answer within 0\.3 s in 1 try"):
        await _chat(_config(server, timeout_s=0.3), retries=0)


@pytest.mark.parametrize(("login", "shown"), [("", ""), ("me:secret@", r"\*\*\*@")])
async def test_an_address_without_a_server_is_named_without_its_password(login, shown):
    config = ApiConfig(openai_base_url=f"http://{login}127.0.0.1:9/v1")
    message = rf"openai:m at http://{shown}127.0.0.1:9/v1 cannot be reached in 1 try;"
    with pytest.raises(EngineError, match=message):
        await _chat(config, retries=0)


@pytest.mark.parametrize("url", ["http://[::1/v1", "http://a:99999", "http://a:b/v1", "a/v1"])
def test_an_address_that_is_none_is_refused(url, monkeypatch):
    must = "must be an http:// or https:// address"
    assert list(ApiConfig(openai_base_url=url).problems()) == [("openai_base_url", must)]
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigError, match=f"^OPENAI_BASE_URL=.* {must}$"):
        check_api("openai:m", ApiConfig())


async def test_a_model_that_takes_no_temperature_keeps_its_own(server):
    server.mood = "reasons"
    player = ApiPlayer(_config(server, temperature=0.3))
    for _ in range(2):
        assert (await player.chat(MESSAGES, POLICY)).text == "[4]"
    await player.close()
    assert ["temperature" in asked for asked in server.requests] == [True, False, False]


@pytest.mark.parametrize("mood", UNKNOWN)
async def test_a_limit_that_a_server_does_not_take_is_sent_under_its_other_name(server, mood):
    server.mood = mood
    player = ApiPlayer(_config(server, max_tokens=77))
    for _ in range(2):
        assert (await player.chat(MESSAGES, POLICY)).text == "[4]"
    await player.close()
    sent = [[name for name in asked if asked[name] == 77] for asked in server.requests]
    assert sent == [["max_tokens"], ["max_completion_tokens"], ["max_completion_tokens"]]


async def test_a_limit_that_no_name_is_taken_for_ends_with_what_the_server_says(server):
    server.mood = "neither"
    with pytest.raises(EngineError, match="max_completion_tokens is not supported"):
        await _chat(_config(server, max_tokens=77))
    assert len(server.requests) == 2


async def test_requests_wait_for_a_place(server):
    server.mood = "busy"
    player = ApiPlayer(_config(server, max_concurrency=3))
    await asyncio.gather(*(player.chat(MESSAGES, POLICY) for _ in range(12)))
    await player.close()
    assert len(server.requests) == 12
    assert server.most_running <= 3


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openai:gpt", "OPENAI_API_KEY"), ("openrouter:org/m", "OPENROUTER_API_KEY")],
)
def test_a_missing_key_is_named_before_anything_starts(name, variable):
    with pytest.raises(ConfigError, match=variable):
        check_api(name, ApiConfig())
    with pytest.raises(ConfigError, match=variable):
        check_api(name, ApiConfig(openai_base_url="https://a.example/v1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_server_on_this_machine_needs_no_key(host):
    url = f"http://{host}:8000/v1"
    assert check_api("openai:m", ApiConfig(openai_base_url=url)).base_url == url


@pytest.mark.parametrize("name", ["gpt", "openai:", "azure:gpt", ""])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigError, match="write openai:MODEL or openrouter:MODEL"):
        check_api(name, ApiConfig())


async def test_a_key_is_not_part_of_an_error(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-3")
    server.mood = "broken"
    with pytest.raises(EngineError) as caught:
        await _chat(_config(server), retries=0)
    assert server.requests[0]["key"] == "Bearer secret-3"
    assert "secret-3" not in str(caught.value)


# ---------------------------------------------------------------- what answers take


USAGE = {"prompt_tokens": 1000, "total_tokens": 1200}


async def used(server, *moods, **config):
    """What ``openai:m`` took for a request in each mood."""
    player = ApiPlayer(_config(server, **config), retries=0)
    for server.mood in moods:
        with contextlib.suppress(EngineError):
            await player.chat(MESSAGES, PolicyRef(uid="openai:m", kind="api"))
    (usage,) = player.take_usage()
    assert player.take_usage() == ()
    await player.close()
    return usage


async def test_tokens_time_and_what_the_provider_says_an_answer_cost(server):
    usage = await used(server, USAGE | {"cost": 0.25}, USAGE | {"cost": 0.5})
    assert (usage.uid, usage.requests, usage.failed, usage.games) == ("openai:m", 2, 0, 0)
    assert (usage.prompt_tokens, usage.answer_tokens) == (2000, 400)
    assert (usage.cost, usage.unpriced) == (0.75, 0)
    assert 0 < usage.latency_s < 10


@pytest.mark.parametrize("stated", [float("nan"), -1, "0.5", None, 0.25])
async def test_a_price_that_is_none_is_reckoned_by_the_tokens(server, stated):
    price = {} if stated is None else {"cost": stated}
    usage = await used(server, USAGE | price, prices=[2.0, 10.0])
    reckoned = 1000 * 2e-6 + 200 * 10e-6
    assert usage.cost == pytest.approx(0.25 if stated == 0.25 else reckoned)
    assert usage.unpriced == 0


async def test_an_answer_of_unknown_price_is_counted_as_such(server):
    usage = await used(server, USAGE, {}, {"prompt_tokens": 5})
    assert (usage.requests, usage.cost, usage.unpriced) == (3, 0.0, 3)
    assert (usage.prompt_tokens, usage.answer_tokens) == (1005, 200)


async def test_an_answer_without_text_costs_and_a_refusal_does_not(server):
    usage = await used(server, "paid without text", "refuses")
    assert (usage.requests, usage.failed) == (2, 2)
    assert (usage.answer_tokens, usage.cost, usage.unpriced) == (200, 0.5, 0)


# ---------------------------------------------------------------- LiteLLM


@pytest.fixture
def litellm_config(server):
    pytest.importorskip("litellm")
    return ApiConfig(litellm_base_url=server.url, timeout_s=1)


async def test_litellm_asks_providers_in_their_own_way(server, litellm_config):
    server.mood = "anthropic"
    answer = await _chat(litellm_config, "litellm:anthropic/claude-sonnet-4-5")
    assert (answer.text, answer.finish_reason) == ("[5]", "stop")
    assert answer.policy_uid == "litellm:anthropic/claude-sonnet-4-5"
    (asked,) = server.requests
    assert (asked["model"], asked["max_tokens"]) == ("claude-sonnet-4-5", 1024)
    assert asked["messages"][0]["content"][0]["text"] == MESSAGES[0]["content"]


async def test_litellm_drops_what_a_model_does_not_take(server, litellm_config):
    assert (await _chat(litellm_config, "litellm:openai/gpt-5-mini")).text == "[4]"
    (asked,) = server.requests
    assert "temperature" not in asked
    assert asked["max_completion_tokens"] == 1024


@pytest.mark.parametrize(
    ("mood", "message", "tries"),
    [
        ("broken", "HTTP status 500.*boiler burst", 2),
        ("refuses", "HTTP status 404.*no such model", 1),
        ("spent", "used up pool.api.max_tokens=1024", 1),
        ("slow", "no answer within 1 s", 2),
    ],
)
async def test_failures_by_litellm_read_as_those_of_other_endpoints(
    server, litellm_config, mood, message, tries
):
    server.mood = mood
    with pytest.raises(EngineError, match=message):
        await _chat(litellm_config, "litellm:openai/m", retries=1)
    assert len(server.requests) == tries


def test_litellm_s_providers_and_keys_are_checked_before_anything_starts(monkeypatch):
    pytest.importorskip("litellm")
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="LLM Provider NOT provided"):
        check_api("litellm:nosuch/m", ApiConfig())
    with pytest.raises(ConfigError, match=r"needs a key: .* ANTHROPIC_API_KEY"):
        check_api("litellm:anthropic/claude-sonnet-4-5", ApiConfig())
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-4")
    assert check_api("litellm:anthropic/claude-sonnet-4-5", ApiConfig()).base_url is None


@pytest.mark.parametrize(("name", "extra"), [("openai:m", "api"), ("litellm:openai/m", "litellm")])
def test_without_its_package_the_extra_is_named(name, extra, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"pip install 'rlforge\[{extra}\]'"):
        check_api(name, ApiConfig())


@pytest.fixture(params=["http://127.0.0.1:9", "foo:bar:baz", "socks://127.0.0.1:9"])
def proxy(request, monkeypatch):
    """A proxy that is dead, or none."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, request.param)
    return request.param


async def test_a_server_on_this_machine_is_asked_without_the_proxy(server, proxy, monkeypatch):
    assert (await _chat(_config(server))).text == "[4]"
    named = server.url.replace("127.0.0.1", "localhost")
    monkeypatch.setenv("OPENAI_BASE_URL", named)
    assert (await _chat(ApiConfig())).text == "[4]"


async def test_a_proxy_that_does_not_answer_is_named(proxy, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    if proxy.startswith("http"):
        with pytest.raises(EngineError) as caught:
            await _chat(ApiConfig(), retries=0)
        assert f"1 try through HTTPS_PROXY={proxy}; check the address" in str(caught.value)
    else:
        with pytest.raises(ConfigError, match=f"^http_proxy={proxy}: "):
            await _chat(ApiConfig())


@pytest.mark.parametrize("name", ["anthropic/claude-sonnet-4-5", "openai/gpt-5-mini"])
async def test_litellm_leaves_this_machine_to_no_proxy_and_names_one_that_is_dead(
    server, litellm_config, name, proxy, monkeypatch
):
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(key, "key")
    if not proxy.startswith("http"):
        with pytest.raises(ConfigError, match=f"^http_proxy={proxy}: "):
            check_api(f"litellm:{name}", litellm_config)
        return
    server.mood = "anthropic" if name.startswith("anthropic") else ""
    assert (await _chat(litellm_config, f"litellm:{name}")).text in ("[4]", "[5]")
    with pytest.raises(EngineError, match=f"HTTPS_PROXY={proxy}"):
        await _chat(ApiConfig(timeout_s=5), f"litellm:{name}", retries=0)
