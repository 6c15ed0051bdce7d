"""The socket of the service, and uvicorn on it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Coroutine, Iterator
from typing import Any

import uvicorn

from rlforge.errors import ConfigError
from rlforge.serving.guard import App


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; ConfigError where the address is taken or not ours."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(
            f"serve.host={host} serve.port={port}: cannot listen there: {error.strerror}; choose "
            "another, or serve.port=0 for a free one"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find it."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


async def answer_requests(
    app: App, listener: socket.socket, *, drain_s: float, failed: Coroutine[Any, Any, None]
) -> bool:
    """Answer until SIGINT, SIGTERM or the end of ``failed``; then finish what is under way.

    drain_s: seconds that it has to end. Returns whether it was told to stop by a signal.
    """
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(drain_s)),
        )
    )
    watch = asyncio.create_task(failed)
    answering = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait((watch, answering), return_when=asyncio.FIRST_COMPLETED)
        told = answering.done()
        server.should_exit = True
        await answering
    finally:
        watch.cancel()
    return told


class _Server(uvicorn.Server):
    """uvicorn raises the signals that it caught again at its end; here they are done with."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
