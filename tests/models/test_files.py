"""Models in the cache are complete, and made by one process only."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest

from rlforge.models.files import cache_dir, made_once


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_environment_variable_names_the_cache(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_dir() == own_cache
    monkeypatch.delenv("RLFORGE_CACHE")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/.cache/rlforge/models")


def test_a_cached_model_is_made_once(own_cache: Path) -> None:
    calls = []

    def make(directory: Path) -> None:
        calls.append(directory)
        (directory / "weights").write_text("42")

    for _ in range(2):
        assert (made_once("m", make) / "weights").read_text() == "42"
    assert len(calls) == 1


def test_a_failure_leaves_nothing_behind(own_cache: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        made_once("m", fail)
    assert [path.name for path in own_cache.iterdir()] in ([], ["m.lock"])
    assert made_once("m", lambda directory: None).is_dir()


def _make_slowly(directory: Path) -> None:
    time.sleep(0.3)
    (directory / "weights").write_text("42")
    with (directory.parent / "log").open("a") as log:
        log.write("made\n")


def _make(name: str) -> None:
    made_once(name, _make_slowly)


def test_two_processes_do_the_work_once(own_cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_make, args=("m",)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    assert (own_cache / "log").read_text() == "made\n"
