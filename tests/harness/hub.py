"""Stand-ins of the Hugging Face hub on this machine, asked by the real ``huggingface_hub``."""

# ruff: noqa: N802 - names of the library

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session
from tests.harness.server import Answers, served

from rlforge.models.load import hub_is_reachable


class ModelFiles(Answers):
    """A hub that has one model, in ``server.folder``; its name is any."""

    def do_GET(self) -> None:
        _, found, name = self.path.partition("/resolve/main/")
        file: Path = self.server.folder / name  # type: ignore[attr-defined]
        if not found:
            listed = "/tree/" in self.path  # a folder of more chat templates
            self.send(200, [] if listed else {"id": "org/m"})
        elif file.is_file():
            tag = hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
            facts = {"X-Repo-Commit": "0123456789" * 4, "ETag": f'"{tag}"'}
            self.send(200, file.read_bytes(), **facts)
        else:
            self.send(404, b"", X_Error_Code="EntryNotFound")

    def do_HEAD(self) -> None:
        self.do_GET()


@contextlib.contextmanager
def hub(
    monkeypatch: pytest.MonkeyPatch, handler: type[Answers], folder: Path | None = None
) -> Iterator[str]:
    """The address of a hub, as ``HF_ENDPOINT`` names one; proxies are none."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with served(handler, folder=folder) as server:
        files = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", files)
        hub_is_reachable.cache_clear()
        close_session()  # its proxies are those of its first request
        yield server.url
    hub_is_reachable.cache_clear()
    close_session()


def copy_of_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """The folder of the files of ``org/m`` in a cache of the hub, which is empty so far."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    repository, commit = cache / "models--org--m", "0" * 40
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return repository / "snapshots" / commit
