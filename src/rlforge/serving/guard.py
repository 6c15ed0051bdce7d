"""Refuses requests without the token, from other sites, too large, or too slow."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from rlforge.config.serving import ServeConfig
from rlforge.serving.protocol import error_body
from rlforge.serving.tokens import Tokens

_PUBLIC = ("/health", "/ready")
_ADMIN = "/admin/"

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """The outermost layer of the service: refuses unauthorised requests, and reads bodies.

    Admin calls always need the administrators' token; all paths but health and readiness need a
    token where the service listens beyond loopback, or ``serve.require_token`` is set. On loopback
    the ``Host`` header must name this machine, so that no web page can reach the service through a
    host name of its own (DNS rebinding). Bodies are limited by ``serve.max_body_bytes`` and
    ``serve.body_timeout_s``. count: called with path, status and seconds of every request,
    including refused ones.
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
        headers = {name.lower(): content for name, content in scope["headers"]}
        refused = self._refuse(scope["path"], headers)
        if refused is None and scope["method"] in ("POST", "PUT", "PATCH"):
            refused = self._refuse_form(headers)
            if refused is None:
                body = await self._read(receive)
                if isinstance(body, bytes):
                    await self._app(scope, _replay(body, receive), send)
                    return
                refused = body
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await _answer(send, *refused)

    def _refuse(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        if self._loopback and not is_loopback(_hostname(host)):
            return 403, "forbidden_host", "this service answers to names of this machine only"
        admin = path.startswith(_ADMIN)
        needs = admin or (
            path not in _PUBLIC and (self._config.require_token or not self._loopback)
        )
        if not needs:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and self._tokens.allow(given.strip(), admin=admin):
            return None
        which = "the administrators' token" if admin else "a token"
        return 401, "invalid_api_key", f"{which} is needed: Authorization: Bearer TOKEN"

    def _refuse_form(self, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":  # browsers do not send it across sites unasked
            return 415, "unsupported_media_type", "the body must be application/json"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> tuple[int, str, str]:
        most = self._config.max_body_bytes
        return 413, "request_too_large", f"the body is larger than {most} bytes"

    async def _read(self, receive: Receive) -> bytes | tuple[int, str, str]:
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, "incomplete_body", "the connection ended before the body"
                    body += message.get("body", b"")
                    if len(body) > self._config.max_body_bytes:
                        return self._too_large()
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            limit = self._config.body_timeout_s
            return 408, "body_timeout", f"the body did not arrive within {limit:g} s"


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


async def _answer(send: Send, status: int, code: str, message: str) -> None:
    body = json.dumps(error_body(message, "invalid_request_error", code=code)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):  # the rest of the body is not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
