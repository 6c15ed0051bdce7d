"""The HTTP service over real sockets: OpenAI's client, admin calls, hostile requests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from rlforge.config.serving import AbTestConfig, DeploymentConfig
from rlforge.engines.base import Engine
from rlforge.engines.grammars import Grammars
from rlforge.errors import ConfigError, EngineDeadError
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.serving.conversations import calls_grammar, tool_calls, without_calls
from rlforge.serving.guard import network
from rlforge.serving.server import answer_requests, assembled, listen, url_of
from rlforge.serving.service import DeploymentService
from rlforge.serving.tokens import (
    ADMIN_VARIABLE,
    CLIENT_VARIABLE,
    AnswerIds,
    Tokens,
    make_tokens,
    read_admin_token,
)
from rlforge.types import Completion, PolicyRef, SamplingParams, value

from .conftest import SETTINGS, until

TOKENS = Tokens(client="a token for clients", admin="a token for administrators")
PROMPT = "tic tac toe [0]"
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
HALF = {"name": "add", "arguments": "{"}
DEEP = {"name": "add", "arguments": '{"a": ' + "[" * 100_000}
ADDING = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
WAIT = {"type": "function", "function": {"name": "wait", "parameters": NOTHING}}
COLOUR = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"enum": ["red", "blue"]}}}
ODD = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "colour"}}}


@value
class Served:
    """A running service. stop: ends it, as a signal does."""

    service: DeploymentService
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    stop: asyncio.Event
    done: asyncio.Task[bool]


@pytest.fixture
def serving(config, engine, tmp_path):
    """``async with serving(…) as served``; settings of group serve by name."""

    @contextlib.asynccontextmanager
    async def start(
        engine: Engine = engine, deployment: Any = None, host: str = "127.0.0.1", **settings: Any
    ) -> AsyncIterator[Served]:
        config.deployment = DeploymentConfig(**SETTINGS | (deployment or {}))
        for name, setting in settings.items():
            setattr(config.serve, name, setting)
        listener = listen("127.0.0.1", 0)
        config.serve.host = host  # the guard reads it; the socket stays on loopback
        stop = asyncio.Event()

        async def stopped() -> None:
            await stop.wait()

        async with assembled(config, tmp_path / "state", TOKENS, engine) as (service, app):
            drain = config.serve.drain_s
            done = asyncio.create_task(answer_requests(app, listener, stopped(), drain_s=drain))
            url = url_of(listener)
            async with (
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
                openai.AsyncOpenAI(
                    base_url=f"{url}/v1", api_key=TOKENS.client, max_retries=0, timeout=30
                ) as client,
            ):
                yield Served(
                    service=service, url=url, http=http, openai=client, stop=stop, done=done
                )
            stop.set()
            await done

    return start


def _admin(token: str = TOKENS.admin) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ---------------------------------------------------------------- OpenAI's client


async def test_a_chat_answer_has_text_token_counts_and_version(serving):
    async with serving() as served:
        answer = await served.openai.chat.completions.create(
            model="small",
            messages=[
                {"role": "system", "content": "Play."},
                {"role": "user", "content": [{"type": "text", "text": PROMPT}]},
            ],
            temperature=0,
            max_tokens=5,
        )
        choice = answer.choices[0]
        assert answer.object == "chat.completion"
        assert answer.model == "small"
        assert answer.system_fingerprint == "deploy-0"
        assert choice.message.role == "assistant"
        assert choice.finish_reason in ("stop", "length")
        assert answer.usage is not None
        assert 1 <= answer.usage.completion_tokens <= 5
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + (
            answer.usage.completion_tokens
        )


async def test_streams_and_whole_answers_have_the_same_text(serving):
    async with serving() as served:
        asked = {"model": "small", "temperature": 1.0, "seed": 7, "max_tokens": 12}
        messages = [{"role": "user", "content": PROMPT}]
        whole = await served.openai.chat.completions.create(messages=messages, **asked)
        stream = await served.openai.chat.completions.create(
            messages=messages, stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        assert chunks[-1].usage == whole.usage
        assert len({chunk.id for chunk in chunks}) == 1
        assert {chunk.system_fingerprint for chunk in chunks} == {"deploy-0"}

        completed = await served.openai.completions.create(prompt=PROMPT, **asked)
        pieces = await served.openai.completions.create(prompt=PROMPT, stream=True, **asked)
        assert "".join([p.choices[0].text async for p in pieces]) == completed.choices[0].text


async def test_a_stream_begins_while_the_engine_still_generates(serving, engine, monkeypatch):
    # Without stop tokens the answer is as long as max_tokens.
    monkeypatch.setattr("rlforge.models.load.stop_token_ids", lambda *_: ())
    generate, first_is_read = engine.generate, asyncio.Event()

    async def held(prompt, params, policy, on_tokens=None):
        completion = await generate(prompt, params, policy)
        for begin in range(0, 90, 10):
            on_tokens(completion.token_ids[begin : begin + 10])
            await first_is_read.wait()
        return completion

    body = {"model": "small", "prompt": "go", "max_tokens": 100, "seed": 0, "stream": True}
    async with serving() as served:
        monkeypatch.setattr(engine, "generate", held)
        async with served.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            first_is_read.set()
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["x-rlforge-version"] == "deploy-0"
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) > 10


async def test_a_prompt_may_be_token_ids_and_logprobs_are_those_of_the_engine(
    serving, engine, tokenizer
):
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    async with serving() as served:
        answer = await served.openai.completions.create(
            model="small", prompt=ids, max_tokens=4, seed=1, logprobs=0
        )
        chat = await served.openai.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "go"}],
            max_tokens=4,
            seed=1,
            logprobs=True,
        )
        listed = await served.openai.models.list()
    policy = PolicyRef(uid="deploy-0", kind="checkpoint")
    direct = await engine.generate(ids, SamplingParams(max_tokens=4, seed=1), policy)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    # The service stops at the model's stop tokens, too.
    count = len(logprobs.token_logprobs)
    assert logprobs.token_logprobs == pytest.approx(direct.logprobs[:count], abs=1e-5)
    assert chat.choices[0].logprobs is not None
    assert all(entry.logprob <= 0 for entry in chat.choices[0].logprobs.content or [])
    assert [model.id for model in listed.data] == ["small", "small@deploy-0"]


async def test_a_stop_string_ends_the_answer_before_it(serving):
    async with serving() as served:
        asked = {"model": "small", "prompt": "go", "max_tokens": 60, "seed": 11}
        whole = (await served.openai.completions.create(**asked)).choices[0].text
        stop = whole[len(whole) // 2 :][:3]
        assert stop
        cut = await served.openai.completions.create(stop=[stop], **asked)
        assert cut.choices[0].text == whole[: whole.index(stop)]
        assert cut.choices[0].finish_reason == "stop"
        pieces = await served.openai.completions.create(stop=stop, stream=True, **asked)
        assert "".join([p.choices[0].text async for p in pieces]) == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1}, "min_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"messages": "hello"}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "assistant"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": HALF}]}]},
            "arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{**CALL, "function": DEEP}]}]},
            "arguments",
        ),
        ({"tool_choice": "required"}, "tool_choice is required, and there are no tools"),
        (
            {"tools": [WAIT], "tool_choice": {"type": "function", "function": {"name": "add"}}},
            "tool_choice names 'add', which is not in tools",
        ),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [WAIT], "response_format": {"type": "json_object"}}, "no response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema belongs to the type"),
        ({"response_format": ODD}, "schema is not supported: failed to compile JSON schema"),
        ({"store": True}, "store: Value error, completions are not kept"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"logprobs": True, "stream": True}, "log-probabilities"),
        ({"messages": [{"role": "user", "content": "go " * 500}]}, "max_model_len"),
    ],
)
async def test_an_invalid_request_is_a_400_with_the_reason(serving, change, part):
    body = {"model": "small", "messages": [{"role": "user", "content": "go"}]} | change
    async with serving() as served:
        answer = await served.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert part in error["message"] or part in (error["param"] or "")
        assert error["type"] == "invalid_request_error"


async def test_unknown_models_paths_and_methods_are_errors_in_openais_form(serving):
    async with serving() as served:
        with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served; there are small"):
            await served.openai.completions.create(model="gpt-9", prompt="go")
        with pytest.raises(openai.NotFoundError):
            await served.openai.models.retrieve("small@deploy-9")
        assert (await served.openai.models.retrieve("small")).id == "small"
        for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405)):
            answer = await served.http.request(method, path)
            assert answer.status_code == status
            assert answer.json()["error"]["type"] == "invalid_request_error"


# ---------------------------------------------------------------- refused requests


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b"[" * 100_000, {}, 400),
        (b"null", {}, 400),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"x" * 5000, {}, 413),
        (b"{}", {"host": "evil.example"}, 403),
    ],
)
async def test_malformed_oversized_and_foreign_requests_are_refused(
    serving, content, headers, status
):
    async with serving(max_body_bytes=200_000 if content[:1] == b"[" else 4096) as served:
        answer = await served.http.post(
            "/v1/completions",
            content=content,
            headers={"content-type": "application/json"} | headers,
        )
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["message"]
        assert (await served.http.get("/health")).status_code == 200


async def test_a_body_that_is_no_json_says_where(serving):
    async with serving() as served:
        answer = await served.http.post(
            "/v1/completions",
            content=b'{"model": "small", }',
            headers={"content-type": "application/json"},
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, None)
        assert re.match(r"the body is no JSON: .+ at character 1\d", error["message"])


async def test_a_prompt_with_half_an_emoji_is_answered(serving):
    async with serving() as served:
        answer = await served.http.post(
            "/v1/completions",
            content=rb'{"model": "small", "prompt": "\ud800 abc", "max_tokens": 2}',
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 200, answer.text


async def test_a_body_without_a_length_is_refused_once_it_is_too_large(serving):
    async def for_ever():
        while True:
            yield b"x" * 1024
            await asyncio.sleep(0)

    async with serving(max_body_bytes=4096) as served:
        with contextlib.suppress(httpx.TransportError):  # it may still be writing
            answer = await served.http.post(
                "/v1/completions", content=for_ever(), headers={"content-type": "application/json"}
            )
            assert answer.status_code == 413
        assert (await served.http.get("/health")).status_code == 200


async def test_a_body_that_does_not_arrive_in_time_is_a_408(serving):
    async with serving(body_timeout_s=0.2) as served:
        host, port = served.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        answer = await reader.read(65536)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not arrive within 0.2 s" in answer
        writer.close()


async def test_beyond_loopback_every_request_needs_a_token(serving):
    async with serving(host="0.0.0.0") as served:
        client = _admin(TOKENS.client)
        refused = await served.http.get("/admin/deployments", headers=client)
        assert refused.status_code == 401
        assert "administrators" in refused.json()["error"]["message"]
        assert (await served.http.get("/metrics", headers=client)).status_code == 200
        for path in ("/v1/models", "/metrics", "/admin/deployments"):
            for headers in ({}, _admin("wrong"), {"authorization": TOKENS.admin}):
                answer = await served.http.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await served.http.get(path, headers=_admin())).status_code == 200
        assert (await served.http.get("/health")).status_code == 200
        assert (await served.http.get("/ready")).json() == {
            "status": "ready",
            "version": "deploy-0",
        }
        with pytest.raises(openai.AuthenticationError):
            await served.openai.with_options(api_key="wrong").models.list()
        assert (await served.openai.models.list()).data


async def test_on_loopback_only_admin_calls_need_the_token_by_default(serving):
    async with serving() as served:
        assert (await served.http.get("/v1/models")).status_code == 200
        for method, path in (
            ("POST", "/admin/deploy"),
            ("POST", "/admin/rollback"),
            ("GET", "/admin/deployments"),
        ):
            assert (await served.http.request(method, path)).status_code == 401
    async with serving(require_token=True) as served:
        assert (await served.http.get("/v1/models")).status_code == 401


@pytest.mark.parametrize(
    ("name", "variable"), [("token", CLIENT_VARIABLE), ("admin_token", ADMIN_VARIABLE)]
)
def test_tokens_are_made_once_and_readable_by_their_owner_only(
    tmp_path, monkeypatch, name, variable
):
    for each in (CLIENT_VARIABLE, ADMIN_VARIABLE):
        monkeypatch.delenv(each, raising=False)
    with pytest.raises(ConfigError, match="no token"):
        read_admin_token(tmp_path)
    tokens = make_tokens(tmp_path)
    assert min(len(tokens.client), len(tokens.admin)) >= 32
    assert tokens.client != tokens.admin
    assert make_tokens(tmp_path) == tokens
    assert read_admin_token(tmp_path) == tokens.admin
    file = tmp_path / name
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=r"can be read by others.*chmod 600"):
        make_tokens(tmp_path)
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        make_tokens(tmp_path)
    monkeypatch.setenv(variable, "from the environment")
    assert "from the environment" in dataclasses.astuple(make_tokens(tmp_path))


def test_ids_of_answers_are_those_of_their_service_only():
    ours, other = AnswerIds("one"), AnswerIds("other")
    made = [ours.new(kind, "deploy-7") for kind in ("chatcmpl", "cmpl") for _ in range(50)]
    assert len(set(made)) == 100
    assert len({ours.read(one) for one in made}) == 100  # each of another, unknown user
    users = [AnswerIds("one").read(ours.new("cmpl", "deploy-7", user)) for user in "aab"]
    assert users[0] == users[1] != users[2]
    trials = [ours.read(ours.new("cmpl", "deploy-7", trial=trial)) for trial in (None, 8)]
    assert [known and known.trial for known in trials] == [None, 8]
    again = AnswerIds("one").read(made[0])  # after a restart
    assert again == ours.read(made[0])
    assert again is not None
    assert again.uid == "deploy-7"
    assert {other.read(one) for one in made} == {None}
    first = made[0]
    for place in range(len(first)):  # no character can be changed
        other_character = "0" if first[place] != "0" else "1"
        assert ours.read(first[:place] + other_character + first[place + 1 :]) is None


def test_addresses_of_one_machine_are_one():
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") != network("10.0.0.2")
    assert network("testclient") == "testclient"


async def test_no_token_is_ever_logged(serving, caplog):
    with caplog.at_level(logging.DEBUG):
        async with serving() as served:
            await served.http.get("/admin/deployments", headers=_admin())
            await served.http.get("/admin/deployments", headers=_admin("a wrong secret"))
            await served.openai.models.list()
    assert "GET '/admin/deployments': 401" in caplog.text
    ours = [r for r in caplog.records if r.name.split(".")[0] in ("rlforge", "uvicorn")]
    assert not any(TOKENS.admin in r.getMessage() or "wrong secret" in r.getMessage() for r in ours)


# ---------------------------------------------------------------- load, time-outs, shutdown


async def test_requests_beyond_max_concurrent_are_a_429(serving):
    body = {"model": "small", "prompt": "go", "max_tokens": 100, "seed": 3}
    async with serving(max_concurrent=2) as served:
        answers = await asyncio.gather(
            *(served.http.post("/v1/completions", json=body) for _ in range(6))
        )
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, 200, 429, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "serve.max_concurrent" in refused.json()["error"]["message"]
        assert (await served.http.post("/v1/completions", json=body)).status_code == 200


class Slow:
    """The real engine, with a delay before each answer."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine, self.seconds = engine, seconds
        self.asked = self.given_up = 0

    async def generate(self, *arguments: Any) -> Any:
        self.asked += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await self._engine.generate(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


async def test_a_request_past_its_time_is_a_504_and_cancelled_in_the_engine(serving, engine):
    slow = Slow(engine, 0.0)
    async with serving(engine=slow, request_timeout_s=0.2) as served:
        slow.seconds = 30
        for stream in (False, True):
            body = {"model": "small", "prompt": "go", "stream": stream}
            answer = await served.http.post("/v1/completions", json=body)
            assert answer.status_code == 504
            assert "serve.request_timeout_s" in answer.json()["error"]["message"]
        assert slow.given_up == 2


async def test_the_request_of_a_disconnected_client_is_cancelled_in_the_engine(serving, engine):
    slow = Slow(engine, 0.0)
    async with serving(engine=slow) as served:
        slow.seconds, before = 30, slow.asked
        with pytest.raises(httpx.ReadTimeout):
            await served.http.post(
                "/v1/completions", json={"model": "small", "prompt": "go"}, timeout=0.3
            )
        await until(lambda: slow.given_up == 1)
        assert slow.asked == before + 1
        slow.seconds = 0


async def test_requests_under_way_are_finished_when_the_service_stops(serving, engine):
    slow = Slow(engine, 0.0)
    async with serving(engine=slow) as served:
        slow.seconds, before = 0.5, slow.asked
        under_way = asyncio.create_task(
            served.http.post("/v1/completions", json={"model": "small", "prompt": "go"})
        )
        await until(lambda: slow.asked > before)
        served.stop.set()
        assert (await under_way).status_code == 200
        await served.done
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient(trust_env=False).get(f"{served.url}/health")


async def test_requests_that_outlast_drain_s_are_cancelled(serving, engine):
    slow = Slow(engine, 0.0)
    async with serving(engine=slow, drain_s=1.0) as served:
        slow.seconds, before = 60, slow.asked
        under_way = asyncio.create_task(
            served.http.post("/v1/completions", json={"model": "small", "prompt": "go"})
        )
        await until(lambda: slow.asked > before)
        served.stop.set()
        async with asyncio.timeout(30):
            await served.done
        await until(lambda: slow.given_up == 1)
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)


async def test_model_name_and_default_max_tokens_are_configured(serving):
    async with serving(model_name="mine", default_max_tokens=1) as served:
        assert (await served.openai.models.list()).data[0].id == "mine"
        answer = await served.openai.completions.create(model="mine", prompt="go")
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 1


async def test_a_dead_engine_is_a_503(serving, engine, monkeypatch):
    async with serving() as served:

        async def dead(*_, **__):
            raise EngineDeadError("the engine is gone")

        monkeypatch.setattr(engine, "generate", dead)
        for stream in (False, True):
            body = {"model": "small", "prompt": "go", "stream": stream}
            answer = await served.http.post("/v1/completions", json=body)
            assert answer.status_code == 503
            assert answer.json()["error"]["message"] == "the engine is gone"


async def test_metrics_count_requests_tokens_and_deployments(serving, make_adapter):
    async with serving() as served:
        await served.openai.completions.create(model="small", prompt="go", max_tokens=3)
        stream = await served.openai.completions.create(model="small", prompt="go", stream=True)
        assert [piece async for piece in stream]
        await served.service.deploy(make_adapter(1))
        await served.http.get("/nowhere")
        await served.http.get("/admin/deployments")
        page = (await served.http.get("/metrics")).text
    assert 'rlforge_requests_total{path="/v1/completions",status="200"} 2.0' in page
    assert 'rlforge_requests_total{path="other",status="404"} 1.0' in page
    assert 'rlforge_requests_total{path="other",status="401"} 1.0' in page
    assert 'rlforge_deployments_total{end="live"} 2.0' in page  # the base model's, too
    assert "rlforge_current_version 1.0" in page
    assert "rlforge_first_token_seconds_count 1.0" in page
    assert 'rlforge_answers_total{arm="current"} 2.0' in page
    assert 'rlforge_tokens_total{kind="generated"}' in page
    assert 'rlforge_engine{what="generated_tokens"}' in page


# ---------------------------------------------------------------- admin, trials


async def test_the_admin_deploys_rolls_back_and_lists(serving, make_adapter):
    path = make_adapter(1)
    cut = make_adapter(2)
    (cut / "adapter_model.safetensors").write_bytes(b"short")
    async with serving() as served:
        post, headers = served.http.post, _admin()
        deployed = await post("/admin/deploy", json={"adapter": str(path)}, headers=headers)
        assert (deployed.status_code, deployed.json()["phase"]) == (200, "live")
        refused = await post("/admin/deploy", json={"adapter": str(cut)}, headers=headers)
        assert (refused.status_code, refused.json()["phase"]) == (409, "rejected")
        missing = await post("/admin/deploy", json={"adapter": "/nowhere"}, headers=headers)
        assert missing.status_code == 409
        assert "no such directory" in missing.json()["error"]["message"]
        answer = await served.openai.completions.create(model="small@deploy-1", prompt="go")
        assert answer.system_fingerprint == "deploy-1"
        back = await post("/admin/rollback", json={}, headers=headers)
        assert back.json()["uid"] == "deploy-0"
        again = await post("/admin/rollback", json={}, headers=headers)
        assert again.status_code == 409
        listed = (await served.http.get("/admin/deployments", headers=headers)).json()
        assert listed["current"] == "deploy-0"
        assert listed["trial"] is None
        assert [d["phase"] for d in listed["deployments"]] == ["live", "rolled_back", "rejected"]


async def test_outcomes_of_answers_decide_a_trial(serving, make_adapter):
    trial = AbTestConfig(shares=[0.5], min_outcomes=5, max_outcomes=100)
    async with serving(deployment={"strategy": "ab_test", "ab": trial}) as served:
        assert (await served.service.deploy(make_adapter(1))).phase == "trial"
        looked = await served.http.get("/admin/deployments", headers=_admin())
        assert looked.json()["trial"]["share"] == 0.5
        number = 0
        while served.service.trial is not None:
            answer = await served.openai.completions.create(
                model="small", prompt="go", max_tokens=1, user=f"agent-{number}"
            )
            reward = 0.9 * (answer.system_fingerprint == "deploy-1") + 0.1 * (number % 2)
            for counted in (True, False) if served.service.trial is not None else ():
                answered = await served.http.post(
                    "/v1/outcomes", json={"id": answer.id, "reward": reward}, headers=_admin()
                )
                assert answered.json()["version"] == answer.system_fingerprint
                assert answered.json()["counted"] == counted
            number += 1
        assert served.service.current.uid == "deploy-1"
        made_up = answer.id[:-32] + "0" * 32
        for name in ("chatcmpl-12", made_up, answer.id.replace("deploy-", "deploy-1")):
            bad = await served.http.post("/v1/outcomes", json={"id": name, "reward": 1})
            assert bad.status_code == 400
            assert "is not the id of an answer" in bad.json()["error"]["message"]
        content = json.dumps({"id": answer.id, "reward": float("nan")})
        nan = await served.http.post(
            "/v1/outcomes", content=content, headers={"content-type": "application/json"}
        )
        assert nan.status_code == 400


async def test_one_client_cannot_decide_a_trial_with_made_up_users(serving, make_adapter):
    """Without the administrators' token all that comes from one address counts as one user."""
    trial = AbTestConfig(shares=[0.5], min_outcomes=5, max_outcomes=60)
    async with serving(deployment={"strategy": "ab_test", "ab": trial}) as served:
        await served.service.deploy(make_adapter(1))
        for number in range(60):
            looked = served.service.trial
            answer = await served.openai.completions.create(
                model="small", prompt="go", max_tokens=1, user=f"made up {number}"
            )
            reward = float(answer.system_fingerprint == "deploy-1")
            reported = await served.http.post(
                "/v1/outcomes",
                json={"id": answer.id, "reward": reward},
                headers=_admin(TOKENS.client),
            )
            assert reported.json()["counted"]
        assert looked is not None
        assert looked.test.p_value == 1.0
        assert served.service.current.uid == "deploy-0"  # undecided, and so as it was


async def test_only_answers_that_the_trial_chose_a_version_for_count_in_it(serving, make_adapter):
    async with serving(deployment={"strategy": "ab_test"}) as served:

        async def asked(model="small"):
            answer = await served.openai.completions.create(model=model, prompt="go", max_tokens=1)
            return answer.id

        async def counted(answer_id):
            body = {"id": answer_id, "reward": 1.0}
            reported = await served.http.post("/v1/outcomes", json=body, headers=_admin())
            return bool(reported.json()["counted"])

        before = await asked()
        await served.service.deploy(make_adapter(1))
        named = [await asked(f"small@deploy-{number}") for number in (0, 1)]
        during, later = await asked(), await asked()
        assert [await counted(one) for one in (before, *named, during)] == [False] * 3 + [True]
        await served.service.rollback()
        await served.service.deploy(make_adapter(2))
        assert not await counted(later)  # it belongs to the trial before


@pytest.mark.parametrize("reward", [1.001, -1e308])
async def test_a_reward_outside_of_its_bounds_is_a_400_that_names_them(serving, reward):
    async with serving() as served:
        answer = await served.openai.completions.create(model="small", prompt="go", max_tokens=1)
        refused = await served.http.post("/v1/outcomes", json={"id": answer.id, "reward": reward})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "reward"
        assert "in [-1, 1] (serve.outcome_low, serve.outcome_high)" in error["message"]


def test_an_address_in_use_is_an_error_that_says_what_to_change():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"serve\.port={port}: cannot listen.*serve\.port=0"):
            listen("127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"serve\.host=no-such-host\.invalid"):
        listen("no-such-host.invalid", 0)
    assert os.environ.get(CLIENT_VARIABLE) is None


# ---------------------------------------------------------------- tools

ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CALLS = (
    'Let me see. <tool_call>{"name": "add", "arguments": {"a": 2, "b": "ü"}}</tool_call>\n'
    '<tool_call>{"name": "add"}</tool_call>'
)
WITH_TOOLS = (
    "{% for tool in tools or [] %}may call {{ tool.function.name }}. {% endfor %}"
    "{% for message in messages %}{{ message.role }} {{ message.content }} "
    "{% for call in message.tool_calls or [] %}"
    "calls {{ call.function.name }} of {{ call.function.arguments.a }} {% endfor %}"
    "{% endfor %}"
)


@pytest.fixture
def prompts(engine, tokenizer, monkeypatch, serving):
    """What the engine is asked, where the model's template shows tools and it calls two."""
    tokenizer.chat_template = WITH_TOOLS
    monkeypatch.setattr("rlforge.models.load.load_tokenizer", lambda _: tokenizer)
    seen: list[str] = []
    ids = tuple(tokenizer.encode(CALLS, add_special_tokens=False))

    async def generate(prompt: Any, params: Any, policy: Any, on_tokens: Any = None) -> Completion:
        seen.append(tokenizer.decode(list(prompt)))
        if on_tokens is not None:
            for token in ids:
                on_tokens((token,))
        return Completion(
            text=CALLS,
            prompt_token_ids=tuple(prompt),
            token_ids=ids,
            logprobs=(-0.1,) * len(ids),
            policy_uid=policy.uid,
        )

    monkeypatch.setattr(engine, "generate", generate)
    return seen


async def test_calls_of_tools_are_in_openais_form_and_their_results_in_the_next_prompt(
    serving, prompts
):
    async with serving() as served:
        messages = [{"role": "user", "content": "2 + 2"}]
        create = served.openai.chat.completions.create
        answer = await create(model="small", messages=messages, tools=[ADD])
        assert prompts[-1] == "may call add. user 2 + 2 "
        choice = answer.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
        first, second = choice.message.tool_calls or ()
        assert (first.type, first.function.name) == ("function", "add")
        assert json.loads(first.function.arguments) == {"a": 2, "b": "ü"}
        assert second.function.arguments == "{}"
        assert len({first.id, second.id}) == 2
        messages += [
            choice.message.model_dump(exclude_none=True, exclude={"refusal", "annotations"}),
            {"role": "tool", "content": "4", "tool_call_id": first.id},
        ]
        again = await create(model="small", messages=messages, tools=[ADD])
        assert prompts[-1] == (
            "may call add. user 2 + 2 assistant Let me see. calls add of 2 calls add of  tool 4 "
        )
        assert {call.id for call in again.choices[0].message.tool_calls or ()}.isdisjoint(
            {first.id, second.id}
        )


async def test_a_stream_ends_with_the_calls_of_tools(serving, prompts):
    async with serving() as served:
        stream = await served.openai.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "2 + 2"}], tools=[ADD], stream=True
        )
        chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me see."
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(call.index, call.function and call.function.name) for call in calls] == [
        (0, "add"),
        (1, "add"),
    ]
    assert chunks[-1].finish_reason == "tool_calls"


async def test_where_no_tool_is_to_be_chosen_calls_are_text(serving, prompts):
    asked = {
        "model": "small",
        "messages": [{"role": "user", "content": "2 + 2"}],
        "tools": [ADD],
        "tool_choice": "none",
    }
    async with serving() as served:
        create = served.openai.chat.completions.create
        answer = await create(**asked)
        stream = await create(**asked, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert prompts[-2:] == ["user 2 + 2 "] * 2
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == "".join(pieces) == CALLS
    assert len(pieces) > 10


async def test_without_parallel_calls_the_first_one_counts(serving, prompts):
    async with serving() as served:
        answer = await served.openai.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "2 + 2"}],
            tools=[ADD],
            tool_choice="auto",
            parallel_tool_calls=False,
            metadata={"purpose": "sums"},
            store=False,
        )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"a": 2, "b": "ü"}
    assert answer.choices[0].message.content == "Let me see."


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_the_format_that_was_asked_for(serving, stream):
    asked = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 40}
    async with serving() as served:

        async def said(seed, **given):
            create = served.openai.chat.completions.create
            answer = await create(model="small", stream=stream, seed=seed, **asked, **given)
            if not stream:
                return str(answer.choices[0].message.content)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

        colours = {await said(seed, response_format=COLOUR) for seed in range(8)}
        assert colours == {'"red"', '"blue"'}
        assert (await said(0, response_format={"type": "json_object"})).startswith("{")
        assert await said(0) == await said(0, response_format={"type": "text"})


@pytest.fixture
def shows_tools(tokenizer, monkeypatch):
    tokenizer.chat_template = WITH_TOOLS
    monkeypatch.setattr("rlforge.models.load.load_tokenizer", lambda _: tokenizer)


@pytest.mark.usefixtures("shows_tools")
async def test_a_model_of_random_weights_calls_the_tools_that_it_must(serving):
    asked = {
        "model": "small",
        "messages": [{"role": "user", "content": "go"}],
        "tools": [ADDING, WAIT],
        "max_tokens": 120,
    }
    named = {"type": "function", "function": {"name": "add"}}
    async with serving() as served:
        create = served.openai.chat.completions.create
        for seed, choice in enumerate(["required", "required", "required", named, named]):
            answer = await create(**asked, tool_choice=choice, parallel_tool_calls=False, seed=seed)
            (call,) = answer.choices[0].message.tool_calls or ()
            assert answer.choices[0].message.content is None
            assert answer.choices[0].finish_reason == "tool_calls"
            if choice == named or call.function.name == "add":
                assert call.function.name == "add"
                assert json.loads(call.function.arguments)["a"] in range(100)
        free = await create(**asked, seed=1)
        assert free.choices[0].message.tool_calls is None


def test_arguments_of_strict_tools_follow_their_schema_once_a_call_begins():
    strict = {**ADDING, "function": {**ADDING["function"], "strict": True}}
    tokenizer = build_tokenizer([])
    grammar = calls_grammar([strict, WAIT], required=False, parallel=True)
    assert grammar is not None
    state = Grammars(tokenizer, len(tokenizer)).begin(grammar, [tokenizer.eos_token_id])

    def follow(text):
        for token in tokenizer.encode(text, add_special_tokens=False):
            assert state.allowed()[token], text
            state.take(token)

    def next_letters():
        return {tokenizer.decode([int(token)]) for token in state.allowed().nonzero()[0]}

    follow("Anything < may be said, <tool")
    assert len(next_letters()) > 100
    follow('_call>\n{"name": "')
    assert next_letters() == {"a", "w"}
    follow('add", "arguments": {"a": ')
    assert next_letters() == set("0123456789")
    follow("42}}\n</tool_call> and more")
    assert state.allowed()[tokenizer.eos_token_id]
    assert calls_grammar([ADDING, WAIT], required=False, parallel=True) is None


def test_a_call_that_is_nested_too_deeply_is_text():
    for depth in (300, 100_000):
        deep = '{"name": "add", "arguments": {"a": ' + "[" * depth + "]" * depth + "}}"
        text = f"<tool_call>{deep}</tool_call>"
        assert tool_calls(text) == ()
        assert without_calls(text) == text


async def test_a_template_that_shows_no_tools_refuses_them(serving):
    body = {"model": "small", "messages": [{"role": "user", "content": "go"}], "tools": [ADD]}
    async with serving() as served:
        refused = await served.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["message"], error["param"]) == (
        "the model's chat template knows no tools",
        "tools",
    )
