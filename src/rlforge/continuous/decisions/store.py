"""The store of decisions: one SQLite file, which one process writes and any number read.

SQLite's write-ahead log shows each query the database as it was when the query began, and after a
kill ends with the last call that returned.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.columns import decision_row, outcome_row, to_decisions
from rlforge.continuous.decisions.records import Decision, DecisionOutcome
from rlforge.errors import DamagedError, StoreError
from rlforge.system.files import (
    open_database,
    readable_size,
    reading,
    says_full_disk,
    sync,
    unreadable,
)
from rlforge.system.locks import RunLock

#: The database in the folder of a store, and what stores of earlier versions have instead.
FILE, EARLIER = "decisions.sqlite", "store.json"
#: Version of the table and its columns, SQLite's ``user_version``.
VERSION = 4

# The long texts are compressed, which also gives them a checksum, and come last, so that queries of
# the other columns do not read them. Structs are JSON.
_TEXTS = ("state", "nextState", "observation", "completion")
_STRUCTS = ("metadata", "result", "agentStats", "completion")
_COLUMNS = (
    *("id", "agentId", "windowId", "timestamp", "complete", "reward", "action"),
    *("metadata", "result", "agentStats", *_TEXTS),
)
_SCHEMA = f"""
BEGIN;
CREATE TABLE decisions ({", ".join(_COLUMNS)}, PRIMARY KEY (id, windowId));
CREATE INDEX in_order ON decisions (windowId, timestamp, id);
PRAGMA user_version = {VERSION};
COMMIT;
"""
_INSERT = f"INSERT OR IGNORE INTO decisions VALUES ({', '.join('?' * len(_COLUMNS))})"
#: What an outcome knows of its decision.
_OUTCOME = ("reward", "result", "agentStats", "nextState")
_COMPLETE = f"""UPDATE decisions SET complete = 1, {", ".join(f"{name} = ?" for name in _OUTCOME)}
    WHERE id = ? AND NOT complete"""

_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM decisions"
#: What is counted: empty states, no prompts and answers.
_BRIEF = f"""SELECT {", ".join(name for name in _COLUMNS if name not in _TEXTS)},
    '{{}}' AS state, iif(nextState IS NULL, NULL, '{{}}') AS nextState FROM decisions"""
_KNOWN = "SELECT id FROM decisions WHERE id IN (SELECT value FROM json_each(?))"
# DISTINCT would visit every decision; this goes from one window to the next in the index.
_WINDOW_IDS = """
    WITH RECURSIVE windows (one) AS (
        SELECT min(windowId) FROM decisions UNION ALL
        SELECT (SELECT min(windowId) FROM decisions WHERE windowId > one) FROM windows
        WHERE one <> ''
    ) SELECT one FROM windows WHERE one <> ''
"""

#: Seconds that a call waits for another process to release the file.
_PATIENCE_S = 10.0

#: What a user can do about a damaged store.
_MEND = "put a copy in its place, or try sqlite3's .recover on it"

Row = Mapping[str, Any]


def store_folder(config: StoreConfig, run_dir: Path) -> Path:
    return run_dir / "store" if config.path is None else Path(config.path)


def check_store(root: Path) -> None:
    """Raise StoreError unless the folder ``root`` holds a store that this rlforge reads."""
    file = root / FILE
    if (root / EARLIER).is_file():
        raise StoreError(
            f"{root / EARLIER}: the store of an earlier rlforge; begin a new one (store.path), or "
            "bring its decisions: rlforge windows export with that rlforge, import with this one"
        )
    if not root.exists():
        raise StoreError(f"no trajectory store {root}")
    if not file.is_file():
        raise StoreError(f"{root} is no trajectory store: it has no {FILE}")
    [(version,)] = _read(file, "PRAGMA user_version")
    if version != VERSION:
        mend = "update rlforge" if version > VERSION else "begin a new store (store.path)"
        raise StoreError(f"{file}: version {version}, and this rlforge reads {VERSION}; {mend}")


class StoreReader:
    """The decisions in the folder ``root`` at each query. Threads may share a reader.

    Raises StoreError for what is no store of this version or cannot be used, and DamagedError.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        self._file = self.root / FILE
        check_store(self.root)

    def window_ids(self) -> list[str]:
        """Windows that hold decisions, in order of time."""
        return [window_id for (window_id,) in _read(self._file, _WINDOW_IDS)]

    def decisions(self, window_id: str | None = None, *, brief: bool = False) -> list[Decision]:
        """The decisions of a window, or all, in order of time.

        brief: without states, prompts and answers, in a fifth of the time.
        """
        return self._decisions(self.rows(window_id, brief=brief))

    def rows(self, window_id: str | None = None, *, brief: bool = False) -> list[Row]:
        """``decisions`` in the form of ``columns.decision_row``."""
        where, given = ("", ()) if window_id is None else ("WHERE windowId = ?", (window_id,))
        select = _BRIEF if brief else _SELECT
        return self._rows(f"{select} {where} ORDER BY windowId, timestamp, id", *given)

    def newest(
        self, count: int, *, before: float = math.inf, complete: bool = False
    ) -> list[Decision]:
        """The newest ``count`` decisions before a time, in order of time.

        complete: only those whose outcome is known.
        """
        which = "complete AND" if complete else ""
        newest = "ORDER BY windowId DESC, timestamp DESC, id DESC LIMIT ?"
        rows = self._rows(f"{_SELECT} WHERE {which} timestamp < ? {newest}", before, count)
        return self._decisions(rows[::-1])

    def _decisions(self, rows: Sequence[Row]) -> list[Decision]:
        with reading(self._file, _MEND):
            return to_decisions(rows)

    def _rows(self, query: str, *given: Any) -> list[Row]:
        found = _read(self._file, query, *given)
        with reading(self._file, _MEND):
            return [_row(cells) for cells in found]


class TrajectoryStore(StoreReader):
    """The store in the folder ``root``, created if missing, open for reading and writing.

    Threads may append concurrently. Raises RunError naming the process that writes to it already,
    StoreError as ``StoreReader`` does and on a full disk.
    """

    def __init__(self, root: Path | str) -> None:
        root = Path(root)
        self._lock = threading.RLock()
        with errors_explained(root / FILE), contextlib.ExitStack() as undo:
            _make_folder(root)
            # The lock's error names the process that writes; SQLite's does not.
            undo.enter_context(RunLock(root))
            self._database = undo.enter_context(
                contextlib.closing(
                    open_database(
                        root / FILE,
                        # A transaction takes the lock at its start, not halfway.
                        isolation_level="IMMEDIATE",
                        check_same_thread=False,
                        timeout=_PATIENCE_S,
                    )
                )
            )
            # FULL: every commit is synced. Large pages: a state takes a few kB.
            for setting in ("page_size = 16384", "journal_mode = WAL", "synchronous = FULL"):
                self._database.execute(f"PRAGMA {setting}")
            # 0: a new file, or one whose creation was interrupted.
            if self._database.execute("PRAGMA user_version").fetchone() == (0,):
                self._database.executescript(_SCHEMA)
            super().__init__(root)
            self._closing = undo.pop_all()

    def append(self, decisions: Iterable[Decision]) -> int:
        """Write decisions to the disk; returns how many were new to their windows.

        Raises RlforgeError, and writes none, if one cannot be stored or the disk is full.
        """
        return self.append_rows(map(decision_row, decisions))

    def append_rows(self, rows: Iterable[Row]) -> int:
        """Append decisions in the form of ``columns.decision_row``."""
        return self._write(_INSERT, (_cells(row, _COLUMNS) for row in rows))

    def complete(self, outcomes: Sequence[DecisionOutcome]) -> int:
        """Write outcomes of decisions to the disk; returns how many had none.

        Raises as ``append`` does, and StoreError if a decision is not in the store.
        """
        rows = {row["id"]: row for row in map(outcome_row, outcomes)}
        known = {one for (one,) in _read(self._file, _KNOWN, json.dumps(list(rows)))}
        if unknown := rows.keys() - known:
            raise StoreError(
                f"no decision {min(unknown)!r} in {self.root}; its outcome cannot be kept"
            )
        return self._write(_COMPLETE, (_cells(row, (*_OUTCOME, "id")) for row in rows.values()))

    def delete(self, window_ids: Collection[str]) -> None:
        """Delete windows with their decisions, if they are there."""
        self._write("DELETE FROM decisions WHERE windowId = ?", [(one,) for one in window_ids])

    def close(self) -> None:
        """Leave one file without a log, and let another process write."""
        # Suppressed: while another process reads, the log stays beside the file.
        with self._lock, self._closing, contextlib.suppress(sqlite3.Error):
            self._database.execute("PRAGMA journal_mode = DELETE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, statement: str, rows: Iterable[Sequence[Any]]) -> int:
        """Run ``statement`` for all rows or for none; returns the rows changed."""
        with self._lock, errors_explained(self._file), self._database as database:
            return database.executemany(statement, rows).rowcount


@contextlib.contextmanager
def errors_explained(target: Path) -> Iterator[None]:
    """Name ``target`` in errors of SQLite and of a full disk, while it is used."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if says_full_disk(error):
            folder = next(path for path in (target, *target.absolute().parents) if path.exists())
            free = readable_size(shutil.disk_usage(folder).free)
            raise StoreError(
                f"no space on disk for {target}: {free} free; free some; what was written before "
                "is kept"
            ) from error
        if isinstance(error, OSError):
            raise
        if isinstance(error, sqlite3.OperationalError):
            denied = unreadable(target)
            raise StoreError(denied or f"{target} cannot be used: {error}") from error
        raise DamagedError(f"{target} is damaged ({error}); {_MEND}") from error


def _make_folder(root: Path) -> None:
    """Make the folder of a new store; one that holds something else is refused."""
    if not root.exists():
        root.mkdir(parents=True)
        sync(root.parent)
    elif not root.is_dir() or any(
        not path.name.startswith((FILE, RunLock.FILE)) for path in root.iterdir()
    ):
        check_store(root)


def _read(file: Path, query: str, *given: Any) -> list[sqlite3.Row]:
    """The rows of a query, while another process may be writing the file."""
    with errors_explained(file):
        # Not ``mode=ro``: the first to open the file undoes what a killed writer began.
        uri = f"{file.absolute().as_uri()}?mode=rw"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_PATIENCE_S)) as database:
            database.row_factory = sqlite3.Row
            return database.execute(query, given).fetchall()


def _cells(row: Row, names: Iterable[str]) -> list[Any]:

    def cell(name: str, content: Any) -> Any:
        if content is None:
            return None
        text = json.dumps(content) if name in _STRUCTS else content
        # Level 1 takes 20 µs for a state of 2 kB; higher ones save little more.
        return zlib.compress(text.encode(), 1) if name in _TEXTS else text

    return [cell(name, row[name]) for name in names]


def _row(cells: sqlite3.Row) -> Row:
    """The inverse of ``_cells``."""
    row: dict[str, Any] = dict(cells)
    for name, content in row.items():
        text = zlib.decompress(content).decode() if isinstance(content, bytes) else content
        row[name] = json.loads(text) if name in _STRUCTS and text is not None else text
    row["complete"] = row["complete"] == 1
    return row
