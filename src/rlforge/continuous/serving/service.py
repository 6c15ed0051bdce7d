"""A service that replaces versions of a policy while it answers requests.

    deploy ─▶ validating ─▶ checkpointing ─▶ swapping ─▶ verifying ─▶ live          (replace)
                  │               │              │            ├─────▶ trial ─▶ live  (ab_test)
                  ▼               ▼              ▼            ▼         ▼
              rejected          failed         failed    rolled_back  rolled_back

``deployer`` carries a version through these phases, ``router`` sends requests to the versions that
are served, ``journal`` stores the state. Callers use this module.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.adapter import checkpoint_of, version_of
from rlforge.continuous.serving.deployer import FAILURES, Deployer
from rlforge.continuous.serving.journal import Journal
from rlforge.continuous.serving.records import Arm, Check, Deployment, Holdout, Probe, TrialOutcome
from rlforge.continuous.serving.router import Live, Router, Trial
from rlforge.continuous.serving.validation import Validator
from rlforge.engines.base import Engine, OnTokens
from rlforge.errors import DeploymentError, PolicyLoadError
from rlforge.system.locks import RunLock
from rlforge.types import Checkpoint, Completion, PolicyRef, SamplingParams

log = logging.getLogger(__name__)

T = TypeVar("T")


class DeploymentService:
    """Routes requests to versions on an engine, and replaces the versions (see the module).

    Made by ``open``, called from one event loop. One process at a time owns its folder.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
        holdout: Holdout | None,
        on_phase: Callable[[Deployment], None] | None,
        rewards: tuple[float, float],
    ) -> None:
        folder = folder.absolute()  # engines may run in another folder
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._config, self._holdout = folder, config, holdout
        self._rewards = rewards
        self._lock = RunLock(folder)
        self._lock.acquire()
        try:
            self._journal = Journal(folder)
        except BaseException:
            self._lock.release()
            raise
        self._router = Router(engine)
        validator = Validator(engine, config, model, probes)
        self._deployer = Deployer(
            folder, self._router, self._journal, config, validator, probes[0], on_phase
        )
        self._changing = asyncio.Lock()
        #: Why an older version is served than at the last start; empty where it is the same.
        self.fell_back = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        folder: Path,
        engine: Engine,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
        *,
        holdout: Holdout | None = None,
        on_phase: Callable[[Deployment], None] | None = None,
        rewards: tuple[float, float] = (-1e6, 1e6),
    ) -> Self:
        """Serve the last version served from ``folder``; in a new folder, the engine's base model.

        Where its files are damaged, the newest former one is served (``fell_back``). model: which
        adapters must fit. probes: at least one. holdout: compares new versions with the current
        one; None: no comparison. on_phase: called with the deployment after every change. rewards:
        the least and the largest outcome of a trial. Raises ConfigError for impossible settings,
        RunError when another process owns the folder, DeploymentError when no version in it can be
        served, EngineError when the base model does not answer.
        """
        service = cls(folder, engine, config, model, probes, holdout, on_phase, rewards)
        try:
            await service._resume()
        except BaseException:
            await service.close()
            raise
        return service

    async def close(self) -> None:
        """Cancel changes under way and release the folder; the caller closes the engine."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._journal.close()
        self._lock.release()

    # ------------------------------------------------------------ requests

    @property
    def current(self) -> Deployment:
        """The version that is served to all users outside a trial."""
        return self._router.live.current

    @property
    def trial(self) -> Trial | None:
        """The trial under way."""
        return self._router.live.trial

    def served(self) -> tuple[Deployment, ...]:
        """The versions that requests may name: the current one, then the one on trial."""
        return self._router.live.served()

    def route(self, user: str | None = None) -> PolicyRef:
        """The version of ``user`` now; in a trial it changes at most once, from current to new."""
        return self._router.route(user)

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        user: str | None = None,
        policy: PolicyRef | None = None,
        on_tokens: OnTokens | None = None,
        on_policy: Callable[[PolicyRef], None] | None = None,
    ) -> Completion:
        """Continue a prompt with the version of ``user``, or with ``policy``, to the end.

        on_policy: called first, with the version that answers. One whose files are damaged is
        rolled back and the one before it answers, unless the caller names ``policy``. Raises
        EngineError as the engine does, and PolicyLoadError where no trained version is left
        (``deployment.fall_back_to_base``).
        """

        async def answer(chosen: PolicyRef) -> Completion:
            if on_policy is not None:
                on_policy(chosen)
            return await self._router.answer(prompt_token_ids, params, chosen, on_tokens)

        if policy is not None:
            return await answer(policy)
        chosen = self.route(user)
        try:
            return await answer(chosen)
        except PolicyLoadError as error:
            try:
                await self._to_its_end(self._set_aside(chosen, str(error)))
            except DeploymentError as nothing:
                raise PolicyLoadError(f"{error}; {nothing}") from error
        return await answer(self.route(user))

    # ------------------------------------------------------------ deployments

    def stack(self) -> list[Deployment]:
        """The version that is served, then the former ones that are kept, newest first."""
        return self._journal.live()

    def history(self) -> list[Deployment]:
        """All deployments, oldest first."""
        return self._journal.history()

    async def deploy(
        self, adapter: Checkpoint | Path | str, *, holdout: Holdout | None = None
    ) -> Deployment:
        """Serve ``adapter``: a checkpoint, an adapter's directory, or a run (its newest version).

        One at a time; others wait. holdout: replaces the service's own. Failures of adapter, engine
        and disk are not raised: ``reason`` says why the previous version is still served. A
        cancelled caller does not end it.
        """
        return await self._to_its_end(self._deploy(adapter, holdout))

    async def deploy_staged(self) -> list[Deployment]:
        """Deploy the adapters that were staged while no service ran, in that order."""
        staged = [d for d in self.history() if d.phase == "staged"]
        root = self._folder.parent
        return [await self._to_its_end(self._deploy(root / d.source, None, d)) for d in staged]

    async def rollback(self, reason: str = "requested") -> Deployment:
        """End the trial, or serve the version before; DeploymentError where none can be."""
        if (trial := self.trial) is not None:
            await self._to_its_end(self._conclude(trial, "roll_back", reason))
            return self.current
        return await self._to_its_end(self._go_back(self.current, reason))

    async def record_outcome(
        self,
        reward: float,
        *,
        uid: str,
        key: str | None = None,
        cluster: str | None = None,
        stage: str | None = None,
    ) -> bool:
        """Count the reward of an answer of version ``uid`` in the trial under way, if it is of it.

        key: names the answer, so that it counts once. cluster: outcomes with the same one may
        depend on each other. stage: names the stretch of time; None: counted by outcomes. Returns
        whether it counted. The outcome that decides a trial also ends it. Raises ValueError for a
        reward outside of ``rewards``.
        """
        if not self._bounded(reward):
            low, high = self._rewards
            raise ValueError(f"a reward must be a number in [{low:g}, {high:g}], not {reward}")
        trial = self.trial
        if trial is None or uid not in (self.current.uid, trial.deployment.uid):
            return False
        arm: Arm = "new" if uid == trial.deployment.uid else "current"
        number = trial.deployment.number
        outcome = TrialOutcome(arm=arm, reward=reward, cluster=cluster, stage=stage)
        if not await asyncio.to_thread(self._journal.add_outcome, number, outcome, key):
            return False
        trial.add(arm, reward, cluster=cluster, stage=stage)
        if (ending := trial.ending) is not None:
            await self._to_its_end(self._conclude(trial, ending, str(trial)))
        return True

    # ------------------------------------------------------------ changes, one at a time

    async def _deploy(
        self,
        adapter: Checkpoint | Path | str,
        holdout: Holdout | None,
        staged: Deployment | None = None,
    ) -> Deployment:
        async with self._changing:
            before, entry = self._router.live, staged or self._unwritten(adapter)
            try:
                if staged is None:
                    entry = await asyncio.to_thread(
                        self._journal.begin,
                        entry.source,
                        strategy=entry.strategy,
                        updates=entry.updates,
                        phase="validating",
                    )
                source = await asyncio.to_thread(checkpoint_of, adapter)
                return await self._deployer.carry_out(
                    entry.number, source, holdout or self._holdout
                )
            except FAILURES as error:
                self._router.live = before
                return await self._deployer.give_up(entry, error)
            except BaseException:
                self._router.live = before
                raise

    def _unwritten(self, adapter: Checkpoint | Path | str) -> Deployment:
        """A deployment without an entry in the journal: its number is -1."""
        path = adapter.path or adapter.uid if isinstance(adapter, Checkpoint) else adapter
        return Deployment(
            number=-1,
            phase="validating",
            strategy=self._config.strategy,
            source=str(Path(path).absolute()),
            updates=version_of(adapter),
        )

    async def _go_back(
        self, leaving: Deployment, reason: str, *, to_base: bool = True
    ) -> Deployment:
        """Serve the newest former version that loads, unless ``leaving`` is not served.

        to_base: whether the base model is one.
        """
        async with self._changing:
            before = self._router.live
            if before.current.uid != leaving.uid:
                return before.current
            for former in self._journal.live()[1:]:
                if former.path is None and not to_base:
                    raise DeploymentError(self._only_base())
                if (problem := await self._deployer.problem_with(former)) is not None:
                    log.error("%s cannot be served: %s", former.uid, problem)
                    continue
                try:
                    self._router.live = Live(current=former)
                    await self._deployer.verify()
                    former = await asyncio.to_thread(
                        self._journal.go_back_to, former.number, reason
                    )
                except BaseException:
                    self._router.live = before
                    raise
                self._router.live = Live(current=former)
                log.warning("rolled back from %s to %s: %s", leaving.uid, former.uid, reason)
                self._deployer.report(former)
                await self._deployer.tidy()
                return former
            raise DeploymentError(f"there is no version to go back to from {leaving.uid}")

    async def _conclude(self, trial: Trial, ending: str, why: str) -> None:
        """End a trial: its version is served to all users (``promote``), or to none."""
        async with self._changing:
            if self.trial is not trial:  # another task ended it while this one waited
                return
            tried = trial.deployment
            log.warning("the trial of %s ends: %s, %s", tried.uid, ending, why)
            if ending == "promote":
                checks = (*tried.checks, Check(name="trial", passed=True, detail=why))
                await self._deployer.advance(tried.number, "trial", checks=checks)
                await self._deployer.promote(tried.number)
            else:
                await self._deployer.advance(tried.number, "rolled_back", reason=f"trial: {why}")
                self._router.live = Live(current=self.current)
            await self._deployer.tidy()

    async def _set_aside(self, policy: PolicyRef, reason: str) -> None:
        """Stop serving a version that can no longer be loaded."""
        trial = self.trial
        if trial is not None and policy.uid == trial.deployment.uid:
            await self._conclude(trial, "roll_back", reason)
        elif policy.uid == self.current.uid:
            await self._go_back(self.current, reason, to_base=self._config.fall_back_to_base)

    def _only_base(self) -> str:
        return (
            f"no trained version in {self._folder} can be served; put its files back, deploy "
            "another one, or set deployment.fall_back_to_base=true to serve the base model"
        )

    def _bounded(self, reward: float) -> bool:
        return self._rewards[0] <= reward <= self._rewards[1]

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` in a task of its own, which goes on when the caller is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    # ------------------------------------------------------------ start

    async def _resume(self) -> None:
        """Serve the version that was served last, or the base model at the first start."""
        for left in self._journal.interrupt():
            log.warning("%s is not served: %s", left.uid, left.reason)
        stack = self._journal.live()
        if not stack:
            known = self._journal.history()
            base = known[0] if known else self._journal.begin("base model", strategy="replace")
            self._router.live = Live(current=base)
            await self._deployer.verify()
            await self._deployer.promote(base.number)
            await self._deployer.tidy()
            return
        reason = ""
        for deployment in stack:
            if deployment.path is None and reason and not self._config.fall_back_to_base:
                raise DeploymentError(f"{reason}: {self._only_base()}")
            problem = await self._deployer.problem_with(deployment)
            if problem is None:
                break
            log.error("%s cannot be served: %s", deployment.uid, problem)
            reason = reason or f"{deployment.uid} cannot be served: {problem}"
        else:
            raise DeploymentError(f"no version in {self._folder} can be served: {reason}")
        if reason:
            self.fell_back = f"{reason}; {deployment.uid} is served"
            deployment = await asyncio.to_thread(
                self._journal.go_back_to, deployment.number, reason
            )
        self._router.live = Live(current=deployment)
        await self._resume_trial()
        await self._deployer.tidy()

    async def _resume_trial(self) -> None:
        for tried in [d for d in self._journal.history() if d.phase == "trial"]:
            if (problem := await self._deployer.problem_with(tried)) is not None:
                log.error("the trial of %s cannot go on: %s", tried.uid, problem)
                await self._deployer.advance(tried.number, "rolled_back", reason=problem)
                continue
            trial, outcomes = Trial(tried, self._config.ab), self._journal.outcomes(tried.number)
            kept = [one for one in outcomes if self._bounded(one.reward)]
            if left_out := len(outcomes) - len(kept):
                low, high = self._rewards
                log.warning(
                    "the trial of %s goes on without %d of %d outcomes: their rewards lie outside "
                    "of [%g, %g]",
                    *(tried.uid, left_out, len(outcomes), low, high),
                )
            for one in kept:
                trial.add(one.arm, one.reward, cluster=one.cluster, stage=one.stage)
            self._router.live = dataclasses.replace(self._router.live, trial=trial)
