"""A finished run as its files record it, for checks; and what a check finds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlforge.config.continuous import ContinuousConfig
from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.system.checkpoint import is_step_name, list_checkpoints, step_number
from rlforge.tracking.digests import FILE
from rlforge.tracking.files import RunPaths, read_jsonl
from rlforge.types import GameRecord, TrainBatch, value

Say = Callable[[str], None]
"""Called with progress messages."""


@value
class Check:
    """One kind of check. checked, total: how many things of a kind, such as games.

    problems: what does not agree, first things first. notes: what was left out, and why.
    """

    name: str
    things: str
    checked: int
    total: int
    result: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Recorded:
    """What the checks read of a run, and how much of it.

    lines: of its digests; steps: those of updates, or of the windows of a continuous run, by
    number. unit: what a step is.
    """

    unit = "update"

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        self.dir, self.whole, self.rng = run_dir.absolute(), whole, random.Random(seed)
        self.paths = RunPaths(root=self.dir)
        self.lines = read_jsonl(self.dir / FILE)
        self.steps = {
            row["step"]: row for row in self.lines if row["step"] > 0 and "final" not in row
        }
        self.computed: Mapping[str, Any] = self.lines[0].get("computed", {}) if self.lines else {}
        self.folders = {path.name: path for path in list_checkpoints(self.paths.checkpoints)}

    def made(self) -> int:
        """The number of the last step."""
        return max((row["step"] for row in read_jsonl(self.paths.metrics)), default=0)

    def some(self, things: Iterable[Any], number: int) -> list[Any]:
        """All of them, or so many by chance, in order."""
        all_of = list(things)
        if self.whole or len(all_of) <= number:
            return all_of
        return [all_of[place] for place in sorted(self.rng.sample(range(len(all_of)), number))]


class RecordedGames(Recorded):
    """Of a run that plays games. batches, records: those that the checks have read."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        super().__init__(run_dir, whole, seed)
        self.config = read_run(run_dir, RunConfig)
        self.batches: dict[int, TrainBatch] = {}
        self.records: dict[str, GameRecord] = {}

    def made_in(self, uid: str) -> int:
        """The part of the run that made a version: how often it had been resumed before."""
        return int(self.steps.get(step_number(uid), {}).get("part", 0)) if is_step_name(uid) else 0

    def batch_file(self, number: int) -> Path:
        """Where the batch of an update is, in the first format that it is in."""
        stem = self.dir / "batches" / f"batch-{number:06d}"
        return stem.with_suffix(f".{self.config.buffer.save_batches_as[0]}")


class RecordedWindows(Recorded):
    """Of a continuous run."""

    unit = "window"

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        super().__init__(run_dir, whole, seed)
        self.config = read_run(run_dir, ContinuousConfig)

    def made(self) -> int:
        return max((row["window"] for row in read_jsonl(self.paths.windows)), default=0)
