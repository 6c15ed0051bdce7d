"""The log of new decisions: segments of checksummed frames that only grow.

A segment starts with the schemas of its tables; each further frame is a batch of rows. After a
writer was killed, every frame synced before can be read, and an unfinished frame at the end is
recognised as such.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlforge.system.files import sync
from rlforge.trajectories.columns import SCHEMAS
from rlforge.types import value


class _Ticket:
    """One caller's frame, and whether it was written."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.done = False
        self.error: BaseException | None = None


class GroupCommit:
    """Hands the frames of all waiting threads to ``write`` together.

    A disk takes as long to sync one decision as a thousand. While one thread writes, the others
    queue up; the first of them to continue then writes all queued frames, in order of ``enter``.

    Example:
        >>> commit = GroupCommit(print)
        >>> tickets = [commit.enter(b"first"), commit.enter(b"second")]
        >>> commit.wait(tickets[0])
        [b'first', b'second']
        >>> commit.wait(tickets[1])  # written already
    """

    def __init__(self, write: Callable[[Sequence[bytes]], None]) -> None:
        self._write = write
        self._writing = threading.Lock()
        self._queueing = threading.Lock()
        self._queue: list[_Ticket] = []

    def enter(self, frame: bytes) -> _Ticket:
        """Queue a frame; ``wait`` must follow."""
        ticket = _Ticket(frame)
        with self._queueing:
            self._queue.append(ticket)
        return ticket

    def wait(self, ticket: _Ticket) -> None:
        """Return once the frame is written. Raises what ``write`` raised for it."""
        with self._writing:
            if not ticket.done:
                self._write_all()
        if ticket.error is not None:
            raise ticket.error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No frame is written while the block runs."""
        with self._writing:
            yield

    def _write_all(self) -> None:
        with self._queueing:
            tickets, self._queue = self._queue, []
        try:
            self._write([ticket.frame for ticket in tickets])
        except BaseException as error:  # interrupts too: other threads wait for these tickets
            for ticket in tickets:
                ticket.error = error
        for ticket in tickets:
            ticket.done = True


_MAGIC = b"\xf5RLF"
#: Magic, kind, length of the payload, CRC-32 of kind and payload; little-endian.
_HEAD = struct.Struct("<4sBII")
#: Kinds of frames: a table's schema, and a batch of its rows.
_SCHEMA_OF = {"decisions": 1, "outcomes": 2}
_ROWS_OF = {"decisions": 3, "outcomes": 4}
#: Most bytes of a frame: a longer one has a damaged length field.
_MOST = 1 << 31


def rows_frame(table: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The frame that adds ``rows`` to ``table`` (``decisions`` or ``outcomes``)."""
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMAS[table])
    return _frame(_ROWS_OF[table], batch.serialize().to_pybytes())


def _frame(kind: int, payload: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, kind, len(payload), zlib.crc32(payload, kind))
    return head + payload


class SegmentWriter:
    """A new segment at ``path``. Raises OSError as the disk does, and then leaves no file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self.size = 0
        try:
            self.write(
                [_frame(_SCHEMA_OF[t], s.serialize().to_pybytes()) for t, s in SCHEMAS.items()]
            )
            sync(path.parent)
        except BaseException:
            self.close()
            path.unlink()
            raise

    def write(self, frames: Sequence[bytes]) -> None:
        """Append ``frames``: all of them are on disk when this returns.

        Raises OSError as the disk does; the part that was written is truncated.
        """
        data = memoryview(b"".join(frames))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, self.size)
            os.lseek(self._descriptor, self.size, os.SEEK_SET)
            raise
        self.size += len(data)

    def close(self) -> None:
        """Close the file; all of it is on disk already."""
        os.close(self._descriptor)


@value
class SegmentContent:
    """The content of a segment.

    tables: rows by table. damaged: unreadable bytes in the middle. unfinished: bytes at the end, of
    a write that was never acknowledged or is under way.
    """

    tables: Mapping[str, pa.Table]
    damaged: int
    unfinished: int


def read_segment(path: Path) -> SegmentContent:
    """Every whole frame of the segment at ``path``. Raises OSError as the disk does."""
    data = path.read_bytes()
    schemas: dict[int, pa.Schema] = {}
    batches: dict[int, list[pa.RecordBatch]] = {kind: [] for kind in _ROWS_OF.values()}
    end = damaged = 0
    for start, stop, kind, payload in _frames(data):
        damaged += start - end
        end = stop
        if kind in _SCHEMA_OF.values():
            schemas[kind] = pa.ipc.read_schema(pa.py_buffer(payload))
        elif (schema := schemas.get(kind - len(_SCHEMA_OF))) is None:
            damaged += stop - start
        else:
            batches[kind].append(pa.ipc.read_record_batch(pa.py_buffer(payload), schema))
    tables = {
        name: pa.Table.from_batches(batches[kind], schemas.get(_SCHEMA_OF[name], SCHEMAS[name]))
        for name, kind in _ROWS_OF.items()
    }
    return SegmentContent(tables=tables, damaged=damaged, unfinished=len(data) - end)


def _frames(data: bytes) -> Iterator[tuple[int, int, int, Any]]:
    """Start, end, kind and payload of each frame that is whole, in order."""
    place = 0
    while (place := data.find(_MAGIC, place)) >= 0:
        begin = place + _HEAD.size
        if begin > len(data):
            return
        _, kind, length, crc = _HEAD.unpack_from(data, place)
        payload = data[begin : begin + length] if length < _MOST else b""
        if len(payload) == length and zlib.crc32(payload, kind) == crc:
            yield place, begin + length, kind, payload
            place = begin + length
        else:
            place += 1
