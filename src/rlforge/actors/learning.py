"""The learner as an actor, with its checkpoints on disk."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlforge.actors.process import enter, limit_threads
from rlforge.checkpoint import extend_checkpoint, write_checkpoint
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.learner.build import make_learner, read_state, write_state
from rlforge.types import Checkpoint, TrainBatch, UpdateResult
from rlforge.utilisation import Span


class LearnerActor:
    """The learner, its checkpoints on disk."""

    def __init__(self, config: RunConfig, hardware: HardwareConfig, run_dir: str) -> None:
        enter("learner", run_dir)
        limit_threads(hardware.threads)
        self._checkpoints = Path(run_dir) / "checkpoints"
        self._config = config
        self._learner = make_learner(config, device=hardware.device)

    def update(self, batch: TrainBatch | None) -> tuple[UpdateResult, Span] | None:
        """Learn from ``batch``; also says when. None in, None out: the buffer was stopped."""
        if batch is None:
            return None
        started = time.time()
        result = self._learner.update(batch)
        metrics = {**result.metrics, "dropped_stale": float(batch.dropped_stale)}
        return dataclasses.replace(result, metrics=metrics), (started, time.time())

    def save(self, version: int, parent_uid: str | None) -> Checkpoint:
        """Write version ``version`` as it is now."""
        path = write_checkpoint(
            self._checkpoints,
            f"step-{version}",
            self._learner.save,
            {"version": version, "experiment": self._config.name},
        )
        return Checkpoint(
            uid=f"step-{version}", version=version, path=str(path), parent_uid=parent_uid
        )

    def save_state(self, version: int, others: Mapping[str, Any]) -> None:
        """Put beside version ``version`` what a resumed run needs."""
        path = self._checkpoints / f"step-{version}"
        extend_checkpoint(path, lambda folder: write_state(folder, self._learner, others))

    def load_state(self, version: int) -> dict[str, Any]:
        """Continue from version ``version``; returns what the other actors saved."""
        return read_state(self._checkpoints / f"step-{version}", self._learner)
