"""The windows that are being written: an SQLite database with one row per decision.

Structs are JSON text. Long texts come last, so that other queries do not read their pages.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from rlforge.continuous.decisions.columns import DECISIONS, TEXTS
from rlforge.errors import StoreError
from rlforge.system.files import says_full_disk

_NAMES = ["windowId", *(n for n in DECISIONS.names if n not in ("windowId", *TEXTS)), *TEXTS]
_STRUCTS = [field.name for field in DECISIONS if pa.types.is_struct(field.type)]
#: The index has the order of the rows of a closed window.
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS decisions ({", ".join(_NAMES)}, PRIMARY KEY (id, windowId));
CREATE INDEX IF NOT EXISTS in_order ON decisions (windowId, agentId, timestamp, id);
"""
_SIZES = f"""SELECT windowId, sum({" + ".join(f"ifnull(length({name}), 0)" for name in TEXTS)})
    FROM decisions GROUP BY windowId ORDER BY max(rowid)"""
_INSERT = f"""INSERT OR IGNORE INTO decisions ({", ".join(_NAMES)})
    VALUES ({", ".join("?" * len(_NAMES))})"""
#: What an outcome knows of its decision.
_OUTCOME = ("reward", "result", "agentStats", "nextState")
_COMPLETE = f"""UPDATE decisions SET complete = 1, {", ".join(f"{name} = ?" for name in _OUTCOME)}
    WHERE id = ? AND NOT complete"""

Row = Mapping[str, Any]


class OpenWindows:
    """The database ``file``, created if missing, for one thread at a time of the writer.

    What a call writes is on disk when it returns. Raises StoreError for a file that is damaged or
    cannot be used; ``sqlite3.OperationalError`` for a full disk.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        with errors_explained(file):
            self._database = sqlite3.connect(
                file, isolation_level="IMMEDIATE", check_same_thread=False, timeout=10
            )
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
                self._database.execute("PRAGMA synchronous=FULL")
                self._database.executescript(_SCHEMA)
                #: Characters of the long texts of each window, the least recently written first.
                self.sizes: dict[str, int] = dict(self._database.execute(_SIZES))
            except sqlite3.Error:
                self._database.close()
                raise

    def insert(self, rows: Iterable[Row]) -> int:
        """Write rows of ``columns.DECISIONS``; returns how many were new to their windows."""
        written = [_cells(row, _NAMES) for row in rows]
        new = self._write(_INSERT, written)
        for cells in written:
            self._grow(cells[0], *cells[-len(TEXTS) :])
        return new

    def complete(self, outcomes: Mapping[str, Row]) -> int:
        """Write outcomes of decisions that are here, by their ids; returns how many had none."""
        new = self._write(_COMPLETE, [_cells(row, (*_OUTCOME, "id")) for row in outcomes.values()])
        for one, window_id in self.find(outcomes).items():
            self._grow(window_id, outcomes[one]["nextState"])
        return new

    def find(self, ids: Iterable[str]) -> dict[str, str]:
        """The windows of those of these decisions that are here."""
        query = "SELECT id, windowId FROM decisions WHERE id = ?"
        with errors_explained(self._file):
            rows = (self._database.execute(query, (one,)).fetchone() for one in ids)
            return dict(row for row in rows if row)

    def tables(self, window_id: str, rows: int) -> Iterator[pa.Table]:
        """The decisions of a window by agent and time, up to so many ``rows`` at a time."""
        query = f"SELECT {', '.join(_NAMES)} FROM decisions WHERE windowId = ?"
        cursor = self._database.execute(f"{query} ORDER BY agentId, timestamp, id", (window_id,))
        while found := cursor.fetchmany(rows):
            yield _table(found)

    def delete(self, window_id: str) -> None:
        """Delete a window."""
        self._write("DELETE FROM decisions WHERE windowId = ?", [(window_id,)])
        del self.sizes[window_id]

    def close(self) -> None:
        """Close the file. Without a window it shrinks, and needs no further files any more."""
        # A reader in another process may hold it: then it stays as it is.
        with contextlib.closing(self._database), contextlib.suppress(sqlite3.OperationalError):
            if not self.sizes:
                self._database.execute("VACUUM")
            self._database.execute("PRAGMA journal_mode=DELETE")

    def _write(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        with errors_explained(self._file), self._database as database:
            return database.executemany(statement, rows).rowcount

    def _grow(self, window_id: str, *texts: str | None) -> None:
        size = self.sizes.pop(window_id, 0)
        self.sizes[window_id] = size + sum(len(text) for text in texts if text)


def read_open_windows(
    file: Path, window_ids: Collection[str] | None, agent_id: str | None, *, texts: bool
) -> tuple[set[str], pa.Table]:
    """The open windows, and decisions in those of ``window_ids`` (None: all) and of an agent.

    texts: whether ``columns.TEXTS`` are not null. Another process may write meanwhile. Raises
    StoreError for a file that is damaged or cannot be used.
    """
    if not file.is_file():
        return set(), DECISIONS.empty_table()
    where, given = "true", []
    if window_ids is not None:
        where += " AND windowId IN (SELECT value FROM json_each(?))"
        given.append(json.dumps(list(window_ids)))
    if agent_id is not None:
        where += " AND agentId = ?"
        given.append(agent_id)
    with errors_explained(file):
        uri = f"{file.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
        with contextlib.closing(connection) as database:
            database.execute("BEGIN")
            here = {name for (name,) in database.execute("SELECT DISTINCT windowId FROM decisions")}
            columns = ", ".join(n if texts or n not in TEXTS else "NULL" for n in _NAMES)
            found = database.execute(f"SELECT {columns} FROM decisions WHERE {where}", given)
            return here, _table(found.fetchall())


@contextlib.contextmanager
def errors_explained(file: Path) -> Iterator[None]:
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


def _cells(row: Row, names: Iterable[str]) -> list[Any]:
    """The contents of these columns as the database takes them."""
    cells = ((name, row[name]) for name in names)
    return [json.dumps(c) if name in _STRUCTS and c is not None else c for name, c in cells]


def _table(rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Rows of ``_NAMES`` as a table of ``columns.DECISIONS``."""
    if not rows:
        return DECISIONS.empty_table()
    columns: dict[str, Sequence[Any]] = dict(zip(_NAMES, zip(*rows, strict=True), strict=True))
    for name in _STRUCTS:
        columns[name] = json.loads(f"[{','.join(text or 'null' for text in columns[name])}]")
    columns["complete"] = [done == 1 for done in columns["complete"]]
    return pa.table(columns, schema=DECISIONS)
