"""Refuses requests without the token, from other sites, too large, or too slow."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlforge.continuous.config.serving import ServeConfig
from rlforge.continuous.serving.envelope import error_body
from rlforge.continuous.serving.tokens import Tokens
from rlforge.system.network import is_loopback

_PUBLIC = ("/health", "/ready")
_ADMIN = "/admin/"

App = ASGIApp

log = logging.getLogger(__name__)


def network(host: str) -> str:
    """An address; of IPv6 the /64, as one machine may have all addresses of it.

    Example:
        >>> network("10.0.0.7"), network("::ffff:10.0.0.7"), network("2001:db8::7")
        ('10.0.0.7', '10.0.0.7', '2001:db8::/64')
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    mapped = address.ipv4_mapped
    if mapped is not None:
        return str(mapped)
    return str(ipaddress.ip_network((int(address), 64), strict=False))


#: Most bytes of a request's body.
MAX_BODY_BYTES = 2**20
#: Seconds within which a body must have arrived.
BODY_TIMEOUT_S = 10.0


class Guard:
    """The outermost layer of the service: refuses unauthorised requests, and reads bodies.

    Admin calls need the administrators' token; all paths but health and readiness need a token
    where the service listens beyond loopback, or ``serve.require_token`` is set. On loopback the
    ``Host`` header must name this machine, against DNS rebinding. count: called with path, status
    and seconds of every request.
    """

    def __init__(
        self,
        app: App,
        config: ServeConfig,
        tokens: Tokens,
        count: Callable[[str, int, float], None],
    ) -> None:
        self._app, self._config, self._tokens = app, config, tokens
        self._count = count
        self._loopback = is_loopback(config.host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._let_in(scope, receive, noting)
        finally:
            # Paths without a route share one label, so that clients cannot inflate the metric.
            path = getattr(scope.get("route"), "path", "other")
            self._count(path, status, time.perf_counter() - started)
            if not 0 < status < 400:
                # Headers and bodies may hold secrets, so they are not logged.
                log.warning("%s %r: %s", scope["method"], scope["path"], status or "no answer")

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refused = self._refuse(scope["path"], headers)
        if refused is None and scope["method"] in ("POST", "PUT", "PATCH"):
            refused = self._refuse_form(headers)
            if refused is None:
                body = await self._read(Request(scope, receive))
                if isinstance(body, bytes):
                    await self._app(scope, _replay(body, receive), send)
                    return
                refused = body
        if refused is None:
            await self._app(scope, receive, send)
        else:
            status, code, message = refused
            further = {"www-authenticate": "Bearer"} if status == 401 else {}
            if status in (408, 413):  # the rest of the body is not read
                further["connection"] = "close"
            said = error_body(message, "invalid_request_error", code=code)
            await JSONResponse(said, status, further)(scope, receive, send)

    def _refuse(self, path: str, headers: Headers) -> tuple[int, str, str] | None:
        if self._loopback and not is_loopback(_hostname(headers.get("host", ""))):
            return 403, "forbidden_host", "this service answers to names of this machine only"
        admin = path.startswith(_ADMIN)
        needs = admin or (
            path not in _PUBLIC and (self._config.require_token or not self._loopback)
        )
        if not needs:
            return None
        given = headers.get("authorization", "").encode("latin-1")
        if self._tokens.allow(given, admin=admin):
            return None
        which = "the administrators' token" if admin else "a token"
        return 401, "invalid_api_key", f"{which} is needed: Authorization: Bearer TOKEN"

    def _refuse_form(self, headers: Headers) -> tuple[int, str, str] | None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # browsers do not send it across sites unasked
            return 415, "unsupported_media_type", "the body must be application/json"
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, str, str]:
        return 413, "request_too_large", f"the body is larger than {MAX_BODY_BYTES} bytes"

    async def _read(self, request: Request) -> bytes | tuple[int, str, str]:
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for part in request.stream():
                    body += part
                    if len(body) > MAX_BODY_BYTES:
                        return self._too_large()
        except ClientDisconnect:
            return 400, "incomplete_body", "the connection ended before the body"
        except TimeoutError:
            return 408, "body_timeout", f"the body did not arrive within {BODY_TIMEOUT_S:g} s"
        return bytes(body)


def _hostname(host: str) -> str:
    """The name in a ``Host`` header, without port and brackets; empty for an invalid header."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """An ASGI ``receive`` that returns ``body`` first, then later messages (disconnection)."""
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed
