"""The lock against a real second process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlforge.errors import RunError
from rlforge.system.locks import RunLock

HOLD = """
import sys
from pathlib import Path
from rlforge.system.locks import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
print("released", flush=True)
"""


@contextmanager
def holder(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input closes."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def test_a_second_run_is_told_who_holds_the_directory(tmp_path):
    with holder(tmp_path) as process:
        with pytest.raises(RunError) as caught:
            RunLock(tmp_path).acquire()

        message = str(caught.value)
        assert f"{tmp_path} is in use by process {process.pid} on {socket.gethostname()}" in message
        assert "then resume" in message


def test_the_directory_is_free_once_the_holder_lets_go(tmp_path):
    with holder(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "released\n"
        with RunLock(tmp_path):
            assert str(os.getpid()) in (tmp_path / "run.lock").read_text()


def test_the_directory_is_free_once_the_holder_is_killed(tmp_path):
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        RunLock(tmp_path).acquire()


def test_one_process_cannot_hold_it_twice_either(tmp_path):
    with RunLock(tmp_path), pytest.raises(RunError, match=rf"process {os.getpid()} on"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path):
        pass


def test_a_holder_that_has_not_written_its_name_yet_is_still_a_holder(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / "run.lock").write_text("")
        with pytest.raises(RunError, match=r"in use by another process"):
            RunLock(tmp_path).acquire()


def test_releasing_what_is_not_held_does_nothing(tmp_path):
    RunLock(tmp_path).release()
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_releases_the_lock(tmp_path):
    with pytest.raises(ZeroDivisionError), RunLock(tmp_path):
        raise ZeroDivisionError
    RunLock(tmp_path).acquire()


def test_a_failed_acquire_leaves_no_open_file(tmp_path):
    with RunLock(tmp_path):
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(RunError):
            RunLock(tmp_path).acquire()
        assert len(os.listdir("/proc/self/fd")) == before


def test_locking_twice_through_one_object_is_refused(tmp_path):
    lock = RunLock(tmp_path)
    with lock, pytest.raises(RunError):
        lock.acquire()
