"""The journal: which window is being worked on, and how far that work has come.

One SQLite file in the run directory. A phase is entered once its result is on disk, so that a
process that is killed at any moment finds there what it need not, and must not, do again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlforge.errors import RunError
from rlforge.types import value

#: In order. ``begun``: the world that the window starts from is saved. ``collected``: its decisions
#: are stored and complete. ``scored``: so are their scores. ``trained``: the new version is a
#: checkpoint, or there is none. ``deployed``: it serves, or was refused. ``done``: all is recorded.
PHASES = ("begun", "collected", "scored", "trained", "deployed", "done")


@value
class Entry:
    """The work on one window. number: from 1. facts: JSON values, by phase that noted them."""

    number: int
    window_id: str
    phase: str
    facts: Mapping[str, Mapping[str, Any]]

    def reached(self, phase: str) -> bool:
        """Whether ``phase`` is over."""
        return PHASES.index(self.phase) >= PHASES.index(phase)


class Journal:
    """The entries of one run. One process at a time holds the run directory, and so the file."""

    def __init__(self, path: Path) -> None:
        """Open or make ``path``. Raises RunError when it is not a journal, or cannot be written."""
        self._path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            # A phase that was entered must stay entered when the machine loses power.
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS windows (number INTEGER PRIMARY KEY, "
                "window_id TEXT NOT NULL UNIQUE, phase TEXT NOT NULL, facts TEXT NOT NULL)"
            )
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def entries(self) -> list[Entry]:
        """All windows, in order."""
        return self._read("SELECT * FROM windows ORDER BY number")

    def current(self) -> Entry | None:
        """The window whose work has begun and is not done."""
        found = self._read(
            "SELECT * FROM windows WHERE phase != 'done' ORDER BY number DESC LIMIT 1"
        )
        return found[0] if found else None

    def last(self) -> Entry | None:
        """The newest window, done or not."""
        found = self._read("SELECT * FROM windows ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def begin(self, window_id: str, **facts: Any) -> Entry:
        """Start work on the next window."""
        last = self.last()
        assert last is None or last.phase == "done", "one window after the other"
        entry = Entry(
            number=last.number + 1 if last else 1,
            window_id=window_id,
            phase="begun",
            facts={"begun": facts},
        )
        self._write(
            "INSERT INTO windows VALUES (?, ?, ?, ?)",
            (entry.number, window_id, entry.phase, json.dumps(entry.facts)),
        )
        return entry

    def reach(self, entry: Entry, phase: str, **facts: Any) -> Entry:
        """``entry`` one phase further, with what that phase came to."""
        assert PHASES.index(phase) == PHASES.index(entry.phase) + 1, f"{entry.phase} to {phase}"
        further = Entry(
            number=entry.number,
            window_id=entry.window_id,
            phase=phase,
            facts={**entry.facts, phase: facts},
        )
        self._write(
            "UPDATE windows SET phase = ?, facts = ? WHERE number = ?",
            (phase, json.dumps(further.facts), entry.number),
        )
        return further

    def close(self) -> None:
        """Give back the file; closing twice is fine."""
        self._database.close()

    def _read(self, query: str) -> list[Entry]:
        try:
            rows = self._database.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return [
            Entry(number=number, window_id=window_id, phase=phase, facts=json.loads(facts))
            for number, window_id, phase, facts in rows
        ]

    def _write(self, statement: str, values: tuple[Any, ...]) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> RunError:
        return RunError(
            f"{self._path}: {error}; free the disk, or restore the file, and go on with --resume"
        )
