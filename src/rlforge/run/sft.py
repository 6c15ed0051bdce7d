"""Supervised fine-tuning over the learner of a run: batches of given answers, measured on others.

The samples are in the run directory before the actors start (``rlforge.rollout.demonstrations``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlforge.config.sft import SftConfig
from rlforge.rollout.demonstrations import batch_of, drawn, load_samples
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import stop_without_signal
from rlforge.run.resume import BEFORE_ALL, Retention, rewind
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint, step_name

#: Metrics that say nothing about given answers: no version sampled them, none has a reward, and
#: their entropy is the loss.
_OF_GAMES = frozenset(
    (
        *(
            "entropy",
            "entropy_share",
            "answer_entropy",
            "policy_loss",
            "reward_mean",
            "raw_reward_mean",
        ),
        *("reward_spread", "advantage_mean", "seat_share_min", "seat_share_max"),
        *("dropped_stale", "dropped_stale_share"),
    )
)


class SupervisedRun:
    """Supervised fine-tuning as a ``Controller``."""

    def __init__(self, context: RunContext[SftConfig]) -> None:
        config = context.config
        assert config.total_updates is not None
        self._config, self._total = config, config.total_updates
        self._samples = load_samples(context.run_dir)
        self._context = context
        self._actors, self._note = context.actors, context.note
        self._root = context.run_dir / "checkpoints"
        self._retention = Retention(self._root, config.learner.keep_checkpoints)
        self._version, self._saved = 0, 0
        self._interrupted = False
        self._measured: dict[str, float] = {}
        self._start: dict[str, float] = {}

    async def begin(self, *, resume: bool) -> None:
        path = latest_checkpoint(self._root, with_state=True) if resume else None
        if resume:
            version = BEFORE_ALL if path is None else checkpoint_version(path)
            rewind(self._root.parent, version)
            await self._actors.tracker.resume.remote(version)
        if path is None:
            self._measured = self._start = await self._measure()
            if self._start:
                self._note(f"before training: {_in_words(self._start)}")
            return
        state = await self._actors.learner.load_state(path.name)
        self._version = self._saved = checkpoint_version(path)
        self._start, self._measured = state["start"], state["measured"]

    async def run(self) -> bool:
        """Update until ``data.epochs`` are over; save and measure every ``learner.save_every``."""
        settings, samples = self._config.learner, self._samples.train
        self._actors.tracker.log_activity.remote("learning")
        while self._version < self._total and not self._interrupted:
            number = self._version + 1
            # The batch depends on the number alone, so that a resumed run continues exactly.
            batch = batch_of(drawn(samples, settings.batch_size, self._config.seed, number))
            result, _ = await self._actors.learner.update(batch)
            self._version = result.version
            last = self._version == self._total
            due = last or self._version % settings.save_every == 0
            metrics = {name: one for name, one in result.metrics.items() if name not in _OF_GAMES}
            metrics["epoch"] = self._epochs()
            if due:
                self._measured = await self._measure()
                metrics |= self._measured
            logged = self._actors.tracker.log_learner.remote(replace(result, metrics=metrics), {})
            if due:
                # The lines of the updates before a state are on disk before it.
                await logged
                await self._save()
            await stop_without_signal(self._context)
        if self._version > self._saved:
            await self._save()
        # A signal may come while the last one is made, and all is done.
        complete = self._version == self._total
        if complete and self._measured:
            self._note(f"after training: {_in_words(self._measured)}")
        return complete

    def stop(self) -> None:
        self._interrupted = True

    async def close(self) -> None:
        """Nothing to release: the actors end with Ray."""

    def summary(self) -> Mapping[str, Any]:
        return {
            "updates": self._version,
            "total_updates": self._total,
            "seed": self._config.seed,
            "epochs": self._epochs(),
            "samples": len(self._samples.train),
            "before": self._start,
            "after": self._measured,
            "objective": -self._measured.get("validation_loss", 0.0),
        }

    def _epochs(self) -> float:
        return self._version * self._config.learner.batch_size / len(self._samples.train)

    async def _measure(self) -> dict[str, float]:
        held = self._samples.validation
        if not held:
            return {}
        self._actors.tracker.log_activity.remote(f"measuring {len(held):,} held-out samples")
        measured: dict[str, float] = await self._actors.learner.measure(batch_of(held))
        self._actors.tracker.log_activity.remote("learning")
        return measured

    async def _save(self) -> None:
        # Each version is saved with its state, so that ``--resume`` can go on from the newest.
        state = {"start": self._start, "measured": self._measured}
        parent = step_name(self._saved)
        saved = await self._actors.learner.save(self._version, parent, state=state)
        self._saved = self._version
        self._retention.prune({saved.uid})


def _in_words(measured: Mapping[str, float]) -> str:
    return (
        f"held-out loss {measured['validation_loss']:.4f}, probability of an answer "
        f"{measured['validation_answer_prob']:.4f}"
    )
