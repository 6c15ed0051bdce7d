"""Refuses requests without the token, from other sites, too large, or too slow."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlforge.config.serving import ServeConfig
from rlforge.errors import ConfigError
from rlforge.serving.protocol import error_body

TOKEN_VARIABLE = "RLFORGE_SERVE_TOKEN"
"""Environment variable with the token; it takes precedence over the file in the state folder."""

_TOKEN_FILE = "token"
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


def make_token(state_dir: Path) -> str:
    """The service's token: from the environment, or from its file, which the first start creates.

    Raises ConfigError for a file that other users can read, or that is empty.
    """
    if given := os.environ.get(TOKEN_VARIABLE, "").strip():
        return given
    file = state_dir / _TOKEN_FILE
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(state_dir)
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{token}\n")
    return token


def read_token(state_dir: Path) -> str:
    """The token that ``make_token`` made; ConfigError where it cannot be read."""
    if given := os.environ.get(TOKEN_VARIABLE, "").strip():
        return given
    file = state_dir / _TOKEN_FILE
    try:
        mode, token = stat.S_IMODE(file.stat().st_mode), file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"no token: {file}: {error.strerror}; set {TOKEN_VARIABLE}, or start rlforge serve"
        ) from error
    if mode & 0o077:
        raise ConfigError(f"{file} can be read by others (mode {mode:o}): chmod 600 {file}")
    if not token:
        raise ConfigError(f"{file} is empty; delete it, and rlforge serve makes a new one")
    return token


class Guard:
    """The outermost layer of the service: refuses unauthorised requests, and reads bodies.

    Admin calls always need the token; all paths but health and readiness need it where the service
    listens beyond loopback, or ``serve.require_token`` is set. On loopback the ``Host`` header must
    name this machine, so that no web page can reach the service through a host name of its own (DNS
    rebinding). Bodies are limited by ``serve.max_body_bytes`` and ``serve.body_timeout_s``.
    count: called with path, status and seconds of every request, including refused ones.
    """

    def __init__(
        self, app: App, config: ServeConfig, token: str, count: Callable[[str, int, float], None]
    ) -> None:
        self._app, self._config, self._token = app, config, token.encode()
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
        needs = path.startswith(_ADMIN) or (
            path not in _PUBLIC and (self._config.require_token or not self._loopback)
        )
        if not needs:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._token):
            return None
        return 401, "invalid_api_key", "a token is needed: Authorization: Bearer TOKEN"

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
