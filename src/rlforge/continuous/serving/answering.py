"""From an OpenAI request to tokens, and from the engine's tokens to OpenAI's answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.serving.conversations import (
    END,
    conversation_tokens,
    takes_tools,
    tool_calls,
    without_calls,
)
from rlforge.continuous.serving.errors import RequestError, error_body
from rlforge.continuous.serving.protocol import ChatRequest, CompletionRequest, Sampling
from rlforge.continuous.serving.records import Answered, AnswerObserver, Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.text import (
    ScoredToken,
    TextStream,
    chat_logprobs,
    scored_tokens,
    text_logprobs,
)
from rlforge.continuous.serving.tokens import AnswerIds
from rlforge.engines.base import check_request
from rlforge.engines.grammars import check_grammar
from rlforge.errors import ConfigError, EngineError
from rlforge.games.encoding import text_ids
from rlforge.models import load
from rlforge.types import Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)


#: Most tokens of an answer whose request names no limit.
DEFAULT_MAX_TOKENS = 256


class Answering:
    """Reads requests to the model of ``config``, and has ``service`` answer them.

    In requests the model is called by the configuration's name, and one version of it
    ``NAME@deploy-3``. observer: sees the answers.
    """

    def __init__(
        self,
        service: DeploymentService,
        config: ServingConfig | ContinuousConfig,
        ids: AnswerIds,
        observer: AnswerObserver | None = None,
    ) -> None:
        tokenizer = load.load_tokenizer(config.model)
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"model.name: {type(tokenizer).__name__} is a tokenizer in Python, and answers are "
                "decoded by the library tokenizers; serve a model that has a tokenizer.json"
            )
        self.service, self.tokenizer, self.ids, self.observer = service, tokenizer, ids, observer
        self.timeout_s, self._name = config.serve.request_timeout_s, config.name
        described = load.load_model_config(config.model).get_text_config()
        self._model_len = min(config.engine.max_model_len, load.positions(described))
        # Clients may send token ids as a prompt, which must lie below it.
        self._vocab_size = described.vocab_size
        self._defaults = dataclasses.replace(
            config.engine.sampling(load.stop_token_ids(config.model, tokenizer)),
            max_tokens=min(DEFAULT_MAX_TOKENS, config.engine.max_tokens),
        )

    def models(self) -> dict[str, Deployment]:
        """The deployments that requests may name, by the names to use."""
        served, name = self.service.served(), self._name
        return {name: served[0]} | {f"{name}@{d.uid}": d for d in served}

    def model(self, name: str) -> Deployment:
        """The deployment called ``name``; RequestError with status 404."""
        models = self.models()
        if name not in models:
            raise RequestError(
                f"the model {name!r} is not served; there are {', '.join(models)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return models[name]

    def begin(self, request: Sampling) -> Answer:
        """Check a request and encode its prompt; raises RequestError."""
        named, prompt = self.model(request.model), self._prompt(request)
        given: dict[str, Any] = {
            **request.model_dump(include={"temperature", "top_p", "top_k", "min_p"}),
            "max_tokens": request.limit(),
            # A request that is repeated because its engine died must draw the same tokens.
            "seed": secrets.randbits(63) if request.seed is None else request.seed,
            "grammar": self._grammar(request),
            "model_logprobs": request.wants_logprobs(),
        }
        params = dataclasses.replace(
            self._defaults, **{key: each for key, each in given.items() if each is not None}
        )
        try:
            check_request(
                prompt,
                params,
                named.policy(),
                max_model_len=self._model_len,
                vocab_size=self._vocab_size,
            )
        except EngineError as error:
            where = "messages" if request.kind == "chat" else "prompt"
            # Clients cut their conversation at this code.
            too_long = len(prompt) >= self._model_len
            code = "context_length_exceeded" if too_long else "invalid_value"
            raise RequestError(str(error), param=where, code=code) from error
        # A request that names a version gets it, whichever version its user has in a trial.
        pinned = None if request.model == self._name else named.policy()
        return Answer(self, request, prompt, params, pinned)

    def _grammar(self, request: Sampling) -> str | None:
        if (grammar := request.grammar()) is not None:
            try:
                check_grammar(grammar)
            except ValueError as error:
                where = "tools" if request.offered() else "response_format"
                message = f"the schema is not supported: {error}"
                raise RequestError(message, param=where) from None
        return grammar

    def _prompt(self, request: Sampling) -> tuple[int, ...]:
        if isinstance(request, ChatRequest):
            if not self.tokenizer.chat_template:
                raise RequestError(
                    "this model has no chat template; use /v1/completions", param="messages"
                )
            tools = request.offered()
            try:
                if tools and not takes_tools(self.tokenizer, tools):
                    raise RequestError("the model's chat template knows no tools", param="tools")
                arguments = request.chat_template_kwargs
                return conversation_tokens(self.tokenizer, request.said(), tools, arguments)
            except ValueError as error:
                raise RequestError(str(error), param="messages") from error
        assert isinstance(request, CompletionRequest)
        prompt = request.prompt
        return text_ids(self.tokenizer, prompt) if isinstance(prompt, str) else tuple(prompt)


class Answer:
    """The answer to one checked request: ``complete`` and ``body`` give it whole, or ``chunks``.

    ``policy`` is known with the first text. text, finish_reason, tokens: final once it has
    ``ended``.
    """

    policy: PolicyRef

    def __init__(
        self,
        answering: Answering,
        request: Sampling,
        prompt: tuple[int, ...],
        params: SamplingParams,
        pinned: PolicyRef | None,
    ) -> None:
        self._by, self._request, self._params, self._pinned = answering, request, params, pinned
        self.prompt = prompt
        trial = answering.service.trial if pinned is None else None
        # The outcome counts in the trial that chose the version, and in no other.
        self._trial = None if trial is None else trial.deployment.number
        self._deadline = asyncio.get_running_loop().time() + answering.timeout_s
        self._created = int(time.time())
        self.ended, self.text, self.finish_reason, self.tokens = False, "", "stop", 0
        self._completion: Completion | None = None
        self._scored: list[ScoredToken] | None = None

    @cached_property
    def id(self) -> str:
        prefix = "chatcmpl" if self._request.kind == "chat" else "cmpl"
        user = self._request.user
        return self._by.ids.new(prefix, self.policy.uid, user, trial=self._trial)

    async def complete(self) -> None:
        """Generate it to the end; raises EngineError, or TimeoutError at its time limit."""
        async for _ in self._pieces(stream=False):
            pass

    async def chunks(self) -> AsyncGenerator[dict[str, Any]]:
        """Generate it; OpenAI's chunks, as they come.

        Raises as ``complete`` does before the first chunk; a later failure is the last chunk.
        """
        first = True
        # An answer that may call tools is sent at once: only its end separates text from calls.
        streamed = not self._request.offered() and not self._params.model_logprobs
        async with contextlib.aclosing(self._pieces(stream=streamed)) as pieces:
            try:
                async for piece in pieces:
                    yield self._chunk(self._delta(first, content=piece))
                    first = False
            except (EngineError, TimeoutError) as error:
                # Before the first chunk the error can still have its own status.
                if first:
                    raise
                log.warning("a stream of %s ended early: %s", self.policy.uid, error or "time")
                said = str(error) or "time is up"
                yield error_body(said, "server_error", code="stream_broken")
                return
        for chunk in self._last_chunks(self.text if not streamed else "", first):
            yield chunk
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield self._whole([], chunk=True) | {"usage": self._usage()}

    async def _pieces(self, *, stream: bool) -> AsyncGenerator[str]:
        """Generate the answer; if ``stream``, the pieces of its text as they are drawn."""
        text = TextStream(self._by.tokenizer, self._request.stops())
        scored = self._params.model_logprobs
        # Log-probabilities come only with the whole answer, also behind a stop string.
        as_drawn = not scored and (stream or bool(self._request.stops()))
        drawn: asyncio.Queue[Sequence[int] | TimeoutError | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        # One timer for the whole answer: one around each token takes a tenth of a stream's time.
        late = loop.call_at(self._deadline, drawn.put_nowait, TimeoutError())
        task = loop.create_task(
            self._by.service.generate(
                self.prompt,
                self._params,
                user=self._request.user,
                policy=self._pinned,
                on_tokens=drawn.put_nowait if as_drawn else None,
                on_policy=partial(setattr, self, "policy"),
            )
        )
        task.add_done_callback(lambda _: drawn.put_nowait(None))
        try:
            while not text.stopped and (ids := await drawn.get()) is not None:
                if isinstance(ids, TimeoutError):
                    raise ids
                self.tokens += len(ids)
                if (piece := text.add(ids)) and stream:
                    yield piece
            last = "" if text.stopped else self._finish(text, await task)
        finally:
            late.cancel()
            # The client is gone or a stop string came: the engine need not go on.
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        self.text = text.text
        # The observer comes before the client has the answer's end, and may report its outcome.
        await self._observe()
        self.ended = True
        if last and stream:
            yield last

    def _finish(self, text: TextStream, completion: Completion) -> str:
        ids = completion.token_ids
        self.tokens = len(ids)
        if self._params.model_logprobs:
            self.tokens = text.add_until_stop(ids)
            self._scored = scored_tokens(self._by.tokenizer, completion)[: self.tokens]
        last = text.finish(ids)
        if not text.stopped:
            self.finish_reason = completion.finish_reason
        # A shorter answer was cut by a stop string: its text is not what the model decided.
        if self.tokens == len(ids):
            self._completion = completion
        return last

    async def _observe(self) -> None:
        observer, request = self._by.observer, self._request
        if observer is None:
            return
        known = self._by.ids.read(self.id)
        assert known is not None, "it is one of ours"
        chat = request if isinstance(request, ChatRequest) else None
        await observer.answered(
            Answered(
                id=self.id,
                user=known.user,
                conversation=(
                    str(self._by.tokenizer.decode(list(self.prompt)))
                    if chat is None
                    else chat.said()
                ),
                tools=request.offered(),
                params=self._params,
                text=self.text,
                completion=self._completion,
                arguments=None if chat is None else chat.chat_template_kwargs,
            )
        )

    # ------------------------------------------------------------ OpenAI's form

    def body(self) -> dict[str, Any]:
        content, calls, reason = self._read(self.text)
        choice: dict[str, Any] = {"text": self.text}
        if self._request.kind == "chat":
            called = {"tool_calls": calls} if calls else {}
            choice = {"message": {"role": "assistant", "content": content, **called}}
        choice |= {"index": 0, "logprobs": self._logprobs(), "finish_reason": reason}
        return self._whole([choice]) | {"usage": self._usage()}

    def _last_chunks(self, rest: str, first: bool) -> Iterator[dict[str, Any]]:
        """The end of a stream. rest: rest of its text, all where the model may call tools."""
        content, calls, reason = self._read(rest)
        logprobs = self._logprobs()
        if content or calls or logprobs:
            delta = self._delta(first, content=content)
            if calls:
                delta["delta"]["tool_calls"] = [
                    {"index": n, **call} for n, call in enumerate(calls)
                ]
            yield self._chunk(delta | {"logprobs": logprobs})
            first = False
        yield self._chunk(self._delta(first) | {"finish_reason": reason})

    def _read(self, text: str) -> tuple[str | None, list[dict[str, Any]], str]:
        request, reason = self._request, self.finish_reason
        if not isinstance(request, ChatRequest) or not request.offered():
            return text, [], reason
        cut = reason == "length"
        calls = list(tool_calls(text, f"call_{self.id[-12:]}"))
        for call in calls:
            called = call["function"]
            called["arguments"] = json.dumps(called["arguments"], ensure_ascii=False)
        # The beginning of a call that max_tokens cuts is no text for the client.
        content = "" if request.must_call else without_calls(text, cut=cut)
        # An answer without calls keeps its white space, which ``without_calls`` strips.
        if not calls and content == text.strip():
            content = text
        if calls and (not cut or text.rstrip().endswith(END)):
            reason = "tool_calls"
        return content or None, calls if request.parallel else calls[:1], reason

    def _delta(self, first: bool, **said: str | None) -> dict[str, Any]:
        if self._request.kind == "text":
            return {"text": said.get("content") or ""}
        return {"delta": ({"role": "assistant"} if first else {}) | said}

    def _chunk(self, fields: dict[str, Any]) -> dict[str, Any]:
        choice = {"index": 0, "finish_reason": None, "logprobs": None, **fields}
        return self._whole([choice], chunk=True)

    def _whole(self, choices: list[dict[str, Any]], *, chunk: bool = False) -> dict[str, Any]:
        chat = "chat.completion.chunk" if chunk else "chat.completion"
        return {
            "id": self.id,
            "object": chat if self._request.kind == "chat" else "text_completion",
            "created": self._created,
            "model": self._request.model,
            "system_fingerprint": self.policy.uid,
            "choices": choices,
        }

    def _logprobs(self) -> dict[str, Any] | None:
        if self._scored is None:
            return None
        write = chat_logprobs if self._request.kind == "chat" else text_logprobs
        return write(self._scored)

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": len(self.prompt),
            "completion_tokens": self.tokens,
            "total_tokens": len(self.prompt) + self.tokens,
        }
