"""Supervised fine-tuning over the learner of a run: batches of given answers, measured on others.

The samples are in the run directory before the actors start (``rlforge.rollout.demonstrations``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from rlforge.config.sft import SftConfig
from rlforge.rollout.demonstrations import batch_of, drawn, load_samples
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import stop_without_signal
from rlforge.run.resume import BEFORE_ALL, Retention, rewind
from rlforge.samples import UpdateResult
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint, step_name
from rlforge.system.values import from_json, to_json

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
        *("reward_spread", "raw_reward_spread", "advantage_mean"),
        *("seat_share_min", "seat_share_max"),
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
        #: The update whose line waits for what a signal has kept from being measured.
        self._due: UpdateResult | None = None
        self._logged: Awaitable[None] | None = None

    async def begin(self, *, resume: bool) -> None:
        path = latest_checkpoint(self._root, with_state=True) if resume else None
        if path is not None:
            state = await self._actors.learner.load_state(path.name)
            self._version = self._saved = checkpoint_version(path)
            self._start, self._measured = state["start"], state["measured"]
            if due := state.get("due"):
                self._due = from_json(UpdateResult, due)
        if resume:
            rewind(self._root.parent, BEFORE_ALL if path is None else self._version)
            # The line of an update that is due is written anew.
            lines = self._version - (self._due is not None)
            await self._actors.tracker.resume.remote(BEFORE_ALL if path is None else lines)

    async def run(self) -> bool:
        """Update until ``data.epochs`` are over; save and measure every ``learner.save_every``.

        A signal ends the measurement as well, which a resumed run makes.
        """
        if not self._version:
            start = await self._measure()
            if start is None:
                return False
            self._measured = self._start = start
            if start:
                self._note(f"before training: {_in_words(start)}")
        if self._due is not None:
            await self._conclude(self._due)
        while self._version < self._total and not self._interrupted:
            result = await self._update()
            last = self._version == self._total
            if last or self._version % self._config.learner.save_every == 0:
                await self._conclude(result)
            else:
                self._log(result)
            await stop_without_signal(self._context)
        if self._version > self._saved:
            await self._save()
        # A signal may come while the last one is saved, and all is done.
        complete = self._version == self._total and self._due is None
        if complete and self._measured:
            self._note(f"after training: {_in_words(self._measured)}")
        return complete

    async def _update(self) -> UpdateResult:
        number, size = self._version + 1, self._config.learner.batch_size
        # The batch depends on the number alone, so that a resumed run continues exactly.
        batch = batch_of(drawn(self._samples.train, size, self._config.seed, number))
        result: UpdateResult
        result, _ = await self._actors.learner.update(batch)
        self._version = result.version
        metrics = {name: one for name, one in result.metrics.items() if name not in _OF_GAMES}
        return replace(result, metrics={**metrics, "epoch": self._epochs()})

    async def _conclude(self, result: UpdateResult) -> None:
        """Measure the version that an update has made, write the update's line, and save."""
        measured = await self._measure()
        self._due = result if measured is None else None
        if measured is not None:
            self._measured = measured
            self._log(replace(result, metrics={**result.metrics, **measured}))
        if self._version > self._saved:
            await self._save()

    def _log(self, result: UpdateResult) -> None:
        self._logged = self._actors.tracker.log_learner.remote(result, {})

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

    async def _measure(self) -> dict[str, float] | None:
        """The likelihood of the held-out answers; None where a signal comes before its end.

        ``validation_loss``: mean of -log p over their tokens, in nats. ``validation_answer_prob``:
        mean probability of a whole answer, the chance to sample it.
        """
        held, size = self._samples.validation, self._config.learner.batch_size
        logprobs = list[float]()
        if held:
            self._actors.tracker.log_activity.remote(f"measuring {len(held):,} held-out samples")
        # The learner cannot leave a call: each lasts no longer than an update.
        for place in range(0, len(held), size):
            if self._interrupted:
                return None
            piece = batch_of(held[place : place + size])
            logprobs += await self._actors.learner.measure(piece)
        self._actors.tracker.log_activity.remote("learning")
        if not held:
            return {}
        return {
            "validation_loss": -math.fsum(logprobs) / sum(len(one.token_ids) for one in held),
            "validation_answer_prob": statistics.fmean(map(math.exp, logprobs)),
        }

    async def _save(self) -> None:
        if self._logged is not None:
            # The lines of the updates before a state are on disk before it.
            await self._logged
        # Each version is saved with its state, so that ``--resume`` can go on from the newest.
        due = None if self._due is None else to_json(self._due)
        state = {"start": self._start, "measured": self._measured, "due": due}
        parent = step_name(self._saved)
        saved = await self._actors.learner.save(self._version, parent, state=state)
        self._saved = self._version
        self._retention.prune({saved.uid})


def _in_words(measured: Mapping[str, float]) -> str:
    return (
        f"held-out loss {measured['validation_loss']:.4f}, probability of an answer "
        f"{measured['validation_answer_prob']:.4f}"
    )
