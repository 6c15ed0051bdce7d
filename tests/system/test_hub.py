"""Pushes to a stand-in of the hub, by the real ``huggingface_hub``."""

# ruff: noqa: N802 - names of the library

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.server import Answers, served

from rlforge.errors import ConfigError, RlforgeError
from rlforge.system.hub import check_push, push_folder


class Hub(Answers):
    """The part of the hub's API that a push uses; it refuses tokens but ``good``.

    dropped: part of the paths whose connections it closes without an answer.
    """

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            old = {"type": "file", "size": 1, "oid": "0" * 40}
            self.reply([{**old, "path": path} for path in self.server.files])
        else:
            self.reply({"name": "me", "type": "user"})

    def do_POST(self) -> None:
        hub: Any = self.server
        if hub.dropped in self.path:
            self.close_connection = True  # without an answer
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = f"{hub.url}/me/mine"
        if self.path == "/api/repos/create":
            hub.created.append(json.loads(body))
            self.reply({"url": url, "name": "me/mine"})
        elif "/preupload/" in self.path:
            files = [file["path"] for file in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            self.reply({"files": [{"path": file, **modes} for file in files]})
        elif "/commit/" in self.path:
            hub.commits.append([json.loads(line) for line in body.splitlines()])
            self.reply({"commitUrl": f"{url}/commit/1", "commitOid": "1"})
        else:
            self.reply({"errors": [], "warnings": []})

    def reply(self, content: Any) -> None:
        allowed = self.headers["Authorization"] == "Bearer good"
        self.send(*((200, content) if allowed else (401, {"error": "Invalid token"})))


@pytest.fixture
def hub() -> Iterator[Any]:
    with served(Hub, created=[], commits=[], files=[], dropped="/nothing/") as server:
        yield server


PUSH = """
import os, sys, time
from pathlib import Path
from rlforge.errors import RlforgeError
from rlforge.system.hub import check_push, push_folder
time.sleep = lambda seconds: None  # between the tries of huggingface_hub
os.environ["HF_TOKEN"] = "bad"
try:
    check_push("me/mine")
except RlforgeError as error:
    print(error)
os.environ["HF_TOKEN"] = "good"
folder, kind = sys.argv[1:]
try:
    check_push("me/mine")
    push_folder(Path(folder), "me/mine", "step-2 of demo", public=False, say=print, kind=kind)
except RlforgeError as error:
    print(error)
"""


def push(hub: Any, folder: Path, kind: str) -> list[str]:
    """What is said by a process that tries a bad token first."""
    command = [sys.executable, "-c", PUSH, str(folder), kind]
    own = os.environ | {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0"}
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def deleted(commits: list[Any]) -> set[str]:
    """The files that the one commit deletes."""
    [[_, *changes]] = commits
    return {one["value"]["path"] for one in changes if one["key"] == "deletedFile"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train-00000-of-00001.parquet").write_bytes(b"rows")
    (tmp_path / "README.md").write_text("# A card")
    return tmp_path


def test_a_push_checks_the_token_and_fills_a_private_repository(hub, folder):
    refused, *_, said = push(hub, folder, "model")
    assert refused.startswith(f"--push: no access to {hub.url}: Invalid user token")
    assert said == f"pushed to {hub.url}/me/mine"
    [created] = hub.created
    made = (created["organization"], created["name"], created["visibility"])
    assert made == ("me", "mine", "private")
    [[header, *files]] = hub.commits
    assert header["value"]["summary"] == "step-2 of demo"
    names = {file["value"]["path"] for file in files}
    assert names == {"README.md", "data/train-00000-of-00001.parquet"}


def test_a_pushed_dataset_replaces_the_parquet_files_of_the_one_before(hub, folder):
    data = [f"data/train-0000{number}-of-00002.parquet" for number in (0, 1)]
    hub.files = [*data, "LICENSE"]
    *_, said = push(hub, folder, "dataset")
    assert said == f"pushed to {hub.url}/datasets/me/mine"
    assert [created["type"] for created in hub.created] == ["dataset"]
    assert deleted(hub.commits) == set(data)


ADAPTER = {"adapter_config.json", "adapter_model.safetensors"}


@pytest.mark.parametrize(
    ("pushed", "old", "kept"),
    [
        (
            {"model.safetensors", "README.md", "tokenizer.json"},
            ADAPTER
            | {"model.safetensors.index.json", "model-00001-of-00002.safetensors", "small[1].gguf"},
            {"model.safetensors", "README.md", "LICENSE", "first/adapter_model.safetensors"},
        ),
        (ADAPTER, {"model.safetensors", "mine.gguf"}, ADAPTER | {"config.json"}),
    ],
    ids=["whole", "adapter"],
)
def test_a_pushed_model_replaces_the_weights_of_the_one_before(hub, tmp_path, pushed, old, kept):
    """Adapter files would be loaded on top of merged weights, parts of a larger model with them."""
    for name in pushed:
        (tmp_path / name).write_text(name)
    hub.files = sorted(old | kept)
    push(hub, tmp_path, "model")
    assert deleted(hub.commits) == old


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_connection_that_is_lost_says_how_to_push_the_folder_later(hub, folder, kind):
    hub.dropped, hub.files = "/commit/", ["adapter_config.json"]
    last = push(hub, folder, kind)[-1]
    assert last.startswith("me/mine was not pushed: Server disconnected")
    assert f"the export is complete in {folder}; push it later with: hf upload me/mine" in last
    assert ("--delete adapter_config.json" in last) == (kind == "model")


def test_a_hub_that_cannot_be_reached_is_one_message_with_the_mend(hub, folder):
    hub.url = "http://127.0.0.1:9"
    [*_, said] = push(hub, folder, "model")
    assert said.startswith("--push: no access to http://127.0.0.1:9: ")
    assert said.endswith("; mend this, or leave --push out and push later")


def test_only_a_push_can_be_public():
    check_push(None)
    with pytest.raises(ConfigError, match="add --push ORG/NAME, or leave --public out"):
        check_push(None, public=True)


def folder_with(path: Path, **files: str) -> Path:
    for name, text in files.items():
        file = path / name.replace("__", "/").replace("_dot_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_folder_is_copied_to_and_loses_what_the_new_one_would_be_read_with(tmp_path, kind):
    new = {"README_dot_md": "new", "data__1_dot_parquet": "b", "model_dot_safetensors": "w"}
    source = folder_with(tmp_path / "new", **new)
    target = folder_with(
        tmp_path / "old",
        README_dot_md="old",
        notes_dot_txt="mine",
        data__9_dot_parquet="a",
        adapter_config_dot_json="{}",
        data__adapter_note_dot_txt="mine",
    )
    said: list[str] = []
    check_push(str(target))
    push_folder(source, str(target), "", public=False, say=said.append, kind=kind)
    assert said == [f"copied to {target}"]
    kept = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    stale = "adapter_config.json" if kind == "model" else "data/9.parquet"
    there = {"notes.txt", "data/9.parquet", "adapter_config.json", "data/adapter_note.txt"}
    assert kept == {"README.md", "data/1.parquet", "model.safetensors"} | there - {stale}
    assert (target / "README.md").read_text() == "new"


def test_a_folder_that_cannot_be_is_refused_and_its_failure_is_named(tmp_path, monkeypatch):
    file = folder_with(tmp_path, file="x") / "file"
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match=rf"--push {path}: {file} is no folder"):
            check_push(str(path))
    with pytest.raises(ConfigError, match="names a folder"):
        check_push(str(tmp_path), public=True)
    check_push(str(tmp_path / "new" / "one"))
    with pytest.raises(RlforgeError, match="was not written"):
        push_folder(tmp_path / "missing", str(file / "x"), "", public=False, say=print)
