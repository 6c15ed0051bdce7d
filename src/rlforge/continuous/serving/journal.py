"""The state of a service in SQLite: deployments, which of them are served, outcomes of trials.

Every change is one transaction, on disk when the call returns. The table ``live`` is a stack of
verified versions: the top is served, the others were served before it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlforge.continuous.serving.records import UNDER_WAY, Check, Deployment, Phase, TrialOutcome
from rlforge.errors import DeploymentError
from rlforge.system.files import atomic_path, open_database, reading
from rlforge.system.locks import RunLock

log = logging.getLogger(__name__)

FILE = "state.sqlite"
_MEND = "rlforge serve restores its copy"
VERSIONS = "versions"
"""Folder of the service's own copies of adapters."""

BACKUP = "state.backup.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS deployments (
    number INTEGER PRIMARY KEY, phase TEXT NOT NULL, strategy TEXT NOT NULL, source TEXT NOT NULL,
    path TEXT, version INTEGER NOT NULL, created_at REAL NOT NULL, changed_at REAL NOT NULL,
    checks TEXT NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS live (
    place INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL REFERENCES deployments);
CREATE TABLE IF NOT EXISTS outcomes (
    place INTEGER PRIMARY KEY AUTOINCREMENT, trial INTEGER NOT NULL REFERENCES deployments,
    arm TEXT NOT NULL, reward REAL NOT NULL, key TEXT UNIQUE, at REAL NOT NULL,
    cluster TEXT, stage TEXT);
"""

_HISTORY = "SELECT * FROM deployments ORDER BY number"
_MAKE_LIVE = "UPDATE deployments SET phase = 'live', changed_at = ? WHERE number = ? RETURNING *"
#: The versions above the one that is named last.
_ABOVE = "FROM live WHERE place > (SELECT MAX(place) FROM live WHERE number = ?)"

#: A statement and its values.
_Statement = tuple[str, Sequence[Any]]


class Journal:
    """The state in ``folder``, which the caller has locked; DeploymentError if not writable."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / FILE
        # Several threads of the event loop's pool write.
        self._lock = threading.Lock()
        self.database = _open(folder)

    # ------------------------------------------------------------ deployments

    def begin(
        self, source: str, *, strategy: str, updates: int = 0, phase: Phase = "verifying"
    ) -> Deployment:
        now, root = time.time(), self._folder.absolute().parent
        # Paths in the run are stored relative to it, so that the run can be moved.
        if Path(source).is_relative_to(root):
            source = Path(source).relative_to(root).as_posix()
        return self._changed(
            (
                # Numbers name folders, so none is given twice.
                "INSERT INTO deployments SELECT COALESCE(MAX(number) + 1, 0), ?, ?, ?, NULL, ?, ?, "
                "?, '[]', '' FROM deployments RETURNING *",
                (phase, strategy, source, updates, now, now),
            )
        )

    def advance(
        self,
        number: int,
        phase: Phase,
        *,
        path: str | None = None,
        updates: int | None = None,
        checks: Sequence[Check] | None = None,
        reason: str | None = None,
    ) -> Deployment:
        """Set the phase of a deployment, and the other facts that are given."""
        path, found = path and Path(path).name, None
        if checks is not None:
            found = json.dumps([[check.name, check.passed, check.detail] for check in checks])
        return self._changed(
            (
                "UPDATE deployments SET phase = ?, changed_at = ?, path = COALESCE(?, path), "
                "version = COALESCE(?, version), checks = COALESCE(?, checks), "
                "reason = COALESCE(?, reason) WHERE number = ? RETURNING *",
                (phase, time.time(), path, updates, found, reason, number),
            )
        )

    def promote(self, number: int) -> Deployment:
        """Make a verified version live."""
        return self._changed(
            ("UPDATE deployments SET phase = 'former' WHERE phase = 'live'", ()),
            ("INSERT INTO live (number) VALUES (?)", (number,)),
            (_MAKE_LIVE, (time.time(), number)),
        )

    def go_back_to(self, number: int, reason: str) -> Deployment:
        """Make the former version ``number`` live again; those above it are rolled back."""
        now = time.time()
        return self._changed(
            (
                "UPDATE deployments SET phase = 'rolled_back', reason = ?, changed_at = ? "
                f"WHERE number IN (SELECT number {_ABOVE})",
                (reason, now, number),
            ),
            (f"DELETE {_ABOVE}", (number,)),
            (_MAKE_LIVE, (now, number)),
        )

    def forget_former(self, keep: int) -> None:
        """Keep only the newest ``keep`` former versions, and the base, to roll back to."""
        self._change(
            (
                # The base model stays, as it needs no files.
                "DELETE FROM live WHERE number != 0 AND place NOT IN "
                "(SELECT place FROM live ORDER BY place DESC LIMIT ?)",
                (keep + 1,),
            )
        )

    def interrupt(self) -> list[Deployment]:
        """End the deployments that an earlier process left under way; returns them."""
        return [
            self.advance(d.number, "interrupted", reason=f"the service ended while {d.phase}")
            for d in self.history()
            if d.phase in UNDER_WAY
        ]

    def history(self) -> list[Deployment]:
        return [_deployment(row, self._folder) for row in self._rows(_HISTORY)]

    def live(self) -> list[Deployment]:
        """The version that is served, then the former ones, newest first."""
        rows = self._rows(
            "SELECT d.* FROM live JOIN deployments d USING (number) ORDER BY place DESC"
        )
        return [_deployment(row, self._folder) for row in rows]

    def _rows(self, query: str, *values: int) -> list[sqlite3.Row]:
        with self._lock:
            return self.database.execute(query, values).fetchall()

    # ------------------------------------------------------------ outcomes

    def add_outcome(self, trial: int, outcome: TrialOutcome, key: str | None) -> bool:
        """Add an outcome; False where one with this ``key`` exists."""
        one = outcome
        added = self._change(
            (
                "INSERT INTO outcomes (trial, arm, reward, key, at, cluster, stage) "
                # A client may report an outcome again, which must count once.
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING RETURNING place",
                (trial, one.arm, one.reward, key, time.time(), one.cluster, one.stage),
            )
        )
        return bool(added)

    def outcomes(self, trial: int) -> list[TrialOutcome]:
        rows = self._rows(
            "SELECT arm, reward, cluster, stage FROM outcomes WHERE trial = ? ORDER BY place", trial
        )
        return [TrialOutcome(**dict(row)) for row in rows]

    # ------------------------------------------------------------ the file

    def back_up(self) -> None:
        """Copy the file, to be used when it is damaged."""
        try:
            with atomic_path(self._file.with_name(BACKUP), durable=True) as work, self._lock:
                work.touch()  # SQLite would choose its mode
                self.database.execute("VACUUM INTO ?", (str(work),))
        # The older copy stays, so serving can go on.
        except (OSError, sqlite3.Error) as error:
            log.warning("no copy of %s was made: %s", self._file, error)

    def close(self) -> None:
        with self._lock:
            self.database.close()

    def _changed(self, *statements: _Statement) -> Deployment:
        """The deployment that the last of the statements returns."""
        rows = self._change(*statements)
        if not rows:
            raise DeploymentError(f"{self._file} does not know this deployment")
        return _deployment(rows[0], self._folder)

    def _change(self, *statements: _Statement) -> list[sqlite3.Row]:
        """Run statements in one transaction; returns the rows of the last one."""
        rows: list[sqlite3.Row] = []
        try:
            with self._lock, self.database as database:
                for statement, values in statements:
                    rows = database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise DeploymentError(f"{self._file} cannot be written: {error}") from error
        return rows


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[Journal]:
    """The journal in ``folder``, which no other process owns meanwhile, or else RunError."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with RunLock(folder), contextlib.closing(Journal(folder)) as journal:
        yield journal


def read_history(folder: Path) -> list[Deployment]:
    """The deployments of a service, running or not; DeploymentError where unreadable."""
    # Connecting would create the file.
    if not (folder / FILE).is_file():
        return []
    try:
        with contextlib.closing(_connect(folder / FILE)) as database:
            rows = database.execute(_HISTORY).fetchall()
    except sqlite3.Error as error:
        raise DeploymentError(f"{folder / FILE} cannot be read: {error}; {_MEND}") from error
    return [_deployment(row, folder) for row in rows]


def _open(folder: Path) -> sqlite3.Connection:
    file, backup = folder / FILE, folder / BACKUP
    try:
        if backup.is_file() and not (file.is_file() and file.stat().st_size):
            raise sqlite3.DatabaseError("it is empty")
        return _connect(file)
    except sqlite3.OperationalError as error:
        # The file is locked, not permitted or on a full disk, but whole.
        raise DeploymentError(f"{file} cannot be opened: {error}") from error
    except sqlite3.DatabaseError as error:
        if not backup.is_file():
            raise DeploymentError(
                f"{file} is damaged ({error}), and there is no copy of it; move it away to start "
                "without a history"
            ) from error
        # The damaged file is kept, as it may still be read by hand.
        aside = file.with_name(f"{FILE}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        log.error(
            "%s is damaged: %s; it is renamed to %s, and its copy is used", file, error, aside.name
        )
        with contextlib.suppress(FileNotFoundError):
            file.replace(aside)
        for suffix in ("-wal", "-shm"):
            file.with_name(FILE + suffix).unlink(missing_ok=True)
        file.write_bytes(backup.read_bytes())
        return _connect(file)


def _connect(file: Path) -> sqlite3.Connection:
    """A connection to a file that is whole; sqlite3.Error for any other."""
    database = open_database(file, isolation_level="IMMEDIATE", check_same_thread=False, timeout=10)
    try:
        database.row_factory = sqlite3.Row
        database.execute("PRAGMA journal_mode=WAL")
        # What is served must survive a power cut.
        database.execute("PRAGMA synchronous=FULL")
        (state,) = database.execute("PRAGMA quick_check").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(state)
        database.executescript(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _deployment(row: Any, folder: Path) -> Deployment:
    values = dict(row)
    if values["path"]:
        values["path"] = str(folder / VERSIONS / values["path"])
    values["updates"] = values.pop("version")
    with reading(folder / FILE, _MEND):
        checks = tuple(
            Check(name=str(name), passed=bool(passed), detail=str(detail))
            for name, passed, detail in json.loads(values.pop("checks"))
        )
    return Deployment(**values, checks=checks)
