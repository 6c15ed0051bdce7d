"""An OpenAI-compatible HTTP server on this machine, for tests of its clients."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ChatServer(ThreadingHTTPServer):
    """Answers as ``mood`` says and records requests, and how many ran at the same time."""

    daemon_threads = True

    def __init__(self, handler: type[ChatHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.mood, self.good_after = "good", 0
        self.requests: list[dict[str, Any]] = []
        self.running = self.most_running = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class ChatHandler(BaseHTTPRequestHandler):
    """Subclasses answer in ``respond``."""

    server: ChatServer

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        server = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.requests.append({**asked, "key": self.headers["Authorization"]})
            tries = len(server.requests)
            server.running += 1
            server.most_running = max(server.most_running, server.running)
        try:
            self.respond(asked, tries)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the caller has given up
        finally:
            with server.lock:
                server.running -= 1

    def respond(self, asked: dict[str, Any], tries: int) -> None:
        """Answer a request; tries: the number of requests so far."""
        raise NotImplementedError

    def send(self, status: int, body: Any, **headers: str) -> None:
        """Send ``body``: bytes as they are, anything else as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def completion(content: Any, finish: str = "stop", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion; ``fields`` replace or extend it."""
    message = {"role": "assistant", "content": content}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        **fields,
    }


@contextlib.contextmanager
def serving(handler: type[ChatHandler]) -> Iterator[ChatServer]:
    """A server that runs while the block does."""
    server = ChatServer(handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
