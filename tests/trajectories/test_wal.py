"""A log that is cut or damaged anywhere returns every whole frame; threads share writes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlforge.trajectories.columns import DECISIONS, decision_row, outcome_row
from rlforge.trajectories.wal import (
    GroupCommit,
    SegmentContent,
    SegmentWriter,
    read_segment,
    rows_frame,
)


def ids(content: SegmentContent) -> list[str]:
    return content.tables["decisions"]["id"].to_pylist()


@pytest.fixture
def frames(make: Any) -> list[bytes]:
    rows = [decision_row(make.whole(number)) for number in range(5)]
    outcome = outcome_row(make.outcome(make(9)), "agent-0", "2024-11-13-10:00")
    return [
        rows_frame("decisions", rows[:2]),
        rows_frame("outcomes", [outcome]),
        rows_frame("decisions", rows[2:4]),
        rows_frame("decisions", rows[4:]),
    ]


@pytest.fixture
def segment(tmp_path: Path, frames: list[bytes]) -> Path:
    writer = SegmentWriter(tmp_path / "1.log")
    writer.write(frames[:1])
    writer.write(frames[1:])
    writer.close()
    return writer.path


def test_rows_come_back_by_table(segment: Path, make: Any) -> None:
    content = read_segment(segment)
    assert ids(content) == [make(number).id for number in range(5)]
    assert content.tables["decisions"].schema == DECISIONS
    assert content.tables["decisions"].to_pylist()[3] == decision_row(make.whole(3)) | {
        "completion": {
            **decision_row(make.whole(3))["completion"],
            "promptTokenIds": [1, 2, 3],
            "tokenIds": [4, 5],
            "logprobs": [-0.1, -0.25],
        }
    }
    assert content.tables["outcomes"]["id"].to_pylist() == [make(9).id]
    assert (content.damaged, content.unfinished) == (0, 0)


def test_a_log_cut_at_any_byte_keeps_all_whole_frames(
    tmp_path: Path, segment: Path, frames: list[bytes]
) -> None:
    data = segment.read_bytes()
    ends = [len(data) - sum(map(len, frames[n:])) for n in range(len(frames) + 1)]
    known = [[], 2, 2, 4, 5]
    cut = tmp_path / "cut.log"
    around = {end + step for end in ends for step in (-1, 0, 1)}
    for length in sorted({*range(0, len(data), 101), *around} & {*range(len(data))}):
        cut.write_bytes(data[:length])
        content = read_segment(cut)
        whole = sum(length >= end for end in ends)
        assert len(ids(content)) == (known[whole - 1] if whole > 1 else 0)
        assert content.damaged == 0
    cut.write_bytes(data[: ends[3] + 1])
    assert read_segment(cut).unfinished == 1


def test_a_damaged_frame_loses_only_its_own_rows(
    segment: Path, frames: list[bytes], make: Any
) -> None:
    data = bytearray(segment.read_bytes())
    middle = len(data) - len(frames[3]) - len(frames[2]) // 2
    for place in (middle, len(data) - len(frames[3]) - len(frames[2]) + 6):  # payload, then length
        broken = bytearray(data)
        broken[place] ^= 0xFF
        segment.write_bytes(broken)
        content = read_segment(segment)
        assert ids(content) == [make(number).id for number in (0, 1, 4)]
        assert content.damaged == len(frames[2])


def test_without_its_schema_a_segment_counts_as_damaged(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[20] ^= 0xFF
    segment.write_bytes(data)
    content = read_segment(segment)
    assert ids(content) == []
    assert content.damaged > 0


def test_a_disk_that_fills_up_leaves_earlier_frames(
    tmp_path: Path, frames: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SegmentWriter(tmp_path / "1.log")
    writer.write(frames[:1])
    before = writer.path.read_bytes()
    write = os.write
    left = [100]

    def small(descriptor: int, data: Any) -> int:
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: left.pop()])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", small)
        with pytest.raises(OSError, match="No space left"):
            writer.write(frames[1:])
    assert writer.path.read_bytes() == before
    writer.write(frames[1:])
    assert len(ids(read_segment(writer.path))) == 5
    writer.close()


def test_a_segment_that_cannot_be_created_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        SegmentWriter(tmp_path / "1.log")
    assert list(tmp_path.iterdir()) == []


def test_queued_frames_are_written_together() -> None:
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


def test_an_error_reaches_all_frames_of_its_group_and_no_later_ones() -> None:
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


def test_no_frame_is_written_while_paused() -> None:
    written = []
    commit = GroupCommit(written.append)
    with commit.paused():
        thread = threading.Thread(target=lambda: commit.wait(commit.enter(b"x")))
        thread.start()
        thread.join(0.05)
        assert written == []
    thread.join(5)
    assert written == [[b"x"]]
