"""A run of games as its files record it, for checks."""

from __future__ import annotations

from pathlib import Path

from rlforge.config.roots import read_run
from rlforge.config.schema import RunConfig
from rlforge.record.files import read_jsonl
from rlforge.record.recorded import Recorded
from rlforge.samples import TrainBatch
from rlforge.system.checkpoint import is_step_name, step_number
from rlforge.types import GameRecord


class RecordedGames(Recorded):
    """A run of games, with the batches and games that the checks have read."""

    def __init__(self, run_dir: Path, whole: bool, seed: int) -> None:
        super().__init__(run_dir, whole, seed)
        self.config = read_run(run_dir, RunConfig)
        self.batches: dict[int, TrainBatch] = {}
        self.records: dict[str, GameRecord] = {}

    def made(self) -> int:
        return max((row["step"] for row in read_jsonl(self.paths.metrics)), default=0)

    def made_in(self, uid: str) -> int:
        """How often the run had been resumed before it made the version ``uid``."""
        return int(self.steps.get(step_number(uid), {}).get("part", 0)) if is_step_name(uid) else 0

    def batch_file(self, number: int) -> Path:
        stem = self.dir / "batches" / f"batch-{number:06d}"
        return stem.with_suffix(f".{self.config.buffer.save_batches_as[0]}")
