"""Whether the windows of a finished continuous run are what it says (``rlforge verify``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.roots import read_run
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.columns import digest_of_decisions
from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.decisions.store import StoreReader, store_folder
from rlforge.record.digests import digest_of
from rlforge.record.files import read_json, read_jsonl
from rlforge.record.recorded import Check, Recorded, Say

#: Windows that are checked by default.
_WINDOWS = 8


class RecordedWindows(Recorded):
    """A continuous run, whose decisions in the store and their scores are those that were noted."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        super().__init__(run_dir, whole, seed)
        self.config = read_run(run_dir, ContinuousConfig)

    def made(self) -> int:
        return max((row["window"] for row in read_jsonl(self.paths.windows)), default=0)

    def checks(self, say: Say) -> Iterator[Check]:
        problems, notes, checked = list[str](), list[str](), 0
        store = StoreReader(store_folder(self.config.store, self.dir))
        here = set(store.window_ids())
        gone = [row["window_id"] for row in self.steps.values() if row["window_id"] not in here]
        if gone and self.config.store.keep_windows is None:
            problems.append(f"window {gone[0]} is missing")
        elif gone:
            notes.append("windows that store.keep_windows has deleted are left out")
        kept = (row for row in self.steps.values() if row["window_id"] in here)
        for row in self.some(kept, _WINDOWS):
            checked += 1
            decisions = store.decisions(window_id=row["window_id"])
            problems += self._differences(row, decisions)
        result = "decisions and scores as noted"
        yield Check("windows", "windows", checked, len(self.steps), result, problems, notes)

    def _differences(self, row: Mapping[str, Any], decisions: Sequence[Decision]) -> Iterator[str]:
        where = f"window {row['window_id']}"
        if digest_of_decisions(decisions) != row["decisions"]:
            yield f"{where}: its decisions are not those that were noted"
        scores = known = read_json(self.paths.scores(row["window_id"])).get("scores")
        if known is not None:
            scores = [known.get(one.id, {}).get("score") for one in decisions]
        if digest_of(scores) != row["scores"]:
            yield f"{where}: its scores are not those that were noted"
