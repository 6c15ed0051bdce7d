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
from pathlib import Path
from typing import Any

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.adapter import checkpoint_of, copy_files, version_of
from rlforge.continuous.serving.journal import VERSIONS, Journal
from rlforge.continuous.serving.records import Check, Deployment, Holdout, Phase, Probe
from rlforge.continuous.serving.trials import Live, Trial
from rlforge.continuous.serving.validation import validate
from rlforge.engines.base import Engine
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.system.checkpoint import prune, read_manifest, write_checkpoint
from rlforge.types import Checkpoint, PolicyRef

log = logging.getLogger(__name__)

FAILURES = (RlforgeError, OSError, TimeoutError)
"""Failures of disks, adapters and engines end a deployment; others are bugs and are raised."""


class Deployer:
    """The versions that are served, and their changes; made by ``DeploymentService.open``."""

    live: Live

    def __init__(
        self,
        folder: Path,
        engine: Engine,
        journal: Journal,
        config: DeploymentConfig,
        model: ModelConfig,
        probes: Sequence[Probe],
        on_phase: Callable[[Deployment], None] | None,
        rewards: tuple[float, float],
    ) -> None:
        # Engines may run in another folder, where a relative path would be another one.
        self.folder, self._engine, self._journal = folder.absolute(), engine, journal
        self._config, self._model, self._probes = config, model, probes
        self._on_phase, self.rewards = on_phase, rewards
        self._changing = asyncio.Lock()
        #: Requests under way by paths of versions: the engine may read their files again.
        self.in_use: Counter[str | None] = Counter()
        #: Why an older version is served than at the last start; empty where it is the same.
        self.fell_back = ""

    async def deploy(
        self,
        adapter: Checkpoint | Path | str,
        holdout: Holdout | None,
        staged: Deployment | None = None,
    ) -> Deployment:
        """Deploy ``adapter``, or what was ``staged``; ``reason`` says why it is not served."""
        async with self._changing:
            before, entry = self.live, staged or self._unwritten(adapter)
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
                return await self._carry_out(entry.number, source, holdout)
            except FAILURES as error:
                self.live = before
                return await self._give_up(entry, error)
            except BaseException:
                self.live = before
                raise

    def _unwritten(self, adapter: Checkpoint | Path | str) -> Deployment:
        path = adapter.path or adapter.uid if isinstance(adapter, Checkpoint) else adapter
        return Deployment(
            number=-1,
            phase="validating",
            strategy=self._config.strategy,
            source=str(Path(path).absolute()),
            updates=version_of(adapter),
        )

    async def go_back(
        self, leaving: Deployment, reason: str, *, to_base: bool = True
    ) -> Deployment:
        """Serve the newest former version that loads, unless ``leaving`` is not served."""
        async with self._changing:
            before = self.live
            # Another task may have left this version meanwhile.
            if before.current.uid != leaving.uid:
                return before.current
            # The version to leave comes first, then newer before older ones.
            for former in self._journal.live()[1:]:
                if former.path is None and not to_base:
                    raise DeploymentError(self._only_base())
                if (problem := await self._problem_with(former)) is not None:
                    log.error("%s cannot be served: %s", former.uid, problem)
                    continue
                try:
                    self.live = Live(current=former)
                    await self._verify()
                    former = await asyncio.to_thread(
                        self._journal.go_back_to, former.number, reason
                    )
                except BaseException:
                    self.live = before
                    raise
                self.live = Live(current=former)
                log.warning("rolled back from %s to %s: %s", leaving.uid, former.uid, reason)
                self._report(former)
                await self._tidy()
                return former
            raise DeploymentError(f"there is no version to go back to from {leaving.uid}")

    async def conclude(self, trial: Trial, ending: str, why: str) -> None:
        """End a trial: its version is served to all users (``promote``), or to none."""
        async with self._changing:
            # Another task may have ended the trial meanwhile.
            if self.live.trial is not trial:
                return
            tried = trial.deployment
            log.warning("the trial of %s ends: %s, %s", tried.uid, ending, why)
            if ending == "promote":
                checks = (*tried.checks, Check(name="trial", passed=True, detail=why))
                await self._advance(tried.number, "trial", checks=checks)
                await self._promote(tried.number)
            else:
                await self._advance(tried.number, "rolled_back", reason=f"trial: {why}")
                self.live = Live(current=self.live.current)
            await self._tidy()

    async def set_aside(self, policy: PolicyRef, reason: str) -> None:
        """Stop serving a version that can no longer be loaded."""
        trial, current = self.live.trial, self.live.current
        if trial is not None and policy.uid == trial.deployment.uid:
            await self.conclude(trial, "roll_back", reason)
        elif policy.uid == current.uid:
            await self.go_back(current, reason, to_base=self._config.fall_back_to_base)

    async def resume(self) -> None:
        """Serve the version that was served last, or the base model at the first start."""
        # An earlier process may have died in the middle of a deployment.
        for left in self._journal.interrupt():
            log.warning("%s is not served: %s", left.uid, left.reason)
        stack = self._journal.live()
        if not stack:
            known = self._journal.history()
            base = known[0] if known else self._journal.begin("base model", strategy="replace")
            self.live = Live(current=base)
            await self._verify()
            await self._promote(base.number)
            await self._tidy()
            return
        reason = ""
        for deployment in stack:
            if deployment.path is None and reason and not self._config.fall_back_to_base:
                raise DeploymentError(f"{reason}: {self._only_base()}")
            problem = await self._problem_with(deployment)
            if problem is None:
                break
            log.error("%s cannot be served: %s", deployment.uid, problem)
            reason = reason or f"{deployment.uid} cannot be served: {problem}"
        else:
            raise DeploymentError(f"no version in {self.folder} can be served: {reason}")
        if reason:
            self.fell_back = f"{reason}; {deployment.uid} is served"
            deployment = await asyncio.to_thread(
                self._journal.go_back_to, deployment.number, reason
            )
        self.live = Live(current=deployment)
        await self._resume_trial()
        await self._tidy()

    async def _resume_trial(self) -> None:
        for tried in [d for d in self._journal.history() if d.phase == "trial"]:
            if (problem := await self._problem_with(tried)) is not None:
                log.error("the trial of %s cannot go on: %s", tried.uid, problem)
                await self._advance(tried.number, "rolled_back", reason=problem)
                continue
            trial, outcomes = Trial(tried, self._config.ab), self._journal.outcomes(tried.number)
            low, high = self.rewards
            kept = [one for one in outcomes if low <= one.reward <= high]
            if left_out := len(outcomes) - len(kept):
                log.warning(
                    "the trial of %s goes on without %d of %d outcomes: their rewards lie outside "
                    "of [%g, %g]",
                    *(tried.uid, left_out, len(outcomes), low, high),
                )
            for one in kept:
                trial.add(one.arm, one.reward, cluster=one.cluster, stage=one.stage)
            self.live = dataclasses.replace(self.live, trial=trial)

    # ------------------------------------------------------------ phases

    async def _carry_out(
        self, number: int, source: Checkpoint, holdout: Holdout | None
    ) -> Deployment:
        """Deploy ``source``; it ends live, on trial or rejected."""
        limit, live = self._config.timeout_s, self.live
        if source.path is None:
            raise DeploymentError(f"{source.uid} is the base model; roll back to get there")
        if live.trial is not None:
            raise DeploymentError(
                f"{live.trial.deployment.uid} is on trial; wait for its end, or roll it back"
            )
        await self._advance(number, "validating")
        candidate = PolicyRef(
            uid=f"candidate-{number}",
            kind="checkpoint",
            path_or_name=source.path,
            version=source.version,
        )
        async with asyncio.timeout(limit):
            report = await validate(
                candidate,
                live.current.policy(),
                self._engine,
                config=self._config,
                model=self._model,
                probes=self._probes,
                holdout=holdout,
            )
        if not report.passed:
            return await self._advance(
                number, "rejected", checks=report.checks, reason=report.reason
            )

        new = await self._advance(number, "checkpointing", checks=report.checks)
        path = await asyncio.to_thread(self._copy, new, source, report.files)

        new = await self._advance(number, "swapping", path=str(path))
        async with asyncio.timeout(limit):
            await self._engine.load(new.policy())
        on_trial = new.strategy == "ab_test"
        trial = Trial(new, self._config.ab) if on_trial else None
        # Requests get the new version from here on; until it is verified, a restart serves the
        # one before.
        self.live = Live(current=live.current if on_trial else new, trial=trial)

        await self._advance(number, "verifying")
        async with asyncio.timeout(limit):
            await self._verify()
        if on_trial:
            new = await self._advance(number, "trial")
        else:
            new = await self._promote(number)
        await self._tidy()
        return new

    async def _verify(self) -> None:
        live, probe = self.live, self._probes[0]
        for served in live.served():
            # In a trial the live route sends a probe to either version; both must answer.
            route = live.route(None) if live.trial is None else served.policy()
            answer = await self._engine.generate(probe.prompt_token_ids, probe.params, route)
            if answer.policy_uid != served.uid or not answer.token_ids:
                raise DeploymentError(
                    f"a probe of {served.uid} was answered by {answer.policy_uid or 'no version'} "
                    f"with {len(answer.token_ids)} tokens"
                )

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
        promoted = await asyncio.to_thread(self._journal.promote, number)
        self.live = Live(current=promoted)
        self._report(promoted)
        return promoted

    async def _give_up(self, deployment: Deployment, error: BaseException) -> Deployment:
        reason = self._sentence(error)
        log.error("deployment of %s failed: %s", deployment.source, reason)
        try:
            swapped = (await asyncio.to_thread(self._journal.deployment, deployment.number)).phase
            # While it was verified it already answered users, so its end is a rollback.
            phase: Phase = "rolled_back" if swapped == "verifying" else "failed"
            failed = await self._advance(deployment.number, phase, reason=reason)
        # The disk may be full: then only the result holds the reason.
        except DeploymentError as unwritable:
            log.error("%s", unwritable)
            failed = dataclasses.replace(deployment, phase="failed", reason=reason)
        await self._tidy()
        return failed

    async def _tidy(self) -> None:
        """Delete versions beyond ``deployment.keep`` that no request uses."""
        try:
            await asyncio.to_thread(self._journal.forget_former, self._config.keep)
            served = (*self._journal.live(), *self.live.served())
            paths = {*(d.path for d in served), *+self.in_use}
            # ``in_use``: the engine may read a version's files again for requests under way.
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
            copy_files(Path(source.path or ""), files),
            {"version": source.version, "source": new.source},
        )

    def _only_base(self) -> str:
        return (
            f"no trained version in {self.folder} can be served; put its files back, deploy "
            "another one, or set deployment.fall_back_to_base=true to serve the base model"
        )
