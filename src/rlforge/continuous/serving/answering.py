"""From an OpenAI request to tokens, and from the engine's tokens to pieces of text."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol, Self

from rlforge.continuous.serving.conversations import conversation_tokens, takes_tools
from rlforge.continuous.serving.envelope import ScoredToken
from rlforge.continuous.serving.protocol import (
    BadRequestError,
    ChatRequest,
    CompletionRequest,
    Sampling,
)
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.text import TextStream, token_bytes
from rlforge.engines.base import check_request
from rlforge.engines.grammars import check_grammar
from rlforge.errors import ConfigError, EngineError
from rlforge.games.encoding import text_ids
from rlforge.types import Completion, PolicyRef, SamplingParams, value


@value
class Limits:
    """Limits of the model, and the sampling parameters of requests that name none.

    model_len: tokens of prompt and answer together. defaults: with the stop tokens of every answer.
    """

    model_len: int
    vocab_size: int
    defaults: SamplingParams


@value
class CheckedRequest:
    """A checked request. pinned: the version that it names; None: that of its ``user``.

    trial: number of the deployment on trial that chooses its version; None where none does.
    """

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    stops: tuple[str, ...]
    user: str | None
    pinned: PolicyRef | None
    trial: int | None


@value
class Piece:
    """The next text of an answer of version ``policy``."""

    text: str
    policy: PolicyRef


@value
class End:
    """The end of an answer. completion: None where a stop string ended it early.

    tokens: number generated. scored: up to the stop string, where log-probabilities are wanted.
    """

    text: str
    tokens: int
    finish_reason: str
    policy: PolicyRef
    completion: Completion | None
    scored: Sequence[ScoredToken] | None = None


@value
class Answered:
    """An answer that a client got.

    user: 16 digits that stand for the user. arguments: of the chat template. text: without what
    follows a stop string; completion: None then.
    """

    id: str
    user: str
    conversation: Sequence[Mapping[str, Any]] | str
    tools: Sequence[Mapping[str, Any]]
    params: SamplingParams
    text: str
    completion: Completion | None
    arguments: Mapping[str, Any] | None = None


class AnswerObserver(Protocol):
    """Sees the answers of a service, and their outcomes."""

    async def answered(self, answer: Answered) -> None:
        """A client got ``answer``. Raises nothing."""

    async def rewarded(self, answer_id: str, reward: float) -> bool:
        """A client reports the reward of an answer; whether the observer made use of it."""


class TokenStream:
    """The tokens of one request: ``async for`` gives them as the engine draws them.

    as_drawn: before the answer is complete. policy: known with the first tokens.
    """

    policy: PolicyRef

    def __init__(
        self, service: DeploymentService, asked: CheckedRequest, *, as_drawn: bool
    ) -> None:
        self.count = 0
        self._queue: asyncio.Queue[Sequence[int] | None] = asyncio.Queue()
        self._task = asyncio.create_task(
            service.generate(
                asked.prompt_token_ids,
                asked.params,
                user=asked.user,
                policy=asked.pinned,
                on_tokens=self._queue.put_nowait if as_drawn else None,
                on_policy=self._set_policy,
            )
        )
        self._task.add_done_callback(lambda _: self._queue.put_nowait(None))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[int]:
        ids = await self._queue.get()
        if ids is None:
            raise StopAsyncIteration
        self.count += len(ids)
        return ids

    async def completion(self) -> Completion:
        """The whole answer. Raises EngineError when there is none."""
        return await self._task

    async def cancel(self) -> None:
        """Cancel the request in the engine, unless it has been answered."""
        if not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _set_policy(self, policy: PolicyRef) -> None:
        self.policy = policy


class Answering:
    """Reads requests with ``tokenizer`` and passes them to ``service``.

    model_name: the served model's name in requests; ``NAME@deploy-3`` names one version of it.
    """

    def __init__(
        self, service: DeploymentService, tokenizer: Any, limits: Limits, model_name: str
    ) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ConfigError(
                f"model.name: {type(tokenizer).__name__} is a tokenizer in Python, and answers are "
                "decoded by the library tokenizers; serve a model that has a tokenizer.json"
            )
        self._service, self._tokenizer, self._limits = service, tokenizer, limits
        self.model_name = model_name

    def models(self) -> dict[str, Deployment]:
        """The deployments that requests may name, by the names to use."""
        served = self._service.served()
        return {self.model_name: served[0]} | {f"{self.model_name}@{d.uid}": d for d in served}

    def model(self, name: str) -> Deployment:
        """The deployment called ``name``. Raises BadRequestError with status 404."""
        models = self.models()
        if name not in models:
            raise BadRequestError(
                f"the model {name!r} is not served; there are {', '.join(models)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return models[name]

    def read(self, request: Sampling) -> CheckedRequest:
        """Check a request and encode its prompt. Raises BadRequestError."""
        limits = self._limits
        named, prompt = self.model(request.model), self._prompt(request)
        pinned = None if request.model == self.model_name else named.policy()
        trial = self._service.trial if pinned is None else None
        given: dict[str, Any] = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "min_p": request.min_p,
            "max_tokens": request.limit(),
            # A request that is repeated because its engine died must draw the same tokens.
            "seed": secrets.randbits(63) if request.seed is None else request.seed,
            "grammar": self._grammar(request),
            "model_logprobs": request.wants_logprobs(),
        }
        params = dataclasses.replace(
            limits.defaults, **{key: each for key, each in given.items() if each is not None}
        )
        where = "messages" if request.kind == "chat" else "prompt"
        try:
            check_request(
                prompt,
                params,
                named.policy(),
                max_model_len=limits.model_len,
                vocab_size=limits.vocab_size,
            )
        except EngineError as error:
            too_long = len(prompt) >= limits.model_len
            code = "context_length_exceeded" if too_long else "invalid_value"
            raise BadRequestError(str(error), param=where, code=code) from error
        return CheckedRequest(
            prompt_token_ids=prompt,
            params=params,
            stops=request.stops(),
            user=request.user,
            pinned=pinned,
            trial=None if trial is None else trial.deployment.number,
        )

    def conversation(
        self, request: Sampling, checked: CheckedRequest
    ) -> Sequence[Mapping[str, Any]] | str:
        """The messages of a request, or its prompt as text."""
        if isinstance(request, ChatRequest):
            return [message.plain() for message in request.messages]
        return str(self._tokenizer.decode(list(checked.prompt_token_ids)))

    async def pieces(
        self, asked: CheckedRequest, *, stream: bool
    ) -> AsyncGenerator[Piece | End, None]:
        """The pieces of the answer as they are generated, if ``stream``; then its ``End``.

        With log-probabilities the whole answer is generated, also behind a stop string. Closing the
        iterator, or a stop string, cancels the request. Raises EngineError when there is no answer.
        """
        text = TextStream(self._tokenizer, asked.stops)
        scored = asked.params.model_logprobs
        as_drawn = (stream or bool(asked.stops)) and not scored
        tokens = TokenStream(self._service, asked, as_drawn=as_drawn)
        completion, finish_reason, given = None, "stop", None
        try:
            async for ids in tokens:
                if (piece := text.add(ids)) and stream:
                    yield Piece(text=piece, policy=tokens.policy)
                if text.stopped:
                    break
            else:
                completion = await tokens.completion()
                tokens.count = len(completion.token_ids)
                if scored:
                    tokens.count = self._until_stop(text, completion)
                    given = self._scored(completion, tokens.count)
                if (piece := text.finish(completion.token_ids)) and stream and not scored:
                    yield Piece(text=piece, policy=tokens.policy)
                finish_reason = "stop" if text.stopped else completion.finish_reason
                if tokens.count < len(completion.token_ids):
                    completion = None
            yield End(
                text=text.text,
                tokens=tokens.count,
                finish_reason=finish_reason,
                policy=tokens.policy,
                completion=completion,
                scored=given,
            )
        finally:
            await tokens.cancel()

    def _until_stop(self, text: TextStream, completion: Completion) -> int:
        """Read an answer up to its first stop string; returns the number of tokens."""
        for count, token in enumerate(completion.token_ids, 1):
            text.add([token])
            if text.stopped:
                return count
        return len(completion.token_ids)

    def _scored(self, completion: Completion, count: int) -> list[ScoredToken]:
        ids = completion.token_ids
        each = zip(ids, token_bytes(self._tokenizer, ids), completion.model_logprobs, strict=True)
        return [
            ScoredToken(
                text=data.decode(errors="replace") or self._tokenizer.decode([token]),
                data=data,
                logprob=logprob,
            )
            for token, data, logprob in [*each][:count]
        ]

    def _grammar(self, request: Sampling) -> str | None:
        grammar = request.grammar()
        if grammar is not None:
            try:
                check_grammar(grammar)
            except ValueError as error:
                where = "tools" if request.offered() else "response_format"
                raise BadRequestError(
                    f"the schema is not supported: {error}", param=where
                ) from None
        return grammar

    def _prompt(self, request: Sampling) -> tuple[int, ...]:
        if isinstance(request, ChatRequest):
            if not self._tokenizer.chat_template:
                raise BadRequestError(
                    "this model has no chat template; use /v1/completions", param="messages"
                )
            tools = request.offered()
            try:
                if tools and not takes_tools(self._tokenizer, tools):
                    raise BadRequestError("the model's chat template knows no tools", param="tools")
                messages = [message.plain() for message in request.messages]
                arguments = request.chat_template_kwargs
                return conversation_tokens(self._tokenizer, messages, tools, arguments)
            except ValueError as error:
                raise BadRequestError(str(error), param="messages") from error
        assert isinstance(request, CompletionRequest)
        prompt = request.prompt
        return text_ids(self._tokenizer, prompt) if isinstance(prompt, str) else tuple(prompt)
