"""One update per window, each in a checkpoint that names the window."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from rlforge.errors import RlforgeError
from rlforge.record.digests import digest_of_batch
from rlforge.run.actors.learner import LearnerGroup
from rlforge.run.resume import Retention
from rlforge.samples import TrainBatch, UpdateResult
from rlforge.system.checkpoint import (
    checkpoint_version,
    list_checkpoints,
    read_manifest,
    step_name,
    step_number,
)
from rlforge.system.utilisation import Span
from rlforge.types import Checkpoint, value

log = logging.getLogger(__name__)

Update = Callable[[TrainBatch], Awaitable[tuple[UpdateResult, Span]]]
"""Makes one update; returns its result and when it ran."""


@value
class Trained:
    checkpoint: Checkpoint
    metrics: Mapping[str, float]
    digests: Mapping[str, str]


class WindowLearner:
    """The learner group, and ``checkpoints/step-N`` of the run directory; one call at a time.

    keep: how many versions ``prune`` leaves besides protected ones. update: updates ``group``;
    None: its own method.
    """

    def __init__(
        self, group: LearnerGroup, root: Path, keep: int | None, update: Update | None = None
    ) -> None:
        self._group, self._root = group, root
        self._retention = Retention(root, keep)
        self._update = update or group.update
        self._standing: str | None = None

    @property
    def standing(self) -> str:
        """The version whose weights the next one is trained from."""
        assert self._standing is not None, "begin or restore comes first"
        return self._standing

    @property
    def version(self) -> int:
        return step_number(self.standing)

    async def begin(self) -> Checkpoint:
        """Save version 0, the model before the first window, to return to after a refusal."""
        start = self._root / step_name(0)
        if not start.exists():
            await self._group.save(0, None, meta={"window_id": None}, state={})
        # Version 0 is ``learner.initial_adapter``, which has weights but no learner's state.
        elif not read_manifest(start, verify=False).has_state:
            await self._group.save_state(step_name(0), {})
        return await self.restore(step_name(0))

    async def restore(self, uid: str) -> Checkpoint:
        """Go on from version ``uid``, under a new number; CheckpointError if damaged."""
        # Randomness and learning rate follow from an update's number, so no number is used twice.
        newest = list_checkpoints(self._root)[-1]
        await self._group.load_state(uid, version=checkpoint_version(newest))
        self._standing = uid
        return _checkpoint(self._root / uid)

    async def train(self, window_id: str, batch: TrainBatch) -> Trained | None:
        """Learn from the batch of a window; None when no optimizer step was finite.

        After a CheckpointError or RunError the learner has the weights of its parent version; after
        any other RlforgeError it has not, and the run must end.
        """
        # A process that died between update and journal entry left the window's checkpoint.
        if (done := self.trained_on(window_id)) is not None:
            await self.restore(done.checkpoint.uid)
            return done
        parent = self.standing
        try:
            result, _ = await self._update(batch)
            if math.isnan(result.metrics["loss"]):
                log.warning("window %s: no optimizer step was finite", window_id)
                await self.restore(parent)
                return None
            # Names of deployments count interrupted ones: a resumed run's digest would differ.
            samples = tuple(dataclasses.replace(sample, policy_uid="") for sample in batch.samples)
            digest = digest_of_batch(dataclasses.replace(batch, samples=samples))
            facts = {
                "samples": result.samples,
                "metrics": dict(result.metrics),
                "digests": {"batch": digest, **result.digests},
            }
            # The manifest is the only record of an update: it and the weights are there together,
            # or neither.
            meta = {"window_id": window_id, **facts}
            saved = await self._group.save(result.version, parent, meta=meta, state={})
        # A full disk must not leave the learner with unsaved weights.
        except RlforgeError as error:
            try:
                await self.restore(parent)
            except RlforgeError as second:
                lost = f"{error}; and the learner cannot go back to {parent}: {second}"
                raise RlforgeError(lost) from error
            raise
        self._standing = saved.uid
        return _trained(Path(saved.path or ""))

    def trained_on(self, window_id: str) -> Trained | None:
        for path in reversed(list_checkpoints(self._root)):
            if read_manifest(path, verify=False).meta.get("window_id") == window_id:
                return _trained(path)
        return None

    def prune(self, protected: Collection[str]) -> None:
        """Delete all but the newest versions, the first and ``protected``."""
        self._retention.prune({*protected, self.standing})


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
    return Trained(checkpoint=_checkpoint(path), metrics=meta["metrics"], digests=meta["digests"])
