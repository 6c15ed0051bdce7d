"""Threads that write at once share one write, and each learns what became of its own frame."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlforge.trajectories.commit import GroupCommit


def test_frames_that_wait_are_written_together() -> None:
    begun, go_on = threading.Event(), threading.Event()
    written: list[list[bytes]] = []

    def write(frames: Sequence[bytes]) -> None:
        written.append(list(frames))
        begun.set()
        assert go_on.wait(5)

    commit = GroupCommit(write)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(lambda: commit.wait(commit.enter(b"0")))
        assert begun.wait(5)
        tickets = [commit.enter(b"%d" % number) for number in range(1, 9)]
        others = [threads.submit(commit.wait, ticket) for ticket in tickets]
        go_on.set()
        for future in (first, *others):
            future.result(5)
    assert written == [[b"0"], [b"%d" % number for number in range(1, 9)]]


def test_an_error_reaches_all_of_its_group_and_none_after() -> None:
    calls = []

    def write(frames: Sequence[bytes]) -> None:
        calls.append(list(frames))
        if b"bad" in frames:
            raise OSError("disk")

    commit = GroupCommit(write)
    tickets = [commit.enter(b"good"), commit.enter(b"bad")]
    for ticket in tickets:
        with pytest.raises(OSError, match="disk"):
            commit.wait(ticket)
    commit.wait(commit.enter(b"good"))
    assert calls == [[b"good", b"bad"], [b"good"]]


def test_nothing_is_written_while_it_is_paused() -> None:
    written = []
    commit = GroupCommit(written.append)
    with commit.paused():
        thread = threading.Thread(target=lambda: commit.wait(commit.enter(b"x")))
        thread.start()
        thread.join(0.05)
        assert written == []
    thread.join(5)
    assert written == [[b"x"]]
