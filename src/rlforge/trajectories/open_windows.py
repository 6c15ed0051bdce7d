"""The windows that are being written: an SQLite database with one row per decision."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlforge.errors import StoreError
from rlforge.system.files import says_full_disk
from rlforge.trajectories.columns import DECISIONS, TEXTS

_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    windowId TEXT NOT NULL, id TEXT NOT NULL, agentId TEXT NOT NULL, timestamp REAL NOT NULL,
    complete INTEGER NOT NULL, facts TEXT NOT NULL, texts BLOB NOT NULL, nextState BLOB,
    PRIMARY KEY (windowId, id)
);
CREATE INDEX IF NOT EXISTS by_id ON decisions (id);
"""
_INSERT = "INSERT OR IGNORE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SIZE = "length(facts) + length(texts) + coalesce(length(nextState), 0)"
#: Columns of their own; ``facts`` has the others but for ``TEXTS``.
_OWN = ("windowId", "id", "agentId", "timestamp", "complete")
_ZSTD = pa.Codec("zstd", compression_level=1)
_LENGTH = 4

Row = Mapping[str, Any]


class OpenWindows:
    """The database ``file``, created if missing, for one process that writes.

    A call that writes is on disk when it returns, and is undone after an error. Raises StoreError
    for a file that is damaged or cannot be used; ``sqlite3.OperationalError`` for a full disk.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.RLock()
        with _errors_explained(file):
            self._database = sqlite3.connect(
                file, isolation_level=None, check_same_thread=False, timeout=10
            )
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.executescript(_SCHEMA)
                query = f"SELECT windowId, sum({_SIZE}) FROM decisions GROUP BY 1 ORDER BY 1"
                #: About how many bytes each window takes, the least recently written one first.
                self.sizes: dict[str, int] = dict(self._database.execute(query))
            except sqlite3.Error:
                self._database.close()
                raise

    def insert(self, rows: Iterable[Row]) -> int:
        """Write rows of ``columns.DECISIONS``; returns how many were new to their windows."""
        packed = [_packed(row) for row in rows]
        with self._transaction() as database:
            before = database.total_changes
            database.executemany(_INSERT, packed)
            new = database.total_changes - before
        for window_id, *_, facts, texts, following in packed:
            self._grow(window_id, len(facts) + len(texts) + len(following or b""))
        return new

    def find(self, ids: Collection[str]) -> list[tuple[str, str, bool]]:
        """``windowId``, ``id`` and ``complete`` of the decisions with these ids."""
        query = """SELECT windowId, id, complete FROM decisions
            WHERE id IN (SELECT value FROM json_each(?)) ORDER BY windowId"""
        with self._lock:
            return list(self._database.execute(query, (json.dumps(list(ids)),)))

    def complete(self, outcomes: Mapping[tuple[str, str], Row]) -> None:
        """Write outcomes, by ``windowId`` and ``id`` of decisions that are here."""
        find = "SELECT facts FROM decisions WHERE windowId = ? AND id = ?"
        update = """UPDATE decisions SET facts = ?, nextState = ?, complete = 1
            WHERE windowId = ? AND id = ?"""
        with self._transaction() as database:
            for place, row in outcomes.items():
                (facts,) = database.execute(find, place).fetchone()
                known = {name: row[name] for name in ("reward", "result", "agentStats")}
                merged, following = json.dumps(json.loads(facts) | known), row["nextState"]
                database.execute(update, (merged, _compressed(following), *place))
        for (window_id, _), row in outcomes.items():
            self._grow(window_id, len(row["nextState"]))

    def tables(self, window_id: str, rows: int) -> Iterator[pa.Table]:
        """The decisions of a window by agent and time, up to so many ``rows`` at a time."""
        query = "SELECT * FROM decisions WHERE windowId = ? ORDER BY agentId, timestamp, id"
        with self._lock:
            cursor = self._database.execute(query, (window_id,))
            while packed := cursor.fetchmany(rows):
                yield _table(packed, texts=True)

    def delete(self, window_id: str) -> None:
        """Delete a window."""
        with self._transaction() as database:
            database.execute("DELETE FROM decisions WHERE windowId = ?", (window_id,))
        del self.sizes[window_id]

    def close(self) -> None:
        """Close the file. Without a window it shrinks, and needs no further files any more."""
        with self._lock:
            try:
                # A reader in another process may hold it: then it stays as it is.
                with contextlib.suppress(sqlite3.OperationalError):
                    if not self.sizes:
                        self._database.execute("VACUUM")
                    self._database.execute("PRAGMA journal_mode=DELETE")
            finally:
                self._database.close()

    def _grow(self, window_id: str, size: int) -> None:
        self.sizes[window_id] = self.sizes.pop(window_id, 0) + size

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _errors_explained(self._file):
            try:
                self._database.execute("BEGIN IMMEDIATE")
                yield self._database
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")


def read_open_windows(
    file: Path, window_ids: Collection[str] | None, agent_id: str | None, *, texts: bool
) -> tuple[set[str], pa.Table]:
    """The open windows, and decisions in those of ``window_ids`` (None: all) and of an agent.

    texts: whether ``columns.TEXTS`` are read too; otherwise they are null. May be called while
    another process writes. Raises StoreError for a file that is damaged or cannot be used.
    """
    if not file.is_file():
        return set(), DECISIONS.empty_table()
    # Without texts their pages are not read either.
    rest = "texts, nextState" if texts else "NULL, NULL"
    query, given = f"SELECT {', '.join(_OWN)}, facts, {rest} FROM decisions WHERE true", []
    if window_ids is not None:
        query += " AND windowId IN (SELECT value FROM json_each(?))"
        given.append(json.dumps(list(window_ids)))
    if agent_id is not None:
        query += " AND agentId = ?"
        given.append(agent_id)
    with _errors_explained(file):
        connection = sqlite3.connect(
            f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=10
        )
        with contextlib.closing(connection) as database:
            database.execute("BEGIN")
            here = {name for (name,) in database.execute("SELECT DISTINCT windowId FROM decisions")}
            return here, _table(database.execute(query, given).fetchall(), texts=texts)


def _packed(row: Row) -> tuple[Any, ...]:
    facts = {name: row[name] for name in row if name not in (*_OWN, *TEXTS)}
    texts = [row[name] for name in TEXTS if name != "nextState"]
    following = row["nextState"]
    return (
        *(row[name] for name in _OWN),
        json.dumps(facts),
        _compressed(json.dumps(texts)),
        None if following is None else _compressed(following),
    )


def _table(packed: Sequence[tuple[Any, ...]], *, texts: bool) -> pa.Table:
    return pa.Table.from_pylist([_unpacked(row, texts=texts) for row in packed], schema=DECISIONS)


def _unpacked(packed: tuple[Any, ...], *, texts: bool) -> dict[str, Any]:
    *own, facts, rest, following = packed
    row: dict[str, Any] = dict(zip(_OWN, own, strict=True)) | json.loads(facts)
    row["complete"] = bool(row["complete"])
    if texts:
        names = [name for name in TEXTS if name != "nextState"]
        row |= zip(names, json.loads(_text(rest)), strict=True)
        row["nextState"] = None if following is None else _text(following)
    return row


def _compressed(text: str) -> bytes:
    content = text.encode()
    return len(content).to_bytes(_LENGTH, "little") + bytes(_ZSTD.compress(content, asbytes=True))


def _text(compressed: bytes) -> str:
    size = int.from_bytes(compressed[:_LENGTH], "little")
    content = _ZSTD.decompress(compressed[_LENGTH:], decompressed_size=size, asbytes=True)
    return bytes(content).decode()


@contextlib.contextmanager
def _errors_explained(file: Path) -> Iterator[None]:
    """StoreError for what SQLite raises, but for a full disk, which the store explains."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if says_full_disk(error):
            raise
        raise StoreError(f"{file} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"{file} is damaged ({error}); move it away to use the other windows, or try "
            "sqlite3's .recover on it"
        ) from error
