"""The HTTP application: OpenAI's endpoints, outcomes, health, metrics and admin calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from rlforge.continuous.config.serving import ServeConfig
from rlforge.continuous.serving.adapter import find_source
from rlforge.continuous.serving.answering import (
    Answered,
    Answering,
    AnswerObserver,
    CheckedRequest,
    End,
    Piece,
)
from rlforge.continuous.serving.envelope import Envelope, error_body, usage
from rlforge.continuous.serving.guard import network
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.protocol import (
    BadRequestError,
    ChatRequest,
    CompletionRequest,
    DeployRequest,
    OutcomeRequest,
    Sampling,
)
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.tokens import AnswerIds, Tokens
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError, EngineError
from rlforge.types import PolicyRef

log = logging.getLogger(__name__)

#: The header that names the version that answered.
_VERSION = "x-rlforge-version"

_EXPLAINED = (
    RequestValidationError,
    BadRequestError,
    DeploymentError,
    EngineError,
    TimeoutError,
    HTTPException,
    Exception,
)


class Api:
    """The endpoints of one service."""

    def __init__(
        self,
        service: DeploymentService,
        engine: Engine,
        answering: Answering,
        config: ServeConfig,
        tokens: Tokens,
        metrics: Metrics,
        ready: Callable[[], bool],
        observer: AnswerObserver | None,
    ) -> None:
        """ready: whether the engine answers. observer: sees answers and outcomes."""
        self._service, self._engine, self._answering = service, engine, answering
        self._config, self._metrics, self._ready = config, metrics, ready
        self._tokens, self._ids = tokens, AnswerIds(tokens.admin)
        self._observer = observer
        self._under_way = 0

    # ------------------------------------------------------------ OpenAI

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        return await self._complete(asked, request)

    async def completions(self, asked: CompletionRequest, request: Request) -> Response:
        """``POST /v1/completions``."""
        return await self._complete(asked, request)

    async def models(self) -> Response:
        """``GET /v1/models``."""
        rows = [_model(name, found) for name, found in self._answering.models().items()]
        return JSONResponse({"object": "list", "data": rows})

    async def model(self, name: str) -> Response:
        """``GET /v1/models/NAME``."""
        return JSONResponse(_model(name, self._answering.model(name)))

    async def outcome(self, given: OutcomeRequest, request: Request) -> Response:
        """``POST /v1/outcomes``: the reward of the answer ``id``.

        counted: in the trial under way. learned: it becomes a decision to learn from.
        """
        low, high = self._config.outcome_low, self._config.outcome_high
        if not low <= given.reward <= high:
            raise BadRequestError(
                f"a reward lies in [{low:g}, {high:g}] (serve.outcome_low, serve.outcome_high), "
                f"and {given.reward:g} does not",
                param="reward",
            )
        known = self._ids.read(given.id)
        if known is None:
            raise BadRequestError(
                f"{given.id!r} is not the id of an answer of this service", param="id"
            )
        trial = self._service.trial
        counted = (
            trial is not None
            and known.trial == trial.deployment.number
            and await self._service.record_outcome(
                given.reward, uid=known.uid, key=given.id, cluster=self._judge(request, known.user)
            )
        )
        self._metrics.outcomes.labels(str(counted).lower()).inc()
        seen = self._observer
        learned = seen is not None and await seen.rewarded(given.id, given.reward)
        return JSONResponse(
            {"id": given.id, "version": known.uid, "counted": counted, "learned": learned}
        )

    def _judge(self, request: Request, user: str) -> str:
        """16 digits that stand for who judges an answer to ``user``.

        Administrators' programs report what each user found. Other clients can call their users
        what they like, so all that comes from one address is one judgement.
        """
        header = request.headers.get("authorization", "").encode("latin-1")
        if self._tokens.allow(header, admin=True):
            return user
        host = request.client.host if request.client is not None else ""
        return self._ids.stand_in(f"address {network(host)}")

    # ------------------------------------------------------------ operation

    async def health(self) -> Response:
        """``GET /health``: the process runs."""
        return JSONResponse({"status": "ok"})

    async def readiness(self) -> Response:
        """``GET /ready``: the engine answers."""
        if self._ready():
            return JSONResponse({"status": "ready", "version": self._service.current.uid})
        return JSONResponse({"status": "the engine does not answer"}, status_code=503)

    async def metrics(self) -> Response:
        """``GET /metrics``, for Prometheus."""
        return PlainTextResponse(
            self._metrics.render(self._service, self._engine),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    async def deploy(self, asked: DeployRequest) -> Response:
        """``POST /admin/deploy``: responds when the deployment has ended."""
        source = await asyncio.to_thread(find_source, Path(asked.adapter), asked.checkpoint)
        deployment = await self._service.deploy(source)
        return JSONResponse(deployment.to_json(), status_code=200 if deployment.succeeded else 409)

    async def rollback(self) -> Response:
        """``POST /admin/rollback``."""
        return JSONResponse((await self._service.rollback()).to_json())

    async def deployments(self) -> Response:
        """``GET /admin/deployments``: the current one, the trial under way, and all of them."""
        trial = self._service.trial
        about = None
        if trial is not None:
            about = {"version": trial.deployment.uid, "share": trial.share, "so_far": str(trial)}
        history = [deployment.to_json() for deployment in self._service.history()]
        return JSONResponse(
            {"current": self._service.current.uid, "trial": about, "deployments": history}
        )

    # ------------------------------------------------------------ answers

    async def _complete(self, asked: Sampling, request: Request) -> Response:
        checked = self._answering.read(asked)
        if self._under_way >= self._config.max_concurrent:
            raise HTTPException(
                429,
                f"{self._config.max_concurrent} requests are being answered "
                "(serve.max_concurrent); try again",
                {"retry-after": "1"},
            )
        self._metrics.tokens.labels("prompt").inc(len(checked.prompt_token_ids))
        if asked.stream:
            return await self._stream(asked, checked)
        with self._counted():
            end = await _unless_disconnected(request, self._whole(checked))
        self._count_tokens(end)
        envelope = self._envelope(asked, checked, end.policy)
        await self._observe(envelope.id, asked, checked, end)
        answer = envelope.answer(end.text, end.finish_reason, end.scored)
        counts = usage(len(checked.prompt_token_ids), end.tokens)
        headers = {_VERSION: end.policy.uid}
        return JSONResponse(answer | {"usage": counts}, headers=headers)

    async def _whole(self, checked: CheckedRequest) -> End:
        async with asyncio.timeout(self._config.request_timeout_s):
            async with contextlib.aclosing(self._answering.pieces(checked, stream=False)) as pieces:
                end = await anext(pieces)
        assert isinstance(end, End)
        return end

    async def _stream(self, asked: Sampling, checked: CheckedRequest) -> Response:
        """Errors before the first piece have a status of their own; later ones end the stream."""
        started = time.perf_counter()
        deadline = asyncio.get_running_loop().time() + self._config.request_timeout_s
        counted = contextlib.ExitStack()
        counted.enter_context(self._counted())
        # Where tools may be called, the answer is sent at once: only its end tells text from calls.
        pieces = self._answering.pieces(checked, stream=not asked.offered())
        try:
            async with asyncio.timeout_at(deadline):
                first = await anext(pieces)
        except BaseException:
            counted.close()
            await pieces.aclose()
            raise
        self._metrics.first_token.observe(time.perf_counter() - started)
        envelope = self._envelope(asked, checked, first.policy)
        usage_wanted = asked.stream_options is not None and asked.stream_options.include_usage
        prompt = len(checked.prompt_token_ids) if usage_wanted else None

        async def events() -> AsyncIterator[str]:
            with counted:
                async with contextlib.aclosing(pieces):
                    async for event in self._events(
                        envelope, asked, checked, first, pieces, deadline, prompt
                    ):
                        yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
                yield "data: [DONE]\n\n"

        return StreamingResponse(
            events(), media_type="text/event-stream", headers={_VERSION: first.policy.uid}
        )

    async def _events(
        self,
        envelope: Envelope,
        asked: Sampling,
        checked: CheckedRequest,
        first: Piece | End,
        pieces: AsyncGenerator[Piece | End, None],
        deadline: float,
        prompt: int | None,
    ) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream. prompt: number of its tokens, where usage is requested.

        The status is sent already, so a failure is a chunk of the stream, the last one.
        """
        piece, is_first = first, True
        try:
            while isinstance(piece, Piece):
                yield envelope.piece(piece.text, first=is_first)
                is_first = False
                async with asyncio.timeout_at(deadline):
                    piece = await anext(pieces)
        except (EngineError, TimeoutError) as error:
            log.warning("a stream of %s ended early: %s", envelope.uid, error or "time is up")
            yield error_body(str(error) or "time is up", "server_error", code="stream_broken")
            return
        self._count_tokens(piece)
        await self._observe(envelope.id, asked, checked, piece)
        sent = "" if asked.offered() or asked.wants_logprobs() else piece.text
        rest = piece.text[len(sent) :]
        ending = envelope.last_pieces(rest, piece.finish_reason, piece.scored, first=is_first)
        for event in ending:
            yield event
        if prompt is not None:
            yield envelope.usage_piece(prompt, piece.tokens)

    def _envelope(self, asked: Sampling, checked: CheckedRequest, policy: PolicyRef) -> Envelope:
        prefix = "chatcmpl" if asked.kind == "chat" else "cmpl"
        return Envelope(
            kind=asked.kind,
            id=self._ids.new(prefix, policy.uid, asked.user, trial=checked.trial),
            created=int(time.time()),
            model=asked.model,
            uid=policy.uid,
            parallel=not isinstance(asked, ChatRequest) or asked.parallel,
            tools=bool(asked.offered()),
            required=isinstance(asked, ChatRequest) and asked.tool_choice not in (None, "auto"),
        )

    async def _observe(
        self, answer_id: str, asked: Sampling, checked: CheckedRequest, end: End
    ) -> None:
        """Before the client gets the end of the answer, and may report its outcome."""
        if self._observer is None:
            return
        known = self._ids.read(answer_id)
        assert known is not None, "it is one of ours"
        await self._observer.answered(
            Answered(
                id=answer_id,
                user=known.user,
                conversation=self._answering.conversation(asked, checked),
                tools=asked.offered(),
                params=checked.params,
                text=end.text,
                completion=end.completion,
                arguments=asked.chat_template_kwargs if isinstance(asked, ChatRequest) else None,
            )
        )

    def _count_tokens(self, end: End) -> None:
        trial = self._service.trial
        on_trial = trial is not None and trial.deployment.uid == end.policy.uid
        self._metrics.answers.labels("trial" if on_trial else "current").inc()
        self._metrics.tokens.labels("generated").inc(end.tokens)

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            yield
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()


def make_app(api: Api) -> FastAPI:
    """The endpoints as an ASGI application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for method, path, endpoint in (
        ("POST", "/v1/chat/completions", api.chat),
        ("POST", "/v1/completions", api.completions),
        ("GET", "/v1/models", api.models),
        ("GET", "/v1/models/{name:path}", api.model),
        ("POST", "/v1/outcomes", api.outcome),
        ("GET", "/health", api.health),
        ("GET", "/ready", api.readiness),
        ("GET", "/metrics", api.metrics),
        ("POST", "/admin/deploy", api.deploy),
        ("POST", "/admin/rollback", api.rollback),
        ("GET", "/admin/deployments", api.deployments),
    ):
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    for error in _EXPLAINED:
        app.add_exception_handler(error, _explain)
    return app


async def _explain(request: Request, error: Exception) -> Response:
    """A failure in the form that OpenAI's clients read; tracebacks go to the log only."""
    message, param, code = str(error), None, None
    match error:
        case RequestValidationError():
            status = 400
            param, message, code = _invalid(error)
        case BadRequestError():
            status, param, code = error.status, error.param, error.code
        case DeploymentError():
            status, code = 409, "deployment"
        case EngineError():
            log.error("no answer: %s", error)
            status, code = 503, "engine"
        case TimeoutError():
            status, code = 504, "timeout"
            message = "not answered within serve.request_timeout_s"
        case HTTPException():
            status, message = error.status_code, str(error.detail)
        case _:
            log.error("%s %s failed", request.method, request.url.path, exc_info=error)
            status, message = 500, "the service failed; its log says why"
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse(
        error_body(message, kind, param=param, code=code),
        status_code=status,
        headers=getattr(error, "headers", None),
    )


def _invalid(error: RequestValidationError) -> tuple[str | None, str, str | None]:
    """The parameter that is wrong, and why, in our words, and a code; None: the body as a whole."""
    first, *others = error.errors()
    if first["type"] == "json_invalid":  # its place is a position in the body
        said = f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][1]}"
        return None, said, None
    place = _place(first, error.body)
    # A value that may be of several types has an error for each; one inside of it says more.
    inside = (each for each in others if place and _place(each, error.body).startswith(f"{place}."))
    first = next(inside, first)
    place = _place(first, error.body)
    alike = [first, *(each for each in others if _place(each, error.body) == place)]
    reasons = dict.fromkeys(_reason(each) for each in alike)
    code = "unknown_parameter" if first["type"] == "extra_forbidden" else None
    return place or None, f"{place or 'body'}: {', or '.join(reasons)}", code


def _place(problem: Mapping[str, Any], body: Any) -> str:
    """Where a problem lies, without the types that pydantic has tried."""
    parts, at = [], body
    for part in problem["loc"][1:]:
        try:
            at = at[part]
        except (LookupError, TypeError):
            if problem["type"] != "missing" or part != problem["loc"][-1]:
                continue
        parts.append(str(part))
    return ".".join(parts)


def _reason(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "unknown parameter"
        case "value_error":
            return str(problem["ctx"]["error"])
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be an object"
    words = re.sub(r"^\w+ should (be|have) (a valid )?", r"must \1 ", problem["msg"])
    words = re.sub(r" after validation|, unable to parse.*", "", words)
    return re.sub(r"must be (string|number|boolean|list)", r"must be a \1", words).replace(
        "must be integer", "must be a whole number"
    )


async def _unless_disconnected(request: Request, work: Awaitable[End]) -> End:
    """The result of ``work``, which is cancelled when the client disconnects first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise HTTPException(499, "the client went away")
        return answer.result()
    finally:
        for task in (answer, watch):
            task.cancel()
        await asyncio.gather(answer, watch, return_exceptions=True)


def _model(name: str, found: Deployment) -> dict[str, Any]:
    created = int(found.changed_at)
    return {"id": name, "object": "model", "created": created, "owned_by": "rlforge"}
