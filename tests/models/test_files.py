"""Models in the cache are complete, and made by one process only."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import pytest
from tests.harness.permissions import public_folder, without_rights

from rlforge.models.files import cache_dir, made_once
from rlforge.models.made import MadeModel


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_environment_variable_names_the_cache(own_cache, monkeypatch):
    assert cache_dir() == own_cache
    monkeypatch.delenv("RLFORGE_CACHE")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/.cache/rlforge/models")


def test_a_failure_leaves_nothing_behind(own_cache):
    def fail(directory):
        (directory / "half").write_text("")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        made_once("m", fail, print)
    assert [path.name for path in own_cache.iterdir()] in ([], ["m.lock"])
    assert made_once("m", lambda directory: None, print).is_dir()


def test_two_processes_do_the_work_once(own_cache):
    def make_slowly(directory):
        said, deadline = own_cache / "said", time.monotonic() + 30
        while not said.exists() or len(said.read_text().splitlines()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (directory / "weights").write_text("42")
        with (own_cache / "log").open("a") as log:
            log.write("made\n")

    def say(line):
        with (own_cache / "said").open("a") as said:
            said.write(f"{line}\n")

    context = multiprocessing.get_context("fork")
    given = ("m", make_slowly, say)
    processes = [context.Process(target=made_once, args=given) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
        assert process.exitcode == 0
    assert (own_cache / "log").read_text() == "made\n"
    assert (made_once("m", Path.touch, print) / "weights").read_text() == "42"
    waits = "another process is making m: waiting for it"
    assert (own_cache / "said").read_text().splitlines() == [waits, waits]


def test_users_of_a_cache_wait_for_a_lock_that_only_its_owner_can_write():
    """As in a folder of a group, under the umask 022."""
    with public_folder() as folder, pytest.MonkeyPatch.context() as environment:
        environment.setenv("RLFORGE_CACHE", str(folder))
        folder.chmod(0o777)
        lock = folder / "m.lock"
        lock.touch(0o644)
        with without_rights():
            assert made_once("m", lambda directory: None, print).is_dir()


def test_a_model_that_is_made_says_what_where_and_for_how_long(own_cache):
    lines = []
    model = MadeModel(cache_name="m", create=lambda folder, say: say("copying"), takes="no time")
    for _ in range(2):
        assert model.make(lines.append) == own_cache / "m"
    first = f"making the model m: once on this machine, no time; it is kept in {own_cache}"
    assert lines[:2] == [first, "copying"]
    assert [line.startswith("made in ") for line in lines[2:]] == [True]
