"""Stand-ins of the Hugging Face hub on this machine, asked by the real ``huggingface_hub``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import close_session

from rlforge.models.load import hub_is_reachable

_COMMIT = "0123456789" * 4


class ModelFiles(BaseHTTPRequestHandler):
    """A hub that has one model, in ``server.folder``; its name is any."""

    def do_GET(self) -> None:
        _, found, name = self.path.partition("/resolve/main/")
        file: Path = self.server.folder / name  # type: ignore[attr-defined]
        if not found:
            listed = "/tree/" in self.path  # a folder of more chat templates
            self._answer(200, json.dumps([] if listed else {"id": "org/m"}).encode())
        elif file.is_file():
            self._answer(200, file.read_bytes())
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, code: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(code)
        tag = hashlib.sha1(body, usedforsecurity=False).hexdigest()
        fields = {"X-Repo-Commit": _COMMIT, "ETag": f'"{tag}"', "Content-Length": len(body)}
        for field, content in {**fields, **(more or {})}.items():
            self.send_header(field, str(content))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def hub(
    monkeypatch: pytest.MonkeyPatch,
    handler: type[BaseHTTPRequestHandler],
    folder: Path | None = None,
) -> Iterator[str]:
    """The address of a hub, as ``HF_ENDPOINT`` names one; proxies are none."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.folder = folder  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        files = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        hub_is_reachable.cache_clear()
        close_session()  # its proxies are those of its first request
        yield url
        server.shutdown()
    hub_is_reachable.cache_clear()
    close_session()
