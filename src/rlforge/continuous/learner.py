"""One update per window, each in a checkpoint that names the window."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from rlforge.learner import Learner, read_state, write_state
from rlforge.system.checkpoint import (
    checkpoint_version,
    list_checkpoints,
    read_manifest,
    step_name,
    step_number,
    write_checkpoint,
)
from rlforge.train.resume import Retention
from rlforge.types import Checkpoint, TrainBatch, value

log = logging.getLogger(__name__)


@value
class Trained:
    """A new version, on disk. metrics: of the update; samples: decisions it learned from."""

    checkpoint: Checkpoint
    samples: int
    metrics: Mapping[str, float]


class WindowLearner:
    """The learner, and ``checkpoints/step-N`` of the run directory.

    A checkpoint holds weights and state together and is there whole or not at all. Its manifest
    names the window: it is the only record of an update, and so decides whether a window was
    trained on. One call at a time.
    """

    def __init__(self, learner: Learner, root: Path, experiment: str) -> None:
        self._learner = learner
        self._root = root
        self._experiment = experiment
        self._standing: str | None = None

    @property
    def standing(self) -> str:
        """The version that the weights are of, which the next one is trained from."""
        assert self._standing is not None, "begin or restore comes first"
        return self._standing

    @property
    def version(self) -> int:
        """Number of ``standing``."""
        return step_number(self.standing)

    async def begin(self) -> Checkpoint:
        """Version 0 on disk: the model before the first window, to which a refusal leads back."""
        if not (self._root / step_name(0)).exists():
            await self._save(0, None, None, {})
        return await self.restore(step_name(0))

    async def restore(self, uid: str) -> Checkpoint:
        """Go on from version ``uid``, after a restart or because a later one was refused.

        The next version is numbered after the newest there is, so that every number is used once.
        Raises CheckpointError when the checkpoint is missing or damaged.
        """
        path = self._root / uid
        await asyncio.to_thread(read_state, path, self._learner)
        self._standing = uid
        # The randomness and learning rate of an update follow from its number.
        newest = list_checkpoints(self._root)[-1]
        self._learner.version = checkpoint_version(newest)
        return _checkpoint(path)

    async def train(self, window_id: str, batch: TrainBatch) -> Trained | None:
        """Learn from the batch of a window; None when no optimizer step was finite.

        On any failure, a full disk among them, the learner is what it was before.
        """
        if (done := self.trained_on(window_id)) is not None:
            await self.restore(done.checkpoint.uid)
            return done
        parent = self.standing
        try:
            result = await asyncio.to_thread(self._learner.update, batch)
            if math.isnan(result.metrics["loss"]):  # no optimizer step was applied
                log.warning("window %s: no optimizer step was finite", window_id)
                await self.restore(parent)
                return None
            facts = {"samples": result.samples, "metrics": dict(result.metrics)}
            await self._save(result.version, window_id, parent, facts)
        except Exception:  # after any error, no half-trained weights may remain
            await self.restore(parent)
            raise
        self._standing = step_name(result.version)
        return _trained(self._root / self._standing)

    def trained_on(self, window_id: str) -> Trained | None:
        """The version that was trained on a window, if there is one."""
        for path in reversed(list_checkpoints(self._root)):
            if read_manifest(path, verify=False).meta.get("window_id") == window_id:
                return _trained(path)
        return None

    def prune(self, keep: int, protected: Collection[str]) -> None:
        """Delete all but the ``keep`` newest versions, the first and ``protected``."""
        Retention(self._root, keep).prune({*protected, self.standing, step_name(0)})

    async def _save(
        self, version: int, window_id: str | None, parent: str | None, facts: Mapping[str, Any]
    ) -> None:
        def fill(folder: Path) -> None:
            self._learner.save(folder)
            write_state(folder, self._learner, {})

        meta = {
            "version": version,
            "experiment": self._experiment,
            "window_id": window_id,
            "parent_uid": parent,
            **facts,
        }
        await asyncio.to_thread(write_checkpoint, self._root, step_name(version), fill, meta)


def _checkpoint(path: Path) -> Checkpoint:
    meta = read_manifest(path, verify=False).meta
    return Checkpoint(
        uid=path.name,
        version=int(meta["version"]),
        path=str(path),
        parent_uid=meta.get("parent_uid"),
    )


def _trained(path: Path) -> Trained:
    meta = read_manifest(path, verify=False).meta
    return Trained(
        checkpoint=_checkpoint(path), samples=int(meta["samples"]), metrics=meta["metrics"]
    )
