"""The loop of continuous training.

    wait ─▶ collect ─▶ score ─▶ filter ─▶ train ─▶ deploy ─▶ record ─▶ the next window

Each step writes its result to disk and then enters its phase into the journal. A resumed process
reads the results of finished phases, repeats the others from the same inputs, and never trains on a
window twice. So what takes long, but for an update, is cancelled where the run is asked to end.

source    ──prompts──▶  policy    ──completions──▶  source
source    ──windows──▶  learning  ──checkpoints──▶  policy
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import Algorithm
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.columns import digest_of_decisions
from rlforge.continuous.decisions.records import CONTROL, Decision, TrainingWindow
from rlforge.continuous.decisions.reward import DecisionReward, mean_parts
from rlforge.continuous.loop.batching import Scored, WindowBatch, WindowFilter
from rlforge.continuous.loop.behaviour import behaviour, with_readers
from rlforge.continuous.loop.journal import Entry, Journal, ScoreFiles
from rlforge.continuous.loop.learner import Trained, Update, WindowLearner
from rlforge.continuous.loop.performance import POLICY, by_player, difference_to_control
from rlforge.continuous.loop.policy_side import Deployed, PolicySide, policy_side
from rlforge.continuous.loop.samples import keep_samples
from rlforge.continuous.loop.simulation import Stopped, simulation_state_path
from rlforge.continuous.loop.sources import Source, source_of
from rlforge.continuous.ruler.base import DecisionScorer, DecisionScores
from rlforge.continuous.ruler.judge_backends import LocalModel
from rlforge.continuous.ruler.scorer import make_scorer
from rlforge.errors import CheckpointError, RunError
from rlforge.record.digests import DigestChain, digest_of, facts
from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.colocation import update_in_turn
from rlforge.run.lifecycle import RunContext
from rlforge.system.values import json_ready
from rlforge.types import PolicyRef

log = logging.getLogger(__name__)


@dataclasses.dataclass(kw_only=True)
class ContinuousTrainer:
    """The parts of a run that is ready to begin, and the work on one window after the other."""

    context: RunContext[ContinuousConfig]
    policy: PolicySide
    source: Source
    learner: WindowLearner
    scorer: DecisionScorer
    reward: DecisionReward
    algorithm: Algorithm
    journal: Journal
    scores: ScoreFiles
    digests: DigestChain
    _since: float = 0.0

    @property
    def config(self) -> ContinuousConfig:
        return self.context.config

    async def run(self) -> bool:
        """Train until ``continuous.windows`` or a store are done; False: stopped earlier."""
        wanted, self._since = self.config.continuous.windows, time.monotonic()
        try:
            while wanted is None or self.journal.done() < wanted:
                work = self.journal.current() or await self._begin()
                if work is None:
                    break
                work, window = await self._wait_for_window(work)
                work, scores = await self._score(work, window)
                work, trained = await self._train(work, self._filter(window, scores))
                work, deployed = await self._deploy(work, trained)
                await self._conclude(work, window, scores, trained, deployed)
        except Stopped:
            return False
        return True

    # ------------------------------------------------------------ the steps

    async def _begin(self) -> Entry | None:
        self.source.driver.check_stop()
        journal, source = self.journal, self.source
        last = journal.last()
        # A resumed market repeats the ticks of its last window first.
        if last is not None:
            await self._until_over(last.window_id)
        window_id = source.next_window(None if last is None else last.window_id)
        if window_id is None:
            return None
        number = 1 if last is None else last.number + 1
        # Saved first, else the journal could name a window without a state.
        await source.driver.save(simulation_state_path(self.context.run_dir, number))
        entry = journal.begin(window_id)
        if last is not None:
            simulation_state_path(self.context.run_dir, last.number).unlink(missing_ok=True)
        return entry

    async def _wait_for_window(self, work: Entry) -> tuple[Entry, TrainingWindow]:
        self._say("collecting", work)
        # A resumed run waits, too: the next window starts after the ticks that it repeats.
        await self._until_over(work.window_id)
        window = await asyncio.to_thread(self.source.windows.batch, work.window_id)
        if not work.reached("collected"):
            work = self._reach(work, "collected", trajectories=len(window.decisions))
        return work, window

    async def _until_over(self, window_id: str) -> None:
        source = self.source
        await source.driver.advance_to(source.windows.due_at(window_id))
        allowed = await asyncio.to_thread(source.windows.may_stay_open, window_id)
        # None: the grace period is over, or a rolling window takes no open decisions.
        if allowed is not None:
            await source.driver.settle(window_id, allowed)

    async def _score(
        self, work: Entry, window: TrainingWindow
    ) -> tuple[Entry, DecisionScores | None]:
        self.source.driver.check_stop()
        if not work.reached("scored"):
            if window.ready:
                self._say("scoring", work)
                scoring = self.scorer.score(window.decisions)
                scores = await self.source.driver.unless_stopped(scoring)
                if scores.note:
                    self.context.note(f"window {window.id}: {scores.note}")
                # Kept for a resumed process: a judge would not give the same scores twice.
                self.scores.write(window, scores)
            work = self._reach(work, "scored")
        return work, self.scores.read(window) if window.ready else None

    def _filter(self, window: TrainingWindow, scores: DecisionScores | None) -> WindowBatch:
        if scores is None:
            return WindowBatch(batch=None, reason=f"it is not ready: {'; '.join(window.reasons)}")
        if self.policy.service.trial is not None:
            return WindowBatch(
                batch=None,
                reason="a version is on trial: its end decides which version to continue from",
            )
        shared = with_readers(window.decisions, self.config.continuous.reader_share)
        known = [
            (decision, reward, score)
            for decision, reward, score in zip(window.decisions, shared, scores.values, strict=True)
            if reward is not None
        ]
        rewards = self.reward.normalize([reward for _, reward, _ in known])
        rules = WindowFilter(
            settings=self.config.continuous,
            max_staleness=self.config.max_staleness,
            algorithm=self.algorithm,
            version=self.learner.version,
            max_length=self.config.learner.max_train_len,
            foreign=frozenset(self.policy.foreign()),
            gamma=self.config.decision_reward.gamma,
        )
        return rules.build_window_batch(
            window.id,
            [
                Scored(decision=decision, score=score, reward=reward)
                for (decision, _, score), reward in zip(known, rewards, strict=True)
            ],
            scores.unscored.removeprefix("unscored: "),
        )

    async def _train(self, work: Entry, gathered: WindowBatch) -> tuple[Entry, Trained | None]:
        self.source.driver.check_stop()
        learner = self.learner
        if work.reached("trained"):
            uid = work.facts["trained"]["uid"]
            return work, None if uid is None else learner.trained_on(work.window_id)
        reason, trained = gathered.reason, None
        if gathered.batch is not None:
            self._say("training on", work)
            # A rollback may have come since the last update.
            await self._follow_what_serves()
            try:
                trained = await learner.train(work.window_id, gathered.batch)
                reason = "" if trained else "loss or gradient were not finite"
            except (CheckpointError, RunError) as error:
                # A full disk or an exploding loss: the learner is back at its parent version, so
                # only this window is lost.
                log.error("window %s: %s", work.window_id, error)
                reason = str(error)
        uid = None if trained is None else trained.checkpoint.uid
        # The counts are recorded as well: after a restart another version may be current, and
        # selecting again would give other counts.
        facts = {"uid": uid, "reason": reason, "gathered": dict(gathered.counts)}
        return self._reach(work, "trained", **facts), trained

    async def _deploy(self, work: Entry, trained: Trained | None) -> tuple[Entry, Deployed]:
        self.source.driver.check_stop()
        if work.reached("deployed"):
            known = work.facts["deployed"]
            return work, Deployed(success=known["success"], reason=known["reason"])
        deployed = Deployed(success=None)
        if trained is not None:
            self._say("deploying after", work)
            deploying = self.policy.deploy(trained.checkpoint)
            deployed = await self.source.driver.unless_stopped(deploying)
        await self._follow_what_serves()
        facts = {"success": deployed.success, "reason": deployed.reason}
        return self._reach(work, "deployed", **facts), deployed

    async def _follow_what_serves(self) -> None:
        """Learn on from the version that serves, where the newest was refused or rolled back."""
        policy, learner = self.policy, self.learner
        if policy.service.trial is None and learner.standing != policy.serving():
            log.warning("learning goes on from %s, which serves", policy.serving())
            await learner.restore(policy.serving())

    async def _conclude(
        self,
        work: Entry,
        window: TrainingWindow,
        scores: DecisionScores | None,
        trained: Trained | None,
        deployed: Deployed,
    ) -> None:
        source = self.source
        # The scorer learns last, else a window's own outcomes would improve its scores.
        learned = self.scorer.learn([window]) if window.ready else {}
        scorer = {**(scores.metrics if scores else {}), **learned}
        row = self._row(work, window, scorer, trained, deployed)
        row |= await self.context.actors.custom_scalars()
        update = None if trained is None else dict(trained.metrics)
        # Hashing all decisions takes a while, and agents are served meanwhile.
        line = await asyncio.to_thread(_digests, window, scores, trained)
        # Before "done": a run that dies in between drops the line when it is resumed.
        self.digests.append(work.number, line)
        self.journal.reach(work, "done", window=row, update=update)
        self.context.actors.tracker.log_window.remote(row, update)
        # Where old windows are deleted, the report must not keep the first one's decisions.
        keep_first = self.config.keep_windows is None
        keep_samples(self.context.run_dir, window, scores, first=keep_first)
        # A trial or a rollback may need versions that do not serve now.
        self.learner.prune(self.policy.needed())
        await asyncio.to_thread(self._delete_old, window.id)
        if source.push is not None:
            await source.push.after_window(*source.windows.grid.span(window.id))

    def _row(
        self,
        work: Entry,
        window: TrainingWindow,
        scorer: Mapping[str, float],
        trained: Trained | None,
        deployed: Deployed,
    ) -> dict[str, Any]:
        """One line of ``windows.jsonl`` (docs/run_directory.md)."""
        facts, metrics = work.facts["trained"], trained.metrics if trained else {}
        gathered: Mapping[str, int] = facts["gathered"]
        worked = math.fsum(float(phase.get("seconds", 0)) for phase in work.facts.values())
        rewards = _reward_figures(self.reward, window.decisions)
        players = by_player(window.decisions)
        policy = players.get(POLICY)
        gain = difference_to_control(window.decisions)
        row: dict[str, Any] = json_ready(
            {
                "window_id": window.id,
                "agents": len(window.agents),
                "trajectories": len(window.decisions),
                "avg_reward": window.avg_reward,
                "high_score_count": gathered["selected"],
                "training_loss": metrics.get("loss"),
                "kl_divergence": metrics.get("kl"),
                "deployment_success": deployed.success,
                "duration_minutes": (worked + self._lap()) / 60,
                "window": work.number,
                "reason": facts["reason"] or deployed.reason,
                "version": trained.checkpoint.uid if trained else None,
                "win_rate": policy.win_rate if policy else None,
                "policy_reward": policy.avg_reward if policy else None,
                "avg_pnl": policy.avg_pnl if policy else None,
                "control_reward": players[CONTROL].avg_reward if CONTROL in players else None,
                "reward_difference": gain and gain.mean,
                "reward_difference_low": gain and gain.low,
                "reward_difference_high": gain and gain.high,
                "players": {name: dataclasses.asdict(one) for name, one in players.items()},
                **behaviour(window.decisions, talk=self.config.agents_talk),
                **{f"batch/{name}": n for name, n in gathered.items() if name != "selected"},
                **{f"reward/{name}": number for name, number in rewards.items()},
                **{f"scorer/{name}": number for name, number in scorer.items()},
            }
        )
        return row

    def _delete_old(self, window_id: str) -> None:
        keep, source = self.config.keep_windows, self.source
        if keep is not None and source.store is not None:
            old = [one for one in source.windows.ids() if one <= window_id][:-keep]
            source.store.delete(old)
            self.scores.delete(old)

    # ------------------------------------------------------------ the clock, and the end

    def _say(self, doing: str, work: Entry) -> None:
        self.context.actors.tracker.log_activity.remote(doing, work.window_id)

    def _reach(self, work: Entry, phase: str, **facts: Any) -> Entry:
        return self.journal.reach(work, phase, **facts, seconds=self._lap())

    def _lap(self) -> float:
        since, self._since = self._since, time.monotonic()
        return self._since - since


@contextlib.asynccontextmanager
async def assembled(
    context: RunContext[ContinuousConfig], stop: asyncio.Event
) -> AsyncIterator[ContinuousTrainer]:
    """The parts over the actors of a run, in the state that its directory holds.

    Raises ConfigError, CheckpointError, EngineError or RunError when a part cannot be made.
    """
    config, actors, run_dir = context.config, context.actors, context.run_dir
    update: Update = actors.learner.update
    if context.hardware.alternate:
        # Engine and learner share a device, so they take turns.
        calls = ActorCalls(actors, context.note, elastic=False)
        update = partial(update_in_turn, actors, calls.call)
    async with contextlib.AsyncExitStack() as stack:
        # The journal is opened first, because the source goes on where it ends.
        journal = stack.enter_context(contextlib.closing(Journal(run_dir / "journal.sqlite")))
        policy = await stack.enter_async_context(policy_side(context))
        scorer = _scorer(config, run_dir, policy)
        stack.push_async_callback(scorer.close)
        source = await stack.enter_async_context(source_of(context, policy, journal.last(), stop))
        digests = DigestChain(run_dir)
        if digests.begun:
            # A process that died may have left the line of a window that is not done.
            digests.rewind(journal.done())
        else:
            digests.append(0, {"computed": facts(config, context.hardware)})
        yield ContinuousTrainer(
            context=context,
            policy=policy,
            source=source,
            learner=WindowLearner(
                actors.learner, run_dir / "checkpoints", config.keep_checkpoints, update
            ),
            scorer=scorer,
            reward=DecisionReward(config.decision_reward),
            algorithm=make_algorithm(config.algorithm, config.engine.max_tokens),
            journal=journal,
            scores=ScoreFiles(run_dir),
            digests=digests,
        )


def _scorer(config: ContinuousConfig, run_dir: Path, policy: PolicySide) -> DecisionScorer:
    ruler = config.ruler
    # A resumed run goes on with what its scorer has learned.
    if ruler.model_path is None:
        ruler = dataclasses.replace(ruler, model_path=str(run_dir / "ruler"))
    local = LocalModel(
        generator=policy.engine,
        tokenizer=policy.tokenizer,
        # The base model judges, because it does not change during training.
        policy=PolicyRef(uid="base", kind="checkpoint"),
        stop_token_ids=policy.params.stop_token_ids,
    )
    return make_scorer(ruler, seed=config.seed, local=local)


def _digests(
    window: TrainingWindow, scores: DecisionScores | None, trained: Trained | None
) -> dict[str, Any]:
    return {
        "window_id": window.id,
        "decisions": digest_of_decisions(window.decisions),
        "scores": digest_of(scores and scores.values),
        "version": trained and trained.checkpoint.uid,
        **(trained.digests if trained else {}),
    }


def _reward_figures(reward: DecisionReward, decisions: Sequence[Decision]) -> Mapping[str, float]:
    parts = mean_parts([reward(d.result) for d in decisions if d.result is not None])
    returns = reward.returns(decisions)
    if returns:
        parts["return"] = math.fsum(returns.values()) / len(returns)
    return parts
