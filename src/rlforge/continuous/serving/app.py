"""The HTTP application: who may ask, OpenAI's endpoints, outcomes, metrics, admin calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlforge.continuous.config.serving import ServeConfig
from rlforge.continuous.serving.answering import Answer, Answering
from rlforge.continuous.serving.errors import EXPLAINED, RequestError, explain
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.page import Page, check_host
from rlforge.continuous.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    DeployRequest,
    OutcomeRequest,
    Sampling,
)
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.service import DeploymentService
from rlforge.continuous.serving.tokens import Tokens, network
from rlforge.continuous.serving.validation import find_source
from rlforge.engines.base import Engine
from rlforge.system.network import is_loopback

log = logging.getLogger(__name__)

#: Most bytes of a request's body, and seconds within which it must have arrived.
MAX_BODY_BYTES, BODY_TIMEOUT_S = 2**20, 10.0

#: The header that names the version that answered.
_VERSION = "x-rlforge-version"

_BEARER = HTTPBearer(auto_error=False)
_TO_JSON = json.JSONEncoder(ensure_ascii=False).encode


class Api:
    """The endpoints of one service, and who may call them.

    answering: of requests; None where it takes admin calls alone. ready: whether the engine
    answers.
    """

    def __init__(
        self,
        service: DeploymentService,
        engine: Engine,
        answering: Answering | None,
        config: ServeConfig,
        tokens: Tokens,
        metrics: Metrics,
        ready: Callable[[], bool],
    ) -> None:
        self._service, self._engine, self.answering = service, engine, answering
        self._config, self._tokens, self._metrics, self._ready = config, tokens, metrics, ready
        # Beyond loopback others can reach the service, so every request needs a token.
        self._loopback = is_loopback(config.host)
        self._under_way = 0

    @property
    def _of_clients(self) -> Answering:
        assert self.answering is not None, "requests of clients have endpoints"
        return self.answering

    # ------------------------------------------------------------ who may ask

    async def anybody(self, request: Request) -> None:
        """Refuse names of other machines on loopback."""
        check_host(request, loopback=self._loopback)

    async def client(self, request: Request) -> None:
        """Refuse callers without a token beyond loopback, or with ``serve.require_token``."""
        await self.anybody(request)
        if self._config.require_token or not self._loopback:
            await self._need(request, admin=False)

    async def admin(self, request: Request) -> None:
        """Refuse callers without the administrators' token."""
        await self.anybody(request)
        await self._need(request, admin=True)

    async def _need(self, request: Request, *, admin: bool) -> None:
        if not await self._allowed(request, admin=admin):
            which = "the administrators' token" if admin else "a token"
            raise RequestError(
                f"{which} is needed: Authorization: Bearer TOKEN",
                code="invalid_api_key",
                status=401,
                headers={"www-authenticate": "Bearer"},
            )

    async def _allowed(self, request: Request, *, admin: bool) -> bool:
        given = await _BEARER(request)
        return given is not None and self._tokens.allow(given.credentials, admin=admin)

    # ------------------------------------------------------------ OpenAI

    async def chat(self, asked: ChatRequest, request: Request) -> Response:
        return await self._complete(asked, request)

    async def completions(self, asked: CompletionRequest, request: Request) -> Response:
        return await self._complete(asked, request)

    async def models(self) -> Response:
        rows = [_model(name, found) for name, found in self._of_clients.models().items()]
        return JSONResponse({"object": "list", "data": rows})

    async def model(self, name: str) -> Response:
        return JSONResponse(_model(name, self._of_clients.model(name)))

    async def outcome(self, given: OutcomeRequest, request: Request) -> Response:
        """Take the reward of an answer: for a trial, and for a decision to learn from."""
        low, high = self._config.outcome_low, self._config.outcome_high
        if not low <= given.reward <= high:
            raise RequestError(
                f"a reward lies in [{low:g}, {high:g}] (serve.outcome_low, serve.outcome_high), "
                f"and {given.reward:g} does not",
                param="reward",
            )
        ids = self._of_clients.ids
        known = ids.read(given.id)
        if known is None:
            message = f"{given.id!r} is not the id of an answer of this service"
            raise RequestError(message, param="id")
        # Administrators' programs report what each user found. Other clients can call their users
        # what they like, so all that comes from one address is one judgement.
        judge = known.user
        if not await self._allowed(request, admin=True):
            host = request.client.host if request.client is not None else ""
            judge = ids.stand_in(f"address {network(host)}")
        trial = self._service.trial
        counted = (
            trial is not None
            # An answer of an earlier trial, or of a named version, says nothing about this one.
            and known.trial == trial.deployment.number
            and await self._service.record_outcome(
                given.reward, uid=known.uid, key=given.id, cluster=judge
            )
        )
        self._metrics.outcomes.labels(str(counted).lower()).inc()
        seen = self._of_clients.observer
        learned = seen is not None and await seen.rewarded(given.id, given.reward)
        return JSONResponse(
            {"id": given.id, "version": known.uid, "counted": counted, "learned": learned}
        )

    # ------------------------------------------------------------ operation

    async def health(self) -> Response:
        return JSONResponse({"status": "ok"})

    async def readiness(self) -> Response:
        # Load balancers send no requests to a service that answers 503 here.
        if self._ready():
            return JSONResponse({"status": "ready", "version": self._service.current.uid})
        return JSONResponse({"status": "the engine does not answer"}, status_code=503)

    async def metrics(self) -> Response:
        return PlainTextResponse(
            self._metrics.render(self._service, self._engine),
            media_type="text/plain; version=0.0.4; charset=utf-8",
        )

    async def deploy(self, asked: DeployRequest) -> Response:
        # Looked up before the deployment, so that a wrong path does not enter the history.
        source = await asyncio.to_thread(find_source, Path(asked.adapter), asked.checkpoint)
        deployment = await self._service.deploy(source)
        return JSONResponse(deployment.to_json(), status_code=200 if deployment.succeeded else 409)

    async def rollback(self) -> Response:
        return JSONResponse((await self._service.rollback()).to_json())

    async def deployments(self) -> Response:
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
        answer = self._of_clients.begin(asked)
        if self._under_way >= self._config.max_concurrent:
            # uvicorn's limit_concurrency would answer 503 in plain text, to /health as well.
            raise RequestError(
                f"{self._config.max_concurrent} requests are being answered "
                "(serve.max_concurrent); try again",
                status=429,
                headers={"retry-after": "1"},
            )
        self._metrics.tokens.labels("prompt").inc(len(answer.prompt))
        if asked.stream:
            started, events = time.perf_counter(), self._events(answer)
            # An error before the first event has a status of its own; a later one ends the stream.
            first = await anext(events)
            self._metrics.first_token.observe(time.perf_counter() - started)
            return StreamingResponse(
                _chained(first, events),
                media_type="text/event-stream",
                headers={_VERSION: answer.policy.uid},
            )
        with self._counted(answer):
            await _unless_disconnected(request, answer.complete())
        return JSONResponse(answer.body(), headers={_VERSION: answer.policy.uid})

    async def _events(self, answer: Answer) -> AsyncGenerator[str]:
        with self._counted(answer):
            async with contextlib.aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    yield f"data: {_TO_JSON(chunk)}\n\n"
        # OpenAI's clients wait for this line.
        yield "data: [DONE]\n\n"

    @contextlib.contextmanager
    def _counted(self, answer: Answer) -> Iterator[None]:
        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            yield
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()
            # A request that was given up has no whole answer.
            if answer.ended:
                trial = self._service.trial
                on_trial = trial is not None and trial.deployment.uid == answer.policy.uid
                self._metrics.answers.labels("trial" if on_trial else "current").inc()
                self._metrics.tokens.labels("generated").inc(answer.tokens)


def make_app(
    api: Api, count: Callable[[str, int, float], None], page: Page | None = None
) -> ASGIApp:
    """The application over ``api``, with a page."""
    # FastAPI's pages of documentation would load scripts from the network.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for method, path, endpoint, who in (
        ("POST", "/v1/chat/completions", api.chat, api.client),
        ("POST", "/v1/completions", api.completions, api.client),
        ("GET", "/v1/models", api.models, api.client),
        ("GET", "/v1/models/{name:path}", api.model, api.client),
        ("POST", "/v1/outcomes", api.outcome, api.client),
        ("GET", "/health", api.health, api.anybody),
        ("GET", "/ready", api.readiness, api.anybody),
        ("GET", "/metrics", api.metrics, api.client),
        ("POST", "/admin/deploy", api.deploy, api.admin),
        ("POST", "/admin/rollback", api.rollback, api.admin),
        ("GET", "/admin/deployments", api.deployments, api.admin),
    ):
        if api.answering is not None or who == api.admin:
            app.add_api_route(
                path, endpoint, methods=[method], response_model=None, dependencies=[Depends(who)]
            )
    if page is not None:
        page.mount(app)
    for error in EXPLAINED:
        app.add_exception_handler(error, explain)
    return Door(app, count)


class Door:
    """The outermost layer: limits bodies in size and time, counts requests, logs refused ones.

    count: called with path, status and seconds of every request.
    """

    # uvicorn limits no body, and FastAPI's max_body_size answers in plain text.

    def __init__(self, app: ASGIApp, count: Callable[[str, int, float], None]) -> None:
        self._app, self._count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, size = time.perf_counter(), 0, 0
        deadline: float | None = asyncio.get_running_loop().time() + BODY_TIMEOUT_S

        async def limited() -> Message:
            nonlocal size, deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                said = f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
                raise _unread(said, "body_timeout", 408) from None
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                said = f"the body is larger than {MAX_BODY_BYTES} bytes"
                raise _unread(said, "request_too_large", 413)
            if not message.get("more_body", False):
                # Only the end of the connection follows, at any time.
                deadline = None
            return message

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, limited, noting)
        finally:
            # Paths without a route share one label, so that clients cannot inflate the metric.
            path = getattr(scope.get("route"), "path", "other")
            self._count(path, status, time.perf_counter() - started)
            if not 0 < status < 400:
                # Headers and bodies may hold secrets, so they are not logged.
                log.warning("%s %r: %s", scope["method"], scope["path"], status or "no answer")


def _unread(message: str, code: str, status: int) -> RequestError:
    # The rest of the body is not read, so the connection cannot be used again.
    return RequestError(message, code=code, status=status, headers={"connection": "close"})


async def _chained(first: str, events: AsyncGenerator[str]) -> AsyncIterator[str]:
    async with contextlib.aclosing(events):
        yield first
        async for event in events:
            yield event


async def _unless_disconnected(request: Request, work: Awaitable[None]) -> None:
    """Await ``work``, which is cancelled when the client disconnects first."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    answer, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((answer, watch), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            # The client has gone; the status is nginx's for this case.
            raise HTTPException(499, "the client went away")
        answer.result()
    finally:
        for task in (answer, watch):
            task.cancel()
        await asyncio.gather(answer, watch, return_exceptions=True)


def _model(name: str, found: Deployment) -> dict[str, Any]:
    created = int(found.changed_at)
    return {"id": name, "object": "model", "created": created, "owned_by": "rlforge"}
