"""Changes which versions are served, one change at a time.

A deployment is validated, copied, swapped and verified. Each phase is in the journal before it
begins, and a restart serves the last verified version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.journal import VERSIONS, Journal
from rlforge.continuous.serving.records import Check, Deployment, Holdout, Phase, Probe
from rlforge.continuous.serving.trials import Trial
from rlforge.continuous.serving.validation import checkpoint_of, copy_files, validate
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.system.checkpoint import prune, read_manifest, write_checkpoint
from rlforge.types import Checkpoint, PolicyRef

log = logging.getLogger(__name__)

FAILURES = (RlforgeError, OSError, TimeoutError)
"""Failures of disks, adapters and engines end a deployment; others are bugs and are raised."""


class Deployer:
    """The versions that are served, and their changes: what ``DeploymentService`` answers with.

    Attributes:
        folder: Holds the state.
        current: The version that is served to all users outside a trial.
        trial: Its comparison with a new version, if one is under way.
        fell_back: Why an older version is served than at the last start, if one is.
    """

    current: Deployment

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        journal: Journal,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
        holdout: Holdout | None,
        on_phase: Callable[[Deployment], None] | None,
        rewards: tuple[float, float],
    ) -> None:
        # Engines may run in another folder, where a relative path would be another one.
        self.folder, self._engine, self._journal = folder.absolute(), engine, journal
        self._config, self._model, self._probes = config, model, probes
        self._holdout, self._on_phase, self._rewards = holdout, on_phase, rewards
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        # Requests under way by paths of versions: the engine may read their files again.
        self._in_use: Counter[str | None] = Counter()
        self.trial: Trial | None = None
        self.fell_back = ""

    def served(self) -> tuple[Deployment, ...]:
        """The versions that requests may name: the current one, then the one on trial."""
        return (self.current, *((self.trial.deployment,) if self.trial is not None else ()))

    def route(self, user: str | None = None) -> PolicyRef:
        """The version of ``user`` now; in a trial it changes at most once, to the new one."""
        if self.trial is not None and self.trial.arm(user) == "new":
            return self.trial.deployment.policy()
        return self.current.policy()

    async def _deploy(
        self,
        adapter: Checkpoint | Path | str,
        holdout: Holdout | None,
        staged: Deployment | None = None,
    ) -> Deployment:
        """Deploy ``adapter``, or what was ``staged``; ``reason`` says why it is not served."""
        entry = staged or self._unwritten(adapter)
        async with self._changing:
            before = self.current, self.trial
            try:
                if staged is None:
                    entry = await asyncio.to_thread(
                        self._journal.begin,
                        entry.source,
                        strategy=entry.strategy,
                        phase="validating",
                    )
                source = await asyncio.to_thread(checkpoint_of, adapter)
                return await self._carry_out(entry.number, source, holdout)
            except BaseException as error:
                # While it was verified it already answered users, so its end is a rollback.
                answered = (self.current, self.trial) != before
                self.current, self.trial = before
                if not isinstance(error, FAILURES):
                    raise
                return await self._give_up(entry, "rolled_back" if answered else "failed", error)

    def _unwritten(self, adapter: Checkpoint | Path | str) -> Deployment:
        # The journal gives the number, unless the disk is full: then only the result has a reason.
        path = adapter.path or adapter.uid if isinstance(adapter, Checkpoint) else adapter
        return Deployment(
            number=-1,
            phase="validating",
            strategy=self._config.strategy,
            source=str(Path(path).absolute()),
        )

    async def _go_back(
        self, leaving: Deployment, reason: str, *, to_base: bool = True
    ) -> Deployment:
        """Serve the newest former version that loads, unless ``leaving`` is not served."""
        async with self._changing:
            # Another task may have left this version meanwhile.
            if self.current.uid != leaving.uid:
                return self.current
            before, formers = (self.current, self.trial), self._journal.live()[1:]
            if not formers:
                raise DeploymentError(f"there is no version to go back to from {leaving.uid}")
            problem = f"{leaving.uid} cannot be served"
            former, _ = await self._that_loads(formers, problem, to_base=to_base)
            try:
                self.current, self.trial = former, None
                await self._verify()
                self.current = await asyncio.to_thread(
                    self._journal.go_back_to, former.number, reason
                )
            except BaseException:
                self.current, self.trial = before
                raise
            log.warning("rolled back from %s to %s: %s", leaving.uid, former.uid, reason)
            self._report(self.current)
            await self._tidy()
            return self.current

    async def _conclude(self, trial: Trial, ending: str, why: str) -> None:
        """End a trial: its version is served to all users (``promote``), or to none."""
        async with self._changing:
            # Another task may have ended the trial meanwhile.
            if self.trial is not trial:
                return
            tried = trial.deployment
            log.warning("the trial of %s ends: %s, %s", tried.uid, ending, why)
            if ending == "promote":
                checks = (*tried.checks, Check(name="trial", passed=True, detail=why))
                await self._advance(tried.number, "trial", checks=checks)
                await self._promote(tried.number)
            else:
                await self._advance(tried.number, "rolled_back", reason=f"trial: {why}")
                self.trial = None
            await self._tidy()

    async def _set_aside(self, policy: PolicyRef, reason: str) -> None:
        """Stop serving a version that can no longer be loaded."""
        trial, current = self.trial, self.current
        if trial is not None and policy.uid == trial.deployment.uid:
            await self._conclude(trial, "roll_back", reason)
        elif policy.uid == current.uid:
            await self._go_back(current, reason, to_base=self._config.fall_back_to_base)

    async def _resume(self) -> None:
        """Serve the version that was served last, or the base model at the first start."""
        # An earlier process may have died in the middle of a deployment.
        for left in self._journal.interrupt():
            log.warning("%s is not served: %s", left.uid, left.reason)
        to_base = self._config.fall_back_to_base
        if stack := self._journal.live():
            self.current, problem = await self._that_loads(stack, to_base=to_base)
            if problem:
                self.fell_back = f"{problem}; {self.current.uid} is served"
                self.current = self._journal.go_back_to(self.current.number, problem)
        else:
            known = self._journal.history()
            base = known[0] if known else self._journal.begin("base model", strategy="replace")
            self.current = base
            await self._verify()
            await self._promote(base.number)
        for tried in self._journal.history():
            if tried.phase == "trial":
                await self._resume_trial(tried)
        await self._tidy()

    async def _resume_trial(self, tried: Deployment) -> None:
        if (problem := await self._problem_with(tried)) is not None:
            log.error("the trial of %s cannot go on: %s", tried.uid, problem)
            await self._advance(tried.number, "rolled_back", reason=problem)
            return
        self.trial, outcomes = Trial(tried, self._config.ab), self._journal.outcomes(tried.number)
        low, high = self._rewards
        kept = [one for one in outcomes if low <= one.reward <= high]
        if left_out := len(outcomes) - len(kept):
            log.warning(
                "the trial of %s goes on without %d of %d outcomes: their rewards lie outside "
                "of [%g, %g]",
                *(tried.uid, left_out, len(outcomes), low, high),
            )
        for one in kept:
            self.trial.add(one.arm, one.reward, cluster=one.cluster, stage=one.stage)

    # ------------------------------------------------------------ phases

    async def _carry_out(
        self, number: int, source: Checkpoint, holdout: Holdout | None
    ) -> Deployment:
        """Deploy ``source``; it ends live, on trial or rejected."""
        limit = self._config.timeout_s
        if source.path is None:
            raise DeploymentError(f"{source.uid} is the base model; roll back to get there")
        if self.trial is not None:
            raise DeploymentError(
                f"{self.trial.deployment.uid} is on trial; wait for its end, or roll it back"
            )
        await self._advance(number, "validating", updates=source.version)
        candidate = PolicyRef(
            uid=f"candidate-{number}",
            kind="checkpoint",
            path_or_name=source.path,
            version=source.version,
        )
        async with asyncio.timeout(limit):
            checks, files = await validate(
                candidate,
                self.current.policy(),
                self._engine,
                config=self._config,
                model=self._model,
                probes=self._probes,
                holdout=holdout,
            )
        last = checks[-1]
        if not last.passed:
            reason = f"{last.name}: {last.detail}"
            return await self._advance(number, "rejected", checks=checks, reason=reason)

        new = await self._advance(number, "checkpointing", checks=checks)
        path = await asyncio.to_thread(self._copy, new, source, files)

        new = await self._advance(number, "swapping", path=str(path))
        async with asyncio.timeout(limit):
            await self._engine.load(new.policy())
        # Requests get the new version from here on; until it is verified, a restart serves the
        # one before.
        if new.strategy == "ab_test":
            self.trial = Trial(new, self._config.ab)
        else:
            self.current = new

        await self._advance(number, "verifying")
        async with asyncio.timeout(limit):
            await self._verify()
        if self.trial is not None:
            new = await self._advance(number, "trial")
        else:
            new = await self._promote(number)
        await self._tidy()
        return new

    async def _verify(self) -> None:
        probe = self._probes[0]
        for served in self.served():
            # In a trial the live route sends a probe to either version; both must answer.
            route = self.route() if self.trial is None else served.policy()
            answer = await self._engine.generate(probe.prompt_token_ids, probe.params, route)
            if answer.policy_uid != served.uid or not answer.token_ids:
                raise DeploymentError(
                    f"a probe of {served.uid} was answered by {answer.policy_uid or 'no version'} "
                    f"with {len(answer.token_ids)} tokens"
                )

    async def _that_loads(
        self, versions: Sequence[Deployment], problem: str = "", *, to_base: bool
    ) -> tuple[Deployment, str]:
        """The first version that loads, and the problem of the first that does not.

        problem: that of a version before them. to_base: whether the base model may take its place.
        """
        for version in versions:
            if version.path is None and problem and not to_base:
                raise DeploymentError(
                    f"{problem}: no trained version in {self.folder} can be served; put its files "
                    "back, deploy another one, or set deployment.fall_back_to_base=true to serve "
                    "the base model"
                )
            if (found := await self._problem_with(version)) is None:
                return version, problem
            log.error("%s cannot be served: %s", version.uid, found)
            problem = problem or f"{version.uid} cannot be served: {found}"
        raise DeploymentError(f"no version in {self.folder} can be served: {problem}")

    async def _problem_with(self, deployment: Deployment) -> str | None:
        """Why a version that was verified earlier cannot be served now."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                if deployment.path is not None:
                    # ``read_manifest`` raises for damaged files: it compares all digests.
                    await asyncio.to_thread(read_manifest, Path(deployment.path))
                await self._engine.load(deployment.policy())
        except FAILURES as error:
            return self._sentence(error)
        return None

    async def _promote(self, number: int) -> Deployment:
        self.current = await asyncio.to_thread(self._journal.promote, number)
        self.trial = None
        self._report(self.current)
        return self.current

    async def _give_up(
        self, deployment: Deployment, phase: Phase, error: BaseException
    ) -> Deployment:
        reason = self._sentence(error)
        log.error("deployment of %s failed: %s", deployment.source, reason)
        try:
            failed = await self._advance(deployment.number, phase, reason=reason)
        except DeploymentError as unwritable:
            log.error("%s", unwritable)
            failed = dataclasses.replace(deployment, phase="failed", reason=reason)
        await self._tidy()
        return failed

    async def _tidy(self) -> None:
        """Delete versions beyond ``deployment.keep`` that no request uses."""
        try:
            await asyncio.to_thread(self._journal.forget_former, self._config.keep)
            served = (*self._journal.live(), *self.served())
            paths = {*(d.path for d in served), *+self._in_use}
            kept = {Path(path).name for path in paths if path}
            await asyncio.to_thread(prune, self.folder / VERSIONS, 0, kept)
            await asyncio.to_thread(self._journal.back_up)
        # Serving does not depend on tidiness, so a failure is only logged.
        except FAILURES as error:
            log.warning("could not tidy up: %s", self._sentence(error))

    async def _advance(self, number: int, phase: Phase, **facts: Any) -> Deployment:
        deployment = await asyncio.to_thread(self._journal.advance, number, phase, **facts)
        self._report(deployment)
        return deployment

    def _report(self, deployment: Deployment) -> None:
        log.info("%s: %s %s", deployment.uid, deployment.phase, deployment.reason)
        if self._on_phase is not None:
            self._on_phase(deployment)

    def _sentence(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"not done within deployment.timeout_s={self._config.timeout_s:g} s"
        if isinstance(error, OSError):
            return f"{error.filename or 'file system'}: {error.strerror or error}"
        return str(error)

    def _copy(self, new: Deployment, source: Checkpoint, files: Mapping[str, str]) -> Path:
        versions = self.folder / VERSIONS
        # A folder of this number exists only if the journal lost its newest entries: it is unused.
        shutil.rmtree(versions / new.uid, ignore_errors=True)
        return write_checkpoint(
            versions,
            new.uid,
            partial(copy_files, Path(source.path or ""), files),
            {"version": source.version, "source": new.source},
        )
