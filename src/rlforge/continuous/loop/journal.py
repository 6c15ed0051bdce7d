"""The journal: the phase of the work on each window, entered once its result is on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.roots import read_run
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.columns import digest_of_decisions
from rlforge.continuous.decisions.records import Decision, TrainingWindow
from rlforge.continuous.decisions.store import StoreReader, store_folder
from rlforge.continuous.ruler.base import DecisionScores
from rlforge.errors import DamagedError, RunError, counted
from rlforge.record.digests import digest_of
from rlforge.record.files import RunPaths, read_json, read_jsonl, write_json
from rlforge.record.forms import checked
from rlforge.record.recorded import Check, Recorded, Say
from rlforge.record.status import is_done
from rlforge.system.files import open_database, reading
from rlforge.types import value

#: In order. ``begun``: the simulation's state that the window starts from is saved. ``collected``:
#: its decisions are stored and complete. ``scored``: their scores are stored. ``trained``: the new
#: version is a checkpoint, or there is none. ``deployed``: it serves, or was refused. ``done``: the
#: window's metrics are recorded.
PHASES = ("begun", "collected", "scored", "trained", "deployed", "done")

#: What a user can do about a damaged file that the run needs to go on.
_MEND = "put a copy in its place, and go on with --resume"


@value
class Entry:
    """The work on one window. number: from 1. facts: JSON values, by phase."""

    number: int
    window_id: str
    phase: str
    facts: Mapping[str, Mapping[str, Any]]

    def reached(self, phase: str) -> bool:
        return PHASES.index(self.phase) >= PHASES.index(phase)


class Database:
    """A file of SQLite for several threads; RunError, with a mend, for what SQLite refuses."""

    def __init__(self, file: Path, *statements: str, then: str = "") -> None:
        """Open or create ``file``, and prepare it by ``statements``. then: end of the mend."""
        self._file, self._then, self._lock = file, then, threading.RLock()
        with self._explained():
            self._connection = open_database(file, isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode=WAL", *statements):
            self.run(statement)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            mend = f"free the disk, or restore the file{self._then}"
            raise RunError(f"{self._file}: {error}; {mend}") from error


class Journal:
    """The entries of one run; the lock of its directory keeps other processes away."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path``; RunError when it is no journal or cannot be written."""
        self._path = path
        self._database = Database(
            path,
            # An entry must survive a power failure.
            "PRAGMA synchronous=FULL",
            "CREATE TABLE IF NOT EXISTS windows (number INTEGER PRIMARY KEY, "
            "window_id TEXT NOT NULL UNIQUE, phase TEXT NOT NULL, facts TEXT NOT NULL)",
            then=", and go on with --resume",
        )

    def entries(self) -> list[Entry]:
        return self._entries("SELECT * FROM windows ORDER BY number")

    def current(self) -> Entry | None:
        """The window that is not done yet, if there is one."""
        last = self.last()
        return last if last is not None and last.phase != "done" else None

    def last(self) -> Entry | None:
        found = self._entries("SELECT * FROM windows ORDER BY number DESC LIMIT 1")
        return found[0] if found else None

    def done(self) -> int:
        last = self.last()
        return 0 if last is None else last.number - (last.phase != "done")

    def begin(self, window_id: str) -> Entry:
        last = self.last()
        assert last is None or last.phase == "done", "one window after the other"
        number = last.number + 1 if last else 1
        entry = Entry(number=number, window_id=window_id, phase="begun", facts={"begun": {}})
        self._database.run(
            "INSERT INTO windows VALUES (?, ?, ?, ?)",
            *(entry.number, window_id, entry.phase, json.dumps(entry.facts)),
        )
        return entry

    def reach(self, entry: Entry, phase: str, **facts: Any) -> Entry:
        """Enter the next phase with its results, and return the entry as it is now."""
        assert PHASES.index(phase) == PHASES.index(entry.phase) + 1, f"{entry.phase} to {phase}"
        further = dataclasses.replace(entry, phase=phase, facts={**entry.facts, phase: facts})
        self._database.run(
            "UPDATE windows SET phase = ?, facts = ? WHERE number = ?",
            *(phase, json.dumps(further.facts), entry.number),
        )
        return further

    def close(self) -> None:
        self._database.close()

    def _entries(self, query: str) -> list[Entry]:
        rows = self._database.run(query)
        with reading(self._path, _MEND):
            return [
                Entry(
                    number=number,
                    window_id=window_id,
                    phase=phase,
                    facts=checked(self._path, json.loads(facts)),
                )
                for number, window_id, phase, facts in rows
            ]


class ScoreFiles:
    """Scores on disk, a file per window."""

    def __init__(self, run_dir: Path) -> None:
        self._paths = RunPaths(root=run_dir)

    def write(self, window: TrainingWindow, scores: DecisionScores) -> None:
        path = self._paths.scores(window.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = zip(window.decisions, scores.values, scores.explanations, strict=True)
        content = {
            "window_id": window.id,
            "metrics": dict(scores.metrics),
            "scores": {
                decision.id: {"score": score, "explanation": explanation}
                for decision, score, explanation in rows
            },
        }
        write_json(path, content)

    def read(self, window: TrainingWindow) -> DecisionScores:
        """The scores of ``window``, None for decisions added later; RunError for no file."""
        path = self._paths.scores(window.id)
        content = read_json(path)
        if not content:
            raise RunError(f"{path} is missing: restore it to go on with this window")
        with reading(path, _MEND):
            found = [content["scores"].get(decision.id, {}) for decision in window.decisions]
            return DecisionScores(
                values=tuple(entry.get("score") for entry in found),
                explanations=tuple(entry.get("explanation", "") for entry in found),
                metrics=content["metrics"],
            )

    def delete(self, window_ids: Collection[str]) -> None:
        for window_id in window_ids:
            self._paths.scores(window_id).unlink(missing_ok=True)


def check_windows_left(run_dir: Path, windows: int | None) -> None:
    """Raise RunError when the run has done all ``windows`` and ended by itself.

    Raises DamagedError where the journal lacks windows that are recorded.
    """
    file, noted = run_dir / "journal.sqlite", read_jsonl(RunPaths(root=run_dir).windows)
    journal = Journal(file)
    begun, done = len(journal.entries()), journal.done()
    journal.close()
    # The run would begin again, and train on its windows once more.
    if begun < len(noted):
        lacks = f"it has {counted(begun, 'window')}, and windows.jsonl has {len(noted)}"
        raise DamagedError(f"{file} is damaged ({lacks}); {_MEND}")
    # A run that was killed after its last window still has to measure what it reached.
    ended = is_done(RunPaths(root=run_dir))
    if ended and windows is not None and done >= windows:
        raise RunError(
            f"{run_dir}: already finished its {counted(done, 'window')}; go on with "
            "--more N, or in a new run with learner.initial_adapter"
        )


#: Windows that are checked by default.
_WINDOWS = 8


class RecordedWindows(Recorded):
    """Checks that decisions in the store and their scores are those that were noted."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        super().__init__(run_dir, whole, seed)
        self.config = read_run(run_dir, ContinuousConfig)

    def made(self) -> int:
        return max((row["window"] for row in read_jsonl(self.paths.windows)), default=0)

    def checks(self, say: Say) -> Iterator[Check]:
        problems, notes, checked = list[str](), list[str](), 0
        store = StoreReader(store_folder(self.config.store, self.dir))
        here = set(store.window_ids())
        steps = [row for row in self.steps.values() if "window_id" in row]
        gone = [row["window_id"] for row in steps if row["window_id"] not in here]
        # With ``keep_windows`` old windows are deleted on purpose.
        if gone and self.config.keep_windows is None:
            problems.append(f"window {gone[0]} is missing")
        elif gone:
            notes.append("windows that store.keep_windows has deleted are left out")
        kept = (row for row in steps if row["window_id"] in here)
        for row in self.some(kept, _WINDOWS):
            checked += 1
            decisions = store.decisions(window_id=row["window_id"])
            problems += self._differences(row, decisions)
        result = "decisions and scores as noted"
        yield Check("windows", "windows", checked, len(self.steps), result, problems, notes)

    def _differences(self, row: Mapping[str, Any], decisions: Sequence[Decision]) -> Iterator[str]:
        where = f"window {row['window_id']}"
        if digest_of_decisions(decisions) != row.get("decisions"):
            yield f"{where}: its decisions are not those that were noted"
        file = self.paths.scores(row["window_id"])
        scores = known = read_json(file).get("scores")
        if known is not None:
            scores = [known.get(one.id, {}).get("score") for one in decisions]
        if digest_of(scores) != row.get("scores"):
            yield f"{where}: its scores are not those that were noted ({file.name})"
