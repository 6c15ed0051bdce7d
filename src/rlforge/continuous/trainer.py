"""The continuous trainer: wait for a window, collect, score, filter, train, deploy; again.

Each step leaves its result on disk and then says so in the journal. A process that was killed
takes up the window it was at: what the journal says is done is read back, all else is done again
from the same beginnings, and a window that was trained on is never trained on twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from rlforge.algorithms.base import Algorithm
from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.batching import WindowBatch, build_window_batch
from rlforge.continuous.journal import Entry, Journal
from rlforge.continuous.learner import Trained, WindowLearner
from rlforge.continuous.records import Records, reward_figures, window_row
from rlforge.continuous.scorebook import Scorebook
from rlforge.continuous.simulation import SimulationDriver, Stopped
from rlforge.errors import CheckpointError, RunError
from rlforge.ruler.base import Scorer, Scores
from rlforge.trajectories.records import TrainingWindow
from rlforge.trajectories.reward import DecisionReward
from rlforge.types import Checkpoint, value

log = logging.getLogger(__name__)


@value
class Deployed:
    """What became of a new version.

    success: it serves, to all or to some; None: there was none to deploy. reason: why it does not.
    """

    success: bool | None
    reason: str = ""


NOTHING_TO_DEPLOY = Deployed(success=None)


class Deployments(Protocol):
    """The serving side, which the agents ask."""

    def on_trial(self) -> bool:
        """Whether a new version is still being compared with the current one."""
        ...

    def serving(self) -> str:
        """The version of this run, as ``step-N``, that everybody gets (on a trial: most)."""
        ...

    def needed(self) -> Collection[str]:
        """Versions that learning may have to go on from."""
        ...

    async def deploy(self, checkpoint: Checkpoint) -> Deployed:
        """Replace what serves by ``checkpoint``, if it may; again for the same one does nothing."""
        ...


class Windows(Protocol):
    """Which decisions are trained on together."""

    def first(self, now: float) -> str:
        """The window that training begins with at ``now``."""
        ...

    def after(self, window_id: str, now: float) -> str:
        """The one that follows, which has decisions or is still to come."""
        ...

    def due(self, window_id: str) -> float:
        """When it is over, its time of grace included."""
        ...

    def window(self, window_id: str) -> TrainingWindow:
        """What happened in it, and whether it may be trained on."""
        ...


@value
class Parts:
    """All that a continuous run consists of."""

    habitat: SimulationDriver
    windows: Windows
    scorer: Scorer
    reward: DecisionReward
    algorithm: Algorithm
    learner: WindowLearner
    deployments: Deployments
    journal: Journal
    records: Records
    scorebook: Scorebook


class ContinuousTrainer:
    """The loop over ``parts``. stop: set when the run is asked to end."""

    def __init__(
        self, config: ContinuousConfig, parts: Parts, run_dir: Path, stop: asyncio.Event
    ) -> None:
        self._config, self._settings, self._parts = config, config.continuous, parts
        self._run_dir = run_dir
        self._stop = stop
        self._since = time.monotonic()

    async def run(self) -> bool:
        """Until ``continuous.windows`` are done; False when it was asked to end before that."""
        try:
            while not self._over():
                work = self._parts.journal.current() or await self._begin()
                work, window = await self._wait_for_window(work)
                work, scores = await self._score(work, window)
                gathered = self._filter(window, scores)
                work, trained = await self._train(work, gathered)
                work, deployed = await self._deploy(work, trained)
                self._conclude(work, window, scores, trained, deployed)
        except Stopped:
            return False
        return True

    def _over(self) -> bool:
        last, wanted = self._parts.journal.last(), self._settings.windows
        done = 0 if last is None else last.number - (last.phase != "done")
        return wanted is not None and done >= wanted

    # ------------------------------------------------------------ the steps

    async def _begin(self) -> Entry:
        """Take the next window in hand; the world it starts from is kept until it is done."""
        self._check_stop()
        journal, windows, habitat = self._parts.journal, self._parts.windows, self._parts.habitat
        last = journal.last()
        if last is not None:  # a run that was killed between two windows is still to get there
            await habitat.live_until(windows.due(last.window_id))
        now = habitat.now()
        window_id = windows.first(now) if last is None else windows.after(last.window_id, now)
        number = 1 if last is None else last.number + 1
        await habitat.save(simulation_state_path(self._run_dir, number))
        entry = journal.begin(window_id, life=number)
        if last is not None:
            simulation_state_path(self._run_dir, last.number).unlink(missing_ok=True)
        return entry

    async def _wait_for_window(self, work: Entry) -> tuple[Entry, TrainingWindow]:
        """Live until the window is over, and look at what is in it.

        A window that was collected by an earlier process is lived through again, from the world it
        began with and by the decisions on record: the next one goes on from its end.
        """
        windows = self._parts.windows
        await self._parts.habitat.live_until(windows.due(work.window_id))
        window = await asyncio.to_thread(windows.window, work.window_id)
        if not work.reached("collected"):
            work = self._reach(work, "collected", trajectories=len(window.trajectories))
        return work, window

    async def _score(self, work: Entry, window: TrainingWindow) -> tuple[Entry, Scores | None]:
        """What RULER thinks of each decision; None for a window that may not be trained on."""
        self._check_stop()
        if not window.ready:
            if not work.reached("scored"):
                work = self._reach(work, "scored")
            return work, None
        book = self._parts.scorebook
        if not work.reached("scored"):
            book.write(window, await self._parts.scorer.score(window.trajectories))
            work = self._reach(work, "scored")
        return work, book.read(window)

    def _filter(self, window: TrainingWindow, scores: Scores | None) -> WindowBatch:
        """The decisions to learn from, or why there are none."""
        reason = ""
        if not window.ready:
            reason = f"it is not ready: {'; '.join(window.reasons)}"
        elif self._parts.deployments.on_trial():
            reason = "a version is on trial: there is no telling yet which to go on from"
        if reason or scores is None:
            return WindowBatch(batch=None, reason=reason)
        known = [
            (decision, score)
            for decision, score in zip(window.trajectories, scores.values, strict=True)
            if decision.reward is not None
        ]
        decisions = [decision for decision, _ in known]
        return build_window_batch(
            window.id,
            decisions,
            [score for _, score in known],
            self._parts.reward.normalize([d.reward for d in decisions if d.reward is not None]),
            self._settings,
            self._parts.algorithm,
            version=self._parts.learner.version,
            max_length=self._config.learner.max_train_len,
        )

    async def _train(self, work: Entry, gathered: WindowBatch) -> tuple[Entry, Trained | None]:
        """One update on the window, in a thread: the agents, and all who are served, go on."""
        self._check_stop()
        learner = self._parts.learner
        if work.reached("trained"):
            uid = work.facts["trained"]["uid"]
            return work, None if uid is None else learner.trained_on(work.window_id)
        reason, trained = gathered.reason, None
        if gathered.batch is not None:
            try:
                trained = await asyncio.to_thread(learner.train, work.window_id, gathered.batch)
                reason = "" if trained else "loss or gradient were not finite"
            except (CheckpointError, RunError) as error:  # a full disk, a loss that explodes
                log.error("window %s: %s", work.window_id, error)
                reason = str(error)
        uid = None if trained is None else trained.checkpoint.uid
        # What was gathered is noted too: by another version's lights it would be something else.
        facts = {"uid": uid, "reason": reason, "gathered": gathered.figures()}
        return self._reach(work, "trained", **facts), trained

    async def _deploy(self, work: Entry, trained: Trained | None) -> tuple[Entry, Deployed]:
        """Let the new version serve; if it may not, learning goes on from the one that does."""
        self._check_stop()
        if work.reached("deployed"):
            known = work.facts["deployed"]
            return work, Deployed(success=known["success"], reason=known["reason"])
        deployments, learner = self._parts.deployments, self._parts.learner
        deployed = NOTHING_TO_DEPLOY
        if trained is not None:
            deployed = await deployments.deploy(trained.checkpoint)
        if not deployments.on_trial() and learner.standing != deployments.serving():
            log.warning("learning goes on from %s, which serves", deployments.serving())
            await asyncio.to_thread(learner.restore, deployments.serving())
        facts = {"success": deployed.success, "reason": deployed.reason}
        return self._reach(work, "deployed", **facts), deployed

    def _conclude(
        self,
        work: Entry,
        window: TrainingWindow,
        scores: Scores | None,
        trained: Trained | None,
        deployed: Deployed,
    ) -> None:
        """Put the window on record, and let the scorer learn what came of its decisions."""
        learned = self._parts.scorer.learn([window]) if window.ready else {}
        row = window_row(
            work,
            window,
            work.facts["trained"]["gathered"],
            trained,
            deployed.success,
            reason=work.facts["trained"]["reason"] or deployed.reason,
            rewards=reward_figures(self._parts.reward, window.trajectories),
            scorer={**(scores.metrics if scores else {}), **learned},
            minutes=(self._worked(work) + self._lap()) / 60,
        )
        update = None if trained is None else dict(trained.metrics)
        self._parts.journal.reach(work, "done", window=row, update=update)
        self._parts.records.add(row, update)
        keep = self._config.learner.keep_checkpoints
        if keep is not None:
            self._parts.learner.prune(keep, self._parts.deployments.needed())

    # ------------------------------------------------------------ the clock, and the end

    def _reach(self, work: Entry, phase: str, **facts: Any) -> Entry:
        """Enter ``phase`` into the journal, with the time it took."""
        return self._parts.journal.reach(work, phase, **facts, seconds=self._lap())

    def _lap(self) -> float:
        since, self._since = self._since, time.monotonic()
        return self._since - since

    def _worked(self, work: Entry) -> float:
        return math.fsum(float(facts.get("seconds", 0)) for facts in work.facts.values())

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise Stopped


def simulation_state_path(run_dir: Path, number: int) -> Path:
    """The world that window ``number`` of a run starts from."""
    return run_dir / "world" / f"window-{number}.pkl"
