"""The HTTP service over real sockets: OpenAI's client, admin calls, hostile requests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import logging
import re
import sys
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
import torch
from tokenizers.processors import TemplateProcessing

from rlforge.continuous.config.serving import AbTestConfig, DeploymentConfig, ServeConfig
from rlforge.continuous.serving.client import ask_admin
from rlforge.continuous.serving.protocol import ChatRequest, CompletionRequest
from rlforge.continuous.serving.server import answer_requests, assembled, listen, url_of
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.tokens import ADMIN_VARIABLE, Tokens
from rlforge.engines.registry import make_engine
from rlforge.errors import EngineDeadError
from rlforge.models.load import load_base_model, load_tokenizer
from rlforge.types import Completion, value

from .conftest import ADDING, SETTINGS, WAIT, small_config, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENS = Tokens(client="a token for clients", admin="a token for administrators")
PROMPT = "tic tac toe [0]"
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
HALF = {"name": "add", "arguments": "{"}
DEEP = {"name": "add", "arguments": '{"a": ' + "[" * 100_000}
COLOUR = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"enum": ["red", "blue"]}}}
IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
ARGUMENTS = "messages.0.tool_calls.0.function.arguments"
ODD = {"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "colour"}}}

WITH_TOOLS = (
    "{% for tool in tools or [] %}may call {{ tool.function.name }}. {% endfor %}"
    "{% for message in messages %}{{ message.role }} {{ message.content }} "
    "{% for call in message.tool_calls or [] %}"
    "calls {{ call.function.name }} of {{ call.function.arguments.a }} {% endfor %}"
    "{% endfor %}"
)


def bearer(token=TOKENS.admin):
    return {"authorization": f"Bearer {token}"}


@value
class Served:
    """A running service. stop: ends it, as a signal does."""

    service: DeploymentService
    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    stop: asyncio.Event
    done: asyncio.Task[bool]

    async def ask(self, **asked):
        given = {"model": "small", "prompt": "go", "max_tokens": 1} | asked
        return await self.openai.completions.create(**given)

    async def chat(self, said="go", **asked):
        given = {"model": "small", "messages": [{"role": "user", "content": said}]} | asked
        return await self.openai.chat.completions.create(**given)

    async def post(self, **asked):
        body = {"model": "small", "prompt": "go"} | asked
        return await self.http.post("/v1/completions", json=body)

    async def send(self, content, **headers):
        sent = {"content-type": "application/json"} | headers
        return await self.http.post("/v1/completions", content=content, headers=sent)

    async def report(self, answer_id, reward, token=TOKENS.admin):
        body = {"id": answer_id, "reward": reward}
        return await self.http.post("/v1/outcomes", json=body, headers=bearer(token))


@contextlib.asynccontextmanager
async def running(config, folder, engine, host="127.0.0.1"):
    listener = listen("127.0.0.1", 0)
    # The guard reads it; the socket stays on loopback.
    serve = dataclasses.replace(config.serve, host=host)
    config = dataclasses.replace(config, serve=serve)
    stop = asyncio.Event()
    async with assembled(config, folder, TOKENS, engine) as (service, app):
        answering = answer_requests(app, listener, stop.wait(), drain_s=config.serve.drain_s)
        done = asyncio.create_task(answering)
        url = url_of(listener)
        async with (
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key=TOKENS.client, max_retries=0, timeout=30
            ) as client,
        ):
            yield Served(service=service, url=url, http=http, openai=client, stop=stop, done=done)
        stop.set()
        await done


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base(small_model):
    engine = make_engine(small_config(small_model), device="cpu", threads=1)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(base, small_model, tmp_path_factory):
    """A service with its defaults, which tests leave as it is."""
    folder = tmp_path_factory.mktemp("served")
    async with running(small_config(small_model), folder, base) as served:
        yield served


@contextlib.asynccontextmanager
async def with_tokenizer(small_model, folder, engine, change):
    config = small_config(small_model)
    tokenizer = load_tokenizer(config.model)
    change(tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlforge.models.load.load_tokenizer", lambda _: tokenizer)
        async with running(config, folder, engine) as served:
            yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tool_served(base, small_model, tmp_path_factory):
    def change(tokenizer):
        tokenizer.chat_template = WITH_TOOLS

    folder = tmp_path_factory.mktemp("tools")
    async with with_tokenizer(small_model, folder, base, change) as served:
        yield served


@pytest.fixture
def serving(config, base, tmp_path):
    """``async with serving(…) as served``; settings of group serve by name."""

    @contextlib.asynccontextmanager
    async def start(engine=base, host="127.0.0.1", **settings):
        serve = dataclasses.replace(ServeConfig(port=0), **settings)
        own = dataclasses.replace(config, serve=serve)
        async with running(own, tmp_path / "state", engine, host) as served:
            yield served

    return start


@pytest.fixture
def deploying(config, tmp_path):
    """As ``serving``, with an engine of its own; settings of group deployment by name."""

    @contextlib.asynccontextmanager
    async def start(**settings):
        own = dataclasses.replace(config, deployment=DeploymentConfig(**SETTINGS | settings))
        engine = make_engine(own, device="cpu", threads=1)
        async with running(own, tmp_path / "state", engine) as served:
            yield served
        await engine.close()

    return start


# ---------------------------------------------------------------- OpenAI's client


async def test_the_page_is_at_a_path_of_the_service_or_left_out(served, serving):
    page = await served.http.get("/watch")
    assert "deploy-0" in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    async with serving(page=None) as without:
        assert (await without.http.get("/watch")).status_code == 404


async def test_a_chat_passes_the_files_that_the_page_names(served):
    """Stops are the files in whose coroutines a request waits; here the engine is in-process."""
    page = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text()
    line = page.partition("One request of a client: ")[2].partition("\n\n")[0]
    named, passed = re.findall(r"`(\S+\.py)`", line), {}

    def note(frame, event, _):
        file = frame.f_code.co_filename.partition("/rlforge/")[2]
        waits = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
        if event == "call" and file and frame.f_code.co_flags & waits:
            passed[file] = None

    sys.setprofile(note)
    try:
        await served.chat(max_tokens=3)
    finally:
        sys.setprofile(None)
    assert len(named) <= 7
    assert [*passed] == [file for file in named if file.startswith("continuous/")] + [
        "engines/threaded.py"
    ]


async def test_streams_and_whole_answers_have_the_same_text_counts_and_version(served):
    asked = {"temperature": 1.0, "seed": 7, "max_tokens": 12}
    said = [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    whole = await served.chat(messages=said, **asked)
    assert (whole.object, whole.model) == ("chat.completion", "small")
    assert whole.system_fingerprint == "deploy-0"
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason in ("stop", "length")
    usage = whole.usage
    assert 1 <= usage.completion_tokens <= 12
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    stream = await served.chat(PROMPT, stream=True, stream_options={"include_usage": True}, **asked)
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.system_fingerprint for chunk in chunks} == {"deploy-0"}

    completed = await served.ask(prompt=PROMPT, **asked)
    pieces = await served.ask(prompt=PROMPT, stream=True, **asked)
    assert "".join([p.choices[0].text async for p in pieces]) == completed.choices[0].text


async def test_a_stream_begins_while_the_engine_still_generates(serving, base, monkeypatch):
    # Without stop tokens the answer is as long as max_tokens.
    monkeypatch.setattr("rlforge.models.load.stop_token_ids", lambda *_: ())
    generate, first_is_read = base.generate, asyncio.Event()

    async def held(prompt, params, policy, on_tokens=None):
        completion = await generate(prompt, params, policy)
        for begin in range(0, 90, 10):
            on_tokens(completion.token_ids[begin : begin + 10])
            await first_is_read.wait()
        return completion

    body = {"model": "small", "prompt": "go", "max_tokens": 100, "seed": 0, "stream": True}
    async with serving() as served:
        monkeypatch.setattr(base, "generate", held)
        async with served.http.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            first_is_read.set()
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["x-rlforge-version"] == "deploy-0"
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert len(rest) > 10


async def test_a_prompt_may_be_token_ids(served, tokenizer):
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    asked = {"max_tokens": 4, "seed": 1}
    answer = await served.ask(prompt=ids, **asked)
    listed = await served.openai.models.list()
    assert answer.choices[0].text == (await served.ask(prompt=[PROMPT], **asked)).choices[0].text
    assert answer.usage.prompt_tokens == len(ids)
    assert [model.id for model in listed.data] == ["small", "small@deploy-0"]


@pytest.fixture(scope="session")
def plain(small_model):
    model = load_base_model(small_config(small_model).model, torch.device("cpu"), torch.float32)

    @torch.no_grad()
    def read(prompt, answer):
        ids = torch.tensor([[*prompt, *answer]])
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(dim=-1)

    return read


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0},
        {"temperature": 0.4},
        {"temperature": 1},
        {"temperature": 1.7, "top_p": 0.8, "extra_body": {"top_k": 20, "min_p": 0.01}},
    ],
)
async def test_logprobs_are_those_of_the_model_whatever_the_sampling(served, tokenizer, plain, how):
    ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    asked = {"max_tokens": 6, "seed": 3} | how
    answer = await served.ask(prompt=ids, logprobs=1, **asked)
    logprobs = answer.choices[0].logprobs
    tokens = tokenizer.convert_tokens_to_ids(
        [tokenizer.tokenize(text)[0] for text in logprobs.tokens]
    )
    own = plain(ids, tokens)
    expected = [float(row[token]) for row, token in zip(own, tokens, strict=True)]
    assert logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)
    assert min(expected) < -0.1  # of the greedy distribution all would be 0
    if how["temperature"] == 0:
        assert tokens == own.argmax(dim=-1).tolist()
    streamed = [
        chunk.choices[0].logprobs
        async for chunk in await served.ask(prompt=ids, logprobs=1, stream=True, **asked)
    ]
    (scored,) = [each for each in streamed if each is not None]
    assert scored == logprobs


async def test_logprobs_of_a_chat_come_whole_also_in_a_stream_and_up_to_a_stop_string(served):
    for seed in range(40):
        asked = {"max_tokens": 30, "seed": seed, "logprobs": True}
        whole = (await served.chat("go", **asked)).choices[0]
        if len(whole.logprobs.content) > 4:
            break
    chunks = [c.choices[0] async for c in await served.chat(stream=True, **asked)]
    assert "".join(c.delta.content or "" for c in chunks) == whole.message.content
    (scored,) = [c.logprobs for c in chunks if c.logprobs]
    assert scored.model_dump() == whole.logprobs.model_dump()
    texts = [entry.token for entry in whole.logprobs.content]
    place = next(n for n in range(2, len(texts)) if texts[n] not in texts[:n])
    cut = await served.chat(stop=texts[place], **asked)
    (choice,) = cut.choices
    assert choice.message.content == "".join(texts[:place])
    assert choice.logprobs.content == whole.logprobs.content[: place + 1]
    assert (choice.finish_reason, cut.usage.completion_tokens) == ("stop", place + 1)
    data = [bytes(entry.bytes) for entry in whole.logprobs.content]
    assert b"".join(data).decode(errors="replace") == whole.message.content
    text = (await served.ask(**asked | {"logprobs": 1})).choices[0]
    starts = zip(text.logprobs.tokens, text.logprobs.text_offset, strict=True)
    assert all(text.text.startswith(shown, start) for shown, start in starts if len(shown) == 1)


async def test_an_answer_with_logprobs_is_still_learned_from_by_its_sampling_distribution(
    serving, base, monkeypatch
):
    async with serving() as served:
        seen, generate = [], base.generate

        async def watched(*args, **kwargs):
            seen.append(await generate(*args, **kwargs))
            return seen[-1]

        monkeypatch.setattr(base, "generate", watched)
        await served.ask(temperature=0, logprobs=1, max_tokens=3)
        assert set(seen[-1].logprobs) == {0.0}
        assert seen[-1].model_logprobs != seen[-1].logprobs


async def test_a_stop_string_ends_the_answer_before_it(served):
    asked = {"max_tokens": 60, "seed": 11}
    whole = (await served.ask(**asked)).choices[0].text
    stop = whole[len(whole) // 2 :][:3]
    assert stop
    cut = await served.ask(stop=[stop], **asked)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    pieces = await served.ask(stop=stop, stream=True, **asked)
    assert "".join([p.choices[0].text async for p in pieces]) == whole[: whole.index(stop)]


def said(role, **rest):
    return {"messages": [{"role": role, **rest}]}


NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"temperature": 3}, "temperature", "must be less than or equal to 2"),
        ({"temperature": "hot"}, "temperature", "must be a valid number"),
        (
            {"stop": ["a", "b", "c", "d", "e"]},
            "stop",
            "must be a valid string, or must have at most 4 items after validation, not 5",
        ),
        ({"stream_options": {"x": 1}}, "stream_options.x", "unknown parameter"),
        ({"temperatur": 1}, "temperatur", "unknown parameter; did you mean temper"),
        ({"n": True}, "n", "not supported; leave it out or give 1"),
        ({"prompt": None}, "prompt", "must be a valid string, or must be a valid list"),
        ({"prompt": ["a", "b"]}, "prompt", "several prompts are not supported; send a request"),
        ({"prompt": [[5, 6], [7]]}, "prompt", "several prompts are not supported"),
        ({"prompt": "go", "echo": True}, "echo", "not supported; leave it out or give false"),
        (said("user", content=[IMAGE]), "messages.0.content.0.type", "must be 'text'"),
        (said("user"), "messages.0", "a message has content, or tool_calls"),
        (said("user", content="x", tool_calls=[CALL]), "messages.0", "tool_calls belong to mess"),
        (said("assistant", tool_calls=[{**CALL, "function": HALF}]), ARGUMENTS, "EOF while"),
        (said("assistant", tool_calls=[{**CALL, "function": DEEP}]), ARGUMENTS, "recursion limit"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "is missing"),
        ({"tool_choice": "required"}, None, "tool_choice is required, and there are no tools"),
        ({"tools": [WAIT], "tool_choice": NAMED}, None, "tool_choice names 'add', which is not"),
        (
            {"tools": [WAIT], "response_format": {"type": "json_object"}},
            None,
            "an answer that may call tools has no response_format",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema belongs to"),
        ({"response_format": ODD}, "response_format", "the schema is not supported: failed to"),
        ({"tools": [WAIT]}, "tools", "the model's chat template knows no tools"),
    ],
)
async def test_a_wrong_parameter_is_named_with_what_it_must_be(served, change, param, message):
    text = "prompt" in change
    body = {"model": "small", **({} if text else said("user", content="go")), **change}
    path = "/v1/completions" if text else "/v1/chat/completions"
    answer = await served.http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].removeprefix(f"{param or 'body'}: ").startswith(message)
    assert (error["code"] == "unknown_parameter") is ("unknown parameter" in message)


async def test_a_conversation_that_is_too_long_has_the_code_at_which_clients_cut_it(served):
    with pytest.raises(openai.BadRequestError, match="max_model_len") as refused:
        await served.chat("go " * 500)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
async def test_unsupported_parameters_are_refused_by_their_name(served, kind):
    chat = kind is ChatRequest
    path = "/v1/chat/completions" if chat else "/v1/completions"
    asked = {"messages": [{"role": "user", "content": "go"}]} if chat else {"prompt": "go"}

    async def post(**given):
        body = {"model": "small", "max_tokens": 1, **asked, **given}
        return await served.http.post(path, json=body)

    for name, neutral in kind.refused.items():
        for harmless in (None, *neutral):
            answer = await post(**{name: harmless})
            assert answer.status_code == 200, answer.text
        answer = await post(**{name: "something"})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert error["message"].startswith(f"{name}: not supported; leave it out")


def test_the_page_lists_the_parameters():
    text = (Path(__file__).parents[3] / "docs" / "serving.md").read_text()
    for kind, column in ((ChatRequest, 1), (CompletionRequest, 2)):
        for heading, names in (("Supported", kind.model_fields), ("Refused", kind.refused)):
            table = text.partition(f"| {heading} |")[2].partition("\n\n")[0]
            rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
            listed = [
                name
                for row in rows
                if row[1 + column].strip()
                for name in re.findall(r"`(\w+)`", row[1])
            ]
            assert sorted(listed) == sorted(names), (heading, kind)
            if heading == "Refused":
                values = {
                    name: [json.loads(each) for each in re.findall(r"`([^`]+)`", row[4])]
                    for row in rows
                    for name in re.findall(r"`(\w+)`", row[1])
                }
                for name in names:
                    assert values[name] == list(kind.refused[name]), name


async def test_unknown_models_paths_and_methods_are_errors_in_openais_form(served):
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served; there are small"):
        await served.ask(model="gpt-9")
    with pytest.raises(openai.NotFoundError):
        await served.openai.models.retrieve("small@deploy-9")
    assert (await served.openai.models.retrieve("small")).id == "small"
    for method, path, status in (("GET", "/v2", 404), ("GET", "/v1/completions", 405)):
        answer = await served.http.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == "invalid_request_error"


# ---------------------------------------------------------------- refused requests


@pytest.mark.parametrize(
    ("content", "headers", "status", "message"),
    [
        (b'{"model": "small", }', {}, 400, r"the body is no JSON: .+ at character 1\d"),
        (b"\xff\xfe", {}, 400, ""),
        (b"[" * 100_000, {}, 400, ""),
        (b"null", {}, 400, ""),
        (b"{}", {"content-type": "text/plain"}, 415, ""),
        (b"{}", {"host": "evil.example"}, 403, ""),
    ],
)
async def test_malformed_and_foreign_requests_are_refused(
    served, content, headers, status, message
):
    answer = await served.send(content, **headers)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert re.match(message, error["message"])
    assert error.get("param") is None
    half_an_emoji = rb'{"model": "small", "prompt": "\ud800 abc", "max_tokens": 2}'
    assert (await served.send(half_an_emoji)).status_code == 200


async def test_a_body_that_is_too_large_is_refused_also_without_a_length(serving):
    async def for_ever():
        while True:
            yield b"x" * 1024
            await asyncio.sleep(0)

    async with serving() as served:
        assert (await served.send(b"x" * (2**20 + 1))).status_code == 413
        with contextlib.suppress(httpx.TransportError):  # it may still be writing
            assert (await served.send(for_ever())).status_code == 413
        assert (await served.http.get("/health")).status_code == 200


async def test_a_body_that_does_not_arrive_in_time_is_a_408(serving, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.serving.app.BODY_TIMEOUT_S", 0.2)
    async with serving() as served:
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
        client = bearer(TOKENS.client)
        refused = await served.http.get("/admin/deployments", headers=client)
        assert refused.status_code == 401
        assert "administrators" in refused.json()["error"]["message"]
        assert (await served.http.get("/metrics", headers=client)).status_code == 200
        for path in ("/v1/models", "/metrics", "/admin/deployments"):
            for headers in ({}, bearer("wrong"), {"authorization": TOKENS.admin}):
                answer = await served.http.get(path, headers=headers)
                assert answer.status_code == 401
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await served.http.get(path, headers=bearer())).status_code == 200
        assert (await served.http.get("/health")).status_code == 200
        ready = (await served.http.get("/ready")).json()
        assert ready == {"status": "ready", "version": "deploy-0"}
        with pytest.raises(openai.AuthenticationError):
            await served.openai.with_options(api_key="wrong").models.list()
        assert (await served.openai.models.list()).data


async def test_on_loopback_only_admin_calls_need_the_token_by_default(served, serving):
    assert (await served.http.get("/v1/models")).status_code == 200
    calls = (("POST", "deploy"), ("POST", "rollback"), ("GET", "deployments"))
    for method, path in calls:
        assert (await served.http.request(method, f"/admin/{path}")).status_code == 401
    async with serving(require_token=True) as strict:
        assert (await strict.http.get("/v1/models")).status_code == 401


async def test_no_token_is_ever_logged(served, caplog):
    with caplog.at_level(logging.DEBUG):
        await served.http.get("/admin/deployments", headers=bearer())
        await served.http.get("/admin/deployments", headers=bearer("a wrong secret"))
        await served.openai.models.list()
    assert "GET '/admin/deployments': 401" in caplog.text
    ours = [r for r in caplog.records if r.name.split(".")[0] in ("rlforge", "uvicorn")]
    assert not any(TOKENS.admin in r.getMessage() or "wrong secret" in r.getMessage() for r in ours)


# ---------------------------------------------------------------- load, time-outs, shutdown


async def test_requests_beyond_max_concurrent_are_a_429(serving):
    asked = {"max_tokens": 100, "seed": 3}
    async with serving(max_concurrent=2) as served:
        answers = await asyncio.gather(*(served.post(**asked) for _ in range(6)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200, 200, 429, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert "serve.max_concurrent" in refused.json()["error"]["message"]
        assert (await served.post(**asked)).status_code == 200


class Slow:
    """The real engine, with a delay before each answer."""

    def __init__(self, engine):
        self._engine, self.seconds = engine, 0.0
        self.asked = self.given_up = 0

    async def generate(self, *arguments):
        self.asked += 1
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await self._engine.generate(*arguments)

    def __getattr__(self, name):
        return getattr(self._engine, name)


@pytest.fixture
def slow(base):
    return Slow(base)


async def test_requests_past_their_time_or_without_a_client_are_cancelled_in_the_engine(
    serving, slow
):
    async with serving(engine=slow, request_timeout_s=1.0) as served:
        slow.seconds, before = 30, slow.asked
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(served.post(), 0.3)  # the client disconnects
        await until(lambda: slow.given_up == 1, seconds=0.6)
        for answer in await asyncio.gather(*(served.post(stream=how) for how in (False, True))):
            assert answer.status_code == 504
            assert "serve.request_timeout_s" in answer.json()["error"]["message"]
        assert slow.given_up == slow.asked - before == 3


async def test_requests_under_way_are_finished_when_the_service_stops(serving, slow):
    async with serving(engine=slow) as served:
        slow.seconds, before = 0.5, slow.asked
        under_way = asyncio.create_task(served.post())
        await until(lambda: slow.asked > before)
        served.stop.set()
        assert (await under_way).status_code == 200
        await served.done
        with pytest.raises(httpx.ConnectError):
            await httpx.AsyncClient(trust_env=False).get(f"{served.url}/health")


async def test_requests_that_outlast_drain_s_are_cancelled(serving, slow):
    async with serving(engine=slow, drain_s=1.0) as served:
        slow.seconds, before = 60, slow.asked
        under_way = asyncio.create_task(served.post())
        await until(lambda: slow.asked > before)
        served.stop.set()
        async with asyncio.timeout(30):
            await served.done
        await until(lambda: slow.given_up == 1)
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)


async def test_a_service_limits_answers_by_default(serving, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.serving.answering.DEFAULT_MAX_TOKENS", 1)
    async with serving() as served:
        answer = await served.openai.completions.create(model="small", prompt="go")
        assert answer.usage.completion_tokens == 1


async def test_a_completion_begins_with_the_one_bos_that_the_tokenizer_adds(
    base, small_model, tmp_path
):
    def change(tokenizer):
        pad = ("<pad>", tokenizer.convert_tokens_to_ids("<pad>"))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="<pad> $A", special_tokens=[pad]
        )

    async with with_tokenizer(small_model, tmp_path, base, change) as served:
        for prompt in ("go", ["go"], "<pad>go"):
            answer = await served.ask(prompt=prompt)
            assert answer.usage.prompt_tokens == 2


async def test_chats_without_a_system_role_and_with_arguments_of_the_template(
    base, tokenizer, small_model, tmp_path, monkeypatch
):
    def change(tokenizer):
        tokenizer.chat_template = (
            "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}"
            "{% for m in messages %}{{ m.content }}{% endfor %}{% if wide %} wide{% endif %}"
        )
        tokenizer.chat_template_args = {"wide": True}

    generate, seen = base.generate, []

    async def noted(prompt, *arguments):
        seen.append(tokenizer.decode(prompt))
        return await generate(prompt, *arguments)

    monkeypatch.setattr(base, "generate", noted)
    async with with_tokenizer(small_model, tmp_path, base, change) as served:
        for role in ("system", "developer"):
            said = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "go"}]
            await served.chat(messages=said)
        for given in ({"wide": False}, {"tools": []}, {"a b": 1}, [1], {}):
            body = {"model": "small", "messages": [{"role": "user", "content": "go"}]}
            body |= {"max_tokens": 1, "chat_template_kwargs": given}
            answer = await served.http.post("/v1/chat/completions", json=body)
            if answer.status_code != 200:
                assert answer.status_code == 400
                assert "chat_template_kwargs" in answer.json()["error"]["message"]
                seen.append("refused")
    asked = "Be brief.\n\ngo wide"
    assert seen[-7:] == [asked, asked, "go", "refused", "refused", "refused", "go wide"]


async def test_a_dead_engine_is_a_503(served, base, monkeypatch):
    async def dead(*_, **__):
        raise EngineDeadError("the engine is gone")

    monkeypatch.setattr(base, "generate", dead)
    for stream in (False, True):
        answer = await served.post(stream=stream)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "the engine is gone"


async def test_metrics_count_requests_tokens_and_deployments(deploying, make_adapter):
    async with deploying() as served:
        await served.ask(max_tokens=3)
        stream = await served.ask(max_tokens=8, stream=True)
        assert [piece async for piece in stream]
        await served.service.deploy(make_adapter(1))
        await served.http.get("/nowhere")
        await served.http.get("/admin/deployments")
        page = (await served.http.get("/metrics")).text
    assert 'rlforge_requests_total{path="/v1/completions",status="200"} 2.0' in page
    assert 'rlforge_requests_total{path="other",status="404"} 1.0' in page
    assert 'rlforge_requests_total{path="/admin/deployments",status="401"} 1.0' in page
    assert 'rlforge_deployments_total{end="live"} 2.0' in page  # the base model's, too
    assert "rlforge_current_version 1.0" in page
    assert "rlforge_first_token_seconds_count 1.0" in page
    assert 'rlforge_answers_total{arm="current"} 2.0' in page
    assert 'rlforge_tokens_total{kind="generated"}' in page
    assert 'rlforge_engine{what="generated_tokens"}' in page


# ---------------------------------------------------------------- admin, trials


async def test_the_admin_deploys_rolls_back_and_lists(
    deploying, make_adapter, monkeypatch, tmp_path
):
    monkeypatch.setenv(ADMIN_VARIABLE, TOKENS.admin)
    path = make_adapter(1)
    cut = make_adapter(2)
    (cut / "adapter_model.safetensors").write_bytes(b"short")
    async with deploying() as served:
        post, headers = served.http.post, bearer()
        deployed = await asyncio.to_thread(
            ask_admin, served.url, tmp_path, "deploy", adapter=str(path)
        )
        assert deployed["phase"] == "live"
        refused = await post("/admin/deploy", json={"adapter": str(cut)}, headers=headers)
        assert (refused.status_code, refused.json()["phase"]) == (409, "rejected")
        missing = await post("/admin/deploy", json={"adapter": "/nowhere"}, headers=headers)
        assert missing.status_code == 409
        assert "no such directory" in missing.json()["error"]["message"]
        answer = await served.ask(model="small@deploy-1")
        assert answer.system_fingerprint == "deploy-1"
        back = await asyncio.to_thread(ask_admin, f"{served.url}/v1/", tmp_path, "rollback")
        assert back["uid"] == "deploy-0"
        again = await post("/admin/rollback", json={}, headers=headers)
        assert again.status_code == 409
        listed = await asyncio.to_thread(ask_admin, served.url, tmp_path, "deployments")
        assert listed["current"] == "deploy-0"
        assert listed["trial"] is None
        assert [d["phase"] for d in listed["deployments"]] == ["live", "rolled_back", "rejected"]


async def test_outcomes_of_answers_decide_a_trial(deploying, make_adapter, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.serving.trials.MIN_OUTCOMES", 5)
    trial = AbTestConfig(shares=[0.5], max_outcomes=100)
    async with deploying(strategy="ab_test", ab=trial) as served:
        assert (await served.service.deploy(make_adapter(1))).phase == "trial"
        looked = await served.http.get("/admin/deployments", headers=bearer())
        assert looked.json()["trial"]["share"] == 0.5
        number = 0
        while served.service.trial is not None:
            answer = await served.ask(user=f"agent-{number}")
            reward = 0.9 * (answer.system_fingerprint == "deploy-1") + 0.1 * (number % 2)
            for counted in (True, False) if served.service.trial is not None else ():
                reported = (await served.report(answer.id, reward)).json()
                assert reported["version"] == answer.system_fingerprint
                assert reported["counted"] == counted
            number += 1
        assert served.service.current.uid == "deploy-1"
        made_up = answer.id[:-32] + "0" * 32
        for name in ("chatcmpl-12", made_up, answer.id.replace("deploy-", "deploy-1")):
            bad = await served.report(name, 1.0)
            assert bad.status_code == 400
            assert "is not the id of an answer" in bad.json()["error"]["message"]
        content = json.dumps({"id": answer.id, "reward": float("nan")})
        nan = await served.http.post(
            "/v1/outcomes", content=content, headers={"content-type": "application/json"}
        )
        assert nan.status_code == 400


async def test_one_client_cannot_decide_a_trial_with_made_up_users(
    deploying, make_adapter, monkeypatch
):
    """Without the administrators' token all that comes from one address counts as one user."""
    monkeypatch.setattr("rlforge.continuous.serving.trials.MIN_OUTCOMES", 5)
    trial = AbTestConfig(shares=[0.5], max_outcomes=30)
    async with deploying(strategy="ab_test", ab=trial) as served:
        await served.service.deploy(make_adapter(1))
        for number in range(30):
            looked = served.service.trial
            answer = await served.ask(user=f"made up {number}")
            reward = float(answer.system_fingerprint == "deploy-1")
            assert (await served.report(answer.id, reward, TOKENS.client)).json()["counted"]
        assert looked.test.p_value == 1.0
        assert served.service.current.uid == "deploy-0"  # undecided, and so as it was


async def test_only_answers_that_the_trial_chose_a_version_for_count_in_it(deploying, make_adapter):
    async with deploying(strategy="ab_test") as served:

        async def asked(model="small"):
            return (await served.ask(model=model)).id

        async def counted(answer_id):
            return (await served.report(answer_id, 1.0)).json()["counted"]

        before = await asked()
        await served.service.deploy(make_adapter(1))
        named = [await asked(f"small@deploy-{number}") for number in (0, 1)]
        during, later = await asked(), await asked()
        assert [await counted(one) for one in (before, *named, during)] == [False] * 3 + [True]
        await served.service.rollback()
        await served.service.deploy(make_adapter(2))
        assert not await counted(later)  # it belongs to the trial before


@pytest.mark.parametrize("reward", [1.001, -1e308])
async def test_a_reward_outside_of_its_bounds_is_a_400_that_names_them(served, reward):
    answer = await served.ask()
    refused = await served.report(answer.id, reward)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "reward"
    assert "in [-1, 1] (serve.outcome_low, serve.outcome_high)" in error["message"]


# ---------------------------------------------------------------- tools

CALLS = (
    'Let me see. <tool_call>{"name": "add", "arguments": {"a": 2, "b": "ü"}}</tool_call>\n'
    '<tool_call>{"name": "add"}</tool_call>'
)


@pytest.fixture
def writes(base, tokenizer, monkeypatch):
    """Has the engine write a text; gives the list of what it is asked then."""

    def write(text, finish_reason="stop"):
        seen, ids = [], tuple(tokenizer.encode(text, add_special_tokens=False))

        async def generate(prompt, params, policy, on_tokens=None):
            seen.append(tokenizer.decode(list(prompt)))
            for token in ids if on_tokens is not None else ():
                on_tokens((token,))
            return Completion(
                text=text,
                prompt_token_ids=tuple(prompt),
                token_ids=ids,
                logprobs=(-0.1,) * len(ids),
                finish_reason=finish_reason,
                policy_uid=policy.uid,
            )

        monkeypatch.setattr(base, "generate", generate)
        return seen

    return write


@pytest.fixture
def prompts(writes):
    return writes(CALLS)


async def test_calls_of_tools_are_in_openais_form_and_their_results_in_the_next_prompt(
    tool_served, prompts
):
    messages = [{"role": "user", "content": "2 + 2"}]
    answer = await tool_served.chat(messages=messages, tools=[ADDING])
    assert prompts[-1] == "may call add. user 2 + 2 "
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    first, second = choice.message.tool_calls or ()
    assert (first.type, first.function.name) == ("function", "add")
    assert json.loads(first.function.arguments) == {"a": 2, "b": "ü"}
    assert second.function.arguments == "{}"
    assert len({first.id, second.id}) == 2
    messages += [
        choice.message.model_dump() | {"annotations": []},
        {"role": "tool", "content": "4", "tool_call_id": first.id},
    ]
    again = await tool_served.chat(messages=messages, tools=[ADDING])
    assert prompts[-1] == (
        "may call add. user 2 + 2 assistant Let me see. calls add of 2 calls add of  tool 4 "
    )
    others = {call.id for call in again.choices[0].message.tool_calls}
    assert others.isdisjoint({first.id, second.id})


async def test_an_answer_is_taken_back_as_the_client_has_it(served):
    said = {"role": "user", "content": "go"}
    answer = (await served.chat(messages=[said])).choices[0].message
    for back in (answer, answer.model_dump(), answer.model_dump() | {"annotations": []}):
        await served.chat(messages=[said, back, said])
    with pytest.raises(openai.BadRequestError, match="refusal"):
        await served.chat(messages=[said, answer.model_dump() | {"refusal": "No."}, said])


async def test_a_stream_ends_with_the_calls_of_tools(tool_served, prompts):
    stream = await tool_served.chat(tools=[ADDING], stream=True)
    chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me see."
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [(call.index, call.function.name) for call in calls] == [(0, "add"), (1, "add")]
    assert chunks[-1].finish_reason == "tool_calls"


async def test_where_no_tool_is_to_be_chosen_calls_are_text(tool_served, prompts):
    asked = {"tools": [ADDING], "tool_choice": "none"}
    answer = await tool_served.chat("2 + 2", **asked)
    stream = await tool_served.chat("2 + 2", **asked, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert prompts[-2:] == ["user 2 + 2 "] * 2
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == "".join(pieces) == CALLS
    assert len(pieces) > 10


async def test_without_parallel_calls_the_first_one_counts(tool_served, prompts):
    asked = {"tools": [ADDING], "tool_choice": "auto", "parallel_tool_calls": False}
    answer = await tool_served.chat(**asked, metadata={"purpose": "sums"}, store=False)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"a": 2, "b": "ü"}
    assert answer.choices[0].message.content == "Let me see."


async def test_an_answer_has_the_format_that_was_asked_for(served):
    async def said(seed, stream, **given):
        answer = await served.chat(stream=stream, seed=seed, max_tokens=40, **given)
        if not stream:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    for stream in (False, True):
        colours = {await said(seed, stream, response_format=COLOUR) for seed in range(5)}
        assert colours == {'"red"', '"blue"'}
        free, plain = {"response_format": {"type": "json_object"}}, {"type": "text"}
        assert (await said(0, stream, **free)).startswith("{")
        assert await said(0, stream) == await said(0, stream, response_format=plain)


async def read(served, stream, **asked):
    answer = await served.chat(stream=stream, **asked)
    if not stream:
        choice = answer.choices[0]
        calls = [call.function.name for call in choice.message.tool_calls or ()]
        return choice.message.content or "", calls, choice.finish_reason
    chunks = [chunk.choices[0] async for chunk in answer]
    calls = [call.function.name for c in chunks for call in c.delta.tool_calls or ()]
    return "".join(c.delta.content or "" for c in chunks), calls, chunks[-1].finish_reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("written", "content", "calls", "reason"),
    [
        ("So: <tool_call>", "So:", [], "length"),
        ('<tool_call>{"name": "add"', "", [], "length"),
        ('a <tool_call>{"name": "add"}</tool_call>\n<tool_ca', "a", ["add"], "length"),
        ('a <tool_call>{"name": "add"}</tool_call> b', "a  b", ["add"], "length"),
        ('a <tool_call>{"name": "add"}</tool_call>', "a", ["add"], "tool_calls"),
        ("2 <", "2 <", [], "length"),
        ("  as it is ", "  as it is ", [], "length"),
    ],
)
async def test_what_is_left_of_an_answer_that_may_call_tools_and_is_cut(
    tool_served, writes, stream, written, content, calls, reason
):
    writes(written, "length")
    assert await read(tool_served, stream, tools=[ADDING]) == (content, calls, reason)
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        must = await read(tool_served, stream, tools=[ADDING], tool_choice=choice)
        assert must == ("", calls, reason)


async def test_a_model_of_random_weights_calls_the_tools_that_it_must(tool_served):
    asked = {"tools": [ADDING, WAIT], "max_tokens": 120}
    named = {"type": "function", "function": {"name": "add"}}
    for seed, choice in enumerate(["required", "required", named]):
        given = {"tool_choice": choice, "parallel_tool_calls": False, "seed": seed}
        answer = await tool_served.chat(**asked, **given)
        (call,) = answer.choices[0].message.tool_calls or ()
        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "tool_calls"
        if choice == named or call.function.name == "add":
            assert call.function.name == "add"
            assert json.loads(call.function.arguments)["a"] in range(100)
    free = await tool_served.chat(**asked, seed=1)
    assert free.choices[0].message.tool_calls is None
