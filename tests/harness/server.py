"""HTTP servers on this machine, for tests of their clients."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


class Answers(BaseHTTPRequestHandler):
    """Subclasses answer requests by ``send``."""

    def send(self, status: int, content: Any, **headers: str) -> None:
        """Send ``content``: bytes as they are, anything else as JSON."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, text in {**fields, **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server that runs while the block does."""
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextlib.contextmanager
def served(handler: type[Answers], **facts: Any) -> Iterator[Any]:
    """A running server with its ``url``. facts: further attributes of it."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        vars(server).update(facts, url=f"http://127.0.0.1:{server.server_port}")
        yield server
