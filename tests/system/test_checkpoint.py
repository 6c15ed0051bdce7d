import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from safetensors import SafetensorError

from rlforge.errors import CheckpointError
from rlforge.system import checkpoint
from rlforge.system.checkpoint import (
    extend_checkpoint,
    latest_checkpoint,
    read_manifest,
    write_checkpoint,
)


def fill(**contents: bytes):
    """Writes each content into a file; ``a__b`` is the file b in folder a."""

    def write(directory: Path) -> None:
        for name, content in contents.items():
            file = directory / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    return write


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below ``root`` with its content."""
    return {
        str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()
    }


def test_a_checkpoint_holds_its_files_and_lists_them(tmp_path):
    path = write_checkpoint(
        tmp_path / "checkpoints", "step-3", fill(weights=b"abc", sub__more=b""), {"version": 3}
    )
    assert path == tmp_path / "checkpoints" / "step-3"
    assert (path / "weights").read_bytes() == b"abc"
    manifest, written = read_manifest(path), json.loads((path / "manifest.json").read_text())
    assert manifest.meta == written["meta"] == {"version": 3}
    assert manifest.files.keys() == {"weights", "sub/more"}
    assert manifest.files["weights"].size == 3
    assert manifest.files["weights"].sha256 == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert manifest.rlforge_version == "0.1.0"
    assert (manifest.has_state, manifest.total_size) == (False, 3)
    assert [entry.name for entry in path.parent.iterdir()] == ["step-3"]


def test_a_damaged_state_says_from_where_the_run_goes_on_without_it(tmp_path):
    for number in (1, 2, 3, 4):
        write_checkpoint(tmp_path, f"step-{number}", fill(state__run=b"{}"), {"version": number})
    (tmp_path / "step-3" / "state" / "run").write_bytes(b"")
    for number, left in ((4, "step-2"), (2, "step-1"), (1, "its start")):
        damaged = tmp_path / f"step-{number}"
        (damaged / "manifest.json").write_bytes(b"")
        with pytest.raises(CheckpointError) as caught:
            latest_checkpoint(tmp_path, with_state=True)
        assert str(caught.value).endswith(
            f"; move {damaged} out of its folder and resume again: the run goes on from {left}"
        )
        assert "older checkpoint" not in str(caught.value)
        for name in (damaged, tmp_path / "step-3"):
            shutil.rmtree(name, ignore_errors=True)


def test_a_failing_fill_leaves_nothing_and_passes_its_error_on(tmp_path):
    write_checkpoint(tmp_path, "step-1", fill(a=b"old"), {})
    before = snapshot(tmp_path)

    def broken(directory: Path) -> None:
        (directory / "half").write_bytes(b"x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_checkpoint(tmp_path, "step-2", broken, {})
    with pytest.raises(ZeroDivisionError):
        extend_checkpoint(tmp_path / "step-1", broken)

    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_the_manifest_name_is_reserved(tmp_path):
    with pytest.raises(CheckpointError, match=r"manifest\.json is the manifest's own name"):
        write_checkpoint(tmp_path, "step-1", fill(**{"manifest.json": b"{}"}), {})
    assert checkpoint.list_checkpoints(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.unlink(), r"lacks adapter"),
        (lambda file: file.write_bytes(b"12345"), r"adapter is truncated, 5 of 10 bytes"),
        (lambda file: file.write_bytes(b"0123456789+"), r"adapter is longer than written, 11"),
        (lambda file: file.write_bytes(b"012345678x"), r"adapter was altered, its digest differs"),
    ],
)
def test_damage_is_named_with_its_file(tmp_path, damage, message):
    path = write_checkpoint(tmp_path, "step-1", fill(adapter=b"0123456789", other=b"x"), {})
    damage(path / "adapter")
    with pytest.raises(CheckpointError, match=message) as caught:
        read_manifest(path)
    assert str(path) in str(caught.value)
    assert read_manifest(path, verify=False).total_size == 11


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": 1}, "meta": {}}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    path = write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {})
    (path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"step-1/manifest\.json is damaged"):
        read_manifest(path)


def test_errors_say_why_a_path_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"not a checkpoint: it has no manifest"):
        read_manifest(tmp_path)
    for use in (read_manifest, lambda path: extend_checkpoint(path, fill(a=b""))):
        with pytest.raises(CheckpointError, match=r"not a checkpoint: there is no such directory"):
            use(tmp_path / "gone")


def test_extending_adds_files_and_keeps_the_rest(tmp_path):
    path = write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {"version": 1})
    manifest = extend_checkpoint(path, fill(state__optimizer=b"opt", state__rng=b"rng"))
    assert manifest == read_manifest(path)
    assert manifest.files.keys() == {"a", "state/optimizer", "state/rng"}
    assert manifest.has_state
    assert manifest.meta == {"version": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_a_checkpoint_and_its_files_are_never_replaced(tmp_path):
    path = write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {})
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match=r"step-1 exists already"):
        write_checkpoint(tmp_path, "step-1", fill(a=b"new"), {})
    with pytest.raises(CheckpointError, match=r"step-1 holds a already"):
        extend_checkpoint(path, fill(a=b"y", b=b"z"))
    assert snapshot(tmp_path) == before


def test_an_extension_cut_short_leaves_the_checkpoint_valid_and_may_be_repeated(
    tmp_path, monkeypatch
):
    """Interrupted between the files and the manifest, the latest possible moment."""
    path = write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write_manifest", mock.Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend_checkpoint(path, fill(state__optimizer=b"half"))

    assert read_manifest(path).files.keys() == {"a"}
    assert checkpoint.latest_checkpoint(tmp_path, with_state=True) is None
    assert extend_checkpoint(path, fill(state__optimizer=b"whole")).has_state
    assert (path / "state" / "optimizer").read_bytes() == b"whole"
    read_manifest(path)


def test_listing_orders_by_number_and_sees_checkpoints_only(tmp_path):
    for name in ("step-10", "step-2", "step-1"):
        write_checkpoint(tmp_path, name, fill(a=b"x"), {})
    (tmp_path / "step-99").mkdir()
    (tmp_path / "notes.txt").write_text("")
    write_checkpoint(tmp_path, ".tmp.other.1.aa", fill(), {})
    listed = [path.name for path in checkpoint.list_checkpoints(tmp_path)]
    assert listed == ["step-1", "step-2", "step-10"]
    assert checkpoint.latest_checkpoint(tmp_path) == tmp_path / "step-10"
    assert checkpoint.latest_checkpoint(tmp_path, with_state=True) is None
    extend_checkpoint(tmp_path / "step-2", fill(state__all=b"x"))
    assert checkpoint.latest_checkpoint(tmp_path, with_state=True) == tmp_path / "step-2"
    for empty in (tmp_path / "none", tmp_path / "step-99"):
        assert checkpoint.list_checkpoints(empty) == []
        assert checkpoint.latest_checkpoint(empty) is None


def test_a_checkpoint_is_found_by_its_name_or_as_the_newest(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint yet"):
        checkpoint.find_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="step-1: no such checkpoint; there is none yet"):
        checkpoint.find_checkpoint(tmp_path, "step-1")
    for version in (7, 8, 9, 10):
        write_checkpoint(tmp_path, f"step-{version}", fill(w=b"x"), {"version": version})
    newest, other = (checkpoint.find_checkpoint(tmp_path, name) for name in ("latest", "step-9"))
    assert checkpoint.checkpoint_version(newest) == 10
    assert checkpoint.checkpoint_version(other, verify=True) == 9
    for meta in ({}, {"version": None}):
        path = write_checkpoint(tmp_path, "odd", fill(w=b"x"), meta)
        with pytest.raises(
            CheckpointError, match=r"manifest.json is damaged: meta.version is None"
        ):
            checkpoint.checkpoint_version(path)
        shutil.rmtree(path)
    with pytest.raises(CheckpointError, match=r"; the newest are step-10, step-9, step-8$"):
        checkpoint.find_checkpoint(tmp_path, "step-6")


def test_prune_keeps_the_newest_and_the_protected(tmp_path):
    for number in range(1, 7):
        write_checkpoint(tmp_path, f"step-{number}", fill(a=b"x"), {})
    deleted = checkpoint.prune(tmp_path, 2, protected=("step-1", "step-5"))
    assert [path.name for path in deleted] == ["step-2", "step-3"]
    kept = ["step-1", "step-4", "step-5", "step-6"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    assert checkpoint.prune(tmp_path, 2, protected=("step-1", "step-5")) == []
    assert [path.name for path in checkpoint.prune(tmp_path, 0)] == kept


def write_to_full_device(directory: Path) -> None:
    """/dev/full answers every write as a full disk does."""
    (directory / "small").write_bytes(b"x")
    with open("/dev/full", "wb") as device:
        device.write(b"y" * 1_000_000)


def safetensors_on_full_disk(_directory: Path) -> None:
    """``save_file`` raises an error of its own there that only quotes the system's."""
    raise SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


def torch_on_full_disk(_directory: Path) -> None:
    import torch

    with open("/dev/full", "wb") as device:
        torch.save({"a": torch.zeros(1_000_000)}, device)


def wrapped(directory: Path) -> None:
    raise RuntimeError("cannot save the optimizer") from OSError(errno.ENOSPC, "full")


def quota(_directory: Path) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "full", [write_to_full_device, safetensors_on_full_disk, torch_on_full_disk, wrapped, quota]
)
def test_a_full_disk_says_how_much_is_free_and_needed_and_harms_nothing(
    tmp_path, full, monkeypatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    write_checkpoint(tmp_path, "step-1", fill(a=b"x" * 2048), {})
    before = snapshot(tmp_path)
    with pytest.raises(
        CheckpointError,
        match=r"no space on disk for checkpoint .*step-2: [\d.]+ \w+ free, "
        r"about 2\.0 KiB needed, the size of step-1; .*learner\.keep_checkpoints",
    ):
        write_checkpoint(tmp_path, "step-2", full, {})
    with pytest.raises(CheckpointError, match=r"checkpoint .*step-1/state: .* is not enough;"):
        extend_checkpoint(tmp_path / "step-1", full)
    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_what_a_state_needs_is_the_size_of_another_state_and_more_than_is_free(
    tmp_path, monkeypatch
):
    for name, size in (("step-1", 2048), ("step-2", 10), ("step-3", 1500)):
        write_checkpoint(tmp_path, name, fill(a=b"x" * 2**20), {})
        if name != "step-3":
            extend_checkpoint(tmp_path / name, fill(state__learner=b"x" * size))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1024))
    expected = r"step-3/state: 1\.0 KiB free, about 2\.0 KiB needed, the size of step-1/state;"
    with pytest.raises(CheckpointError, match=expected):
        extend_checkpoint(tmp_path / "step-3", write_to_full_device)


def test_a_full_disk_at_the_manifest_is_explained_too(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "write_text", mock.Mock(side_effect=full))
    with pytest.raises(CheckpointError, match=r"no space on disk .*free, which is not enough"):
        write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {})
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_are_cleaned_by_the_next(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from rlforge.system.checkpoint import write_checkpoint\n"
        "def fill(d):\n"
        "    (d / 'half').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_checkpoint(Path(sys.argv[1]), 'step-1', fill, {})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (leftover,) = tmp_path.iterdir()
    assert (leftover / "half").exists()
    assert checkpoint.list_checkpoints(tmp_path) == []
    write_checkpoint(tmp_path, "step-1", fill(a=b"x"), {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_temporary_folders_of_living_or_recent_writers_stay(tmp_path):
    here = socket.gethostname()
    own = tmp_path / f".tmp.{here}.{os.getpid()}.aa"
    init = tmp_path / f".tmp.{here}.1.aa"
    recent = tmp_path / ".tmp.elsewhere.example.1.aa"
    old = tmp_path / ".tmp.elsewhere.example.2.aa"
    for path in (own, init, recent, old, tmp_path / "step-1"):
        path.mkdir()
    yesterday = time.time() - 25 * 3600
    os.utime(old, (yesterday, yesterday))
    assert checkpoint.clean_leftovers(tmp_path) == [old]
    assert {*tmp_path.iterdir()} == {own, init, recent, tmp_path / "step-1"}


def test_a_small_checkpoint_is_written_fast(tmp_path):
    seconds = []
    for number in range(5):
        started = time.perf_counter()
        write_checkpoint(tmp_path, f"step-{number}", fill(a=b"x" * 200_000, b=b"{}"), {})
        seconds.append(time.perf_counter() - started)
    # Disks differ; the minimum is one fsync per file and directory.
    probe = time.perf_counter()
    with (tmp_path / "probe").open("wb") as stream:
        stream.write(b"x" * 200_000)
        os.fsync(stream.fileno())
    fsync = time.perf_counter() - probe
    assert min(seconds) < 0.02 + 8 * fsync
