"""An OpenAI-compatible HTTP server on this machine, for tests of its clients."""

# ruff: noqa: N802 - names of the library

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from http.server import ThreadingHTTPServer
from typing import Any

from tests.harness.server import Answers, running


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


class ChatHandler(Answers):
    """Subclasses answer in ``respond``."""

    server: ChatServer

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


def refusal(said: str, **fields: Any) -> dict[str, Any]:
    """The body of a chat completion that refuses to answer."""
    body = completion(None, **fields)
    body["choices"][0]["message"]["refusal"] = said
    return body


def serving(handler: type[ChatHandler]) -> AbstractContextManager[ChatServer]:
    """A server that runs while the block does."""
    return running(ChatServer(handler))
