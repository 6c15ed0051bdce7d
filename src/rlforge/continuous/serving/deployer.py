"""Carries out one deployment: validate, copy, swap, verify.

Each phase is in the journal before it begins. What a restart serves changes only after the
verification, so that a killed process restarts with the last verified version.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.adapter import copy_files
from rlforge.continuous.serving.journal import VERSIONS, Journal
from rlforge.continuous.serving.records import Deployment, Holdout, Phase, Probe
from rlforge.continuous.serving.router import Live, Router, Trial
from rlforge.continuous.serving.validation import Validator
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.system.checkpoint import prune, read_manifest, write_checkpoint
from rlforge.types import Checkpoint, PolicyRef

log = logging.getLogger(__name__)

FAILURES = (RlforgeError, OSError, TimeoutError)
"""Failures of disks, adapters and engines end a deployment; others are bugs and are raised."""


class Deployer:
    """The phases of a deployment, one deployment at a time. folder: holds copies of adapters."""

    def __init__(
        self,
        folder: Path,
        router: Router,
        journal: Journal,
        config: DeploymentConfig,
        validator: Validator,
        probe: Probe,
        on_phase: Callable[[Deployment], None] | None,
    ) -> None:
        self._versions = folder / VERSIONS
        self._router, self._journal, self._config = router, journal, config
        self._validator, self._probe, self._on_phase = validator, probe, on_phase

    async def carry_out(
        self, number: int, source: Checkpoint, holdout: Holdout | None
    ) -> Deployment:
        """Deploy ``source`` as number ``number``; it ends live, on trial or rejected.

        Raises one of ``FAILURES`` when a phase fails; the caller then restores ``Router.live``.
        """
        limit, live = self._config.timeout_s, self._router.live
        if source.path is None:
            raise DeploymentError(f"{source.uid} is the base model; roll back to get there")
        if live.trial is not None:
            raise DeploymentError(
                f"{live.trial.deployment.uid} is on trial; wait for its end, or roll it back"
            )
        await self.advance(number, "validating")
        candidate = PolicyRef(
            uid=f"candidate-{number}",
            kind="checkpoint",
            path_or_name=source.path,
            version=source.version,
        )
        async with asyncio.timeout(limit):
            report = await self._validator.validate(candidate, live.current.policy(), holdout)
        if not report.passed:
            return await self.advance(
                number, "rejected", checks=report.checks, reason=report.reason
            )

        new = await self.advance(number, "checkpointing", checks=report.checks)
        path = await asyncio.to_thread(self._copy, new, source, report.files)

        new = await self.advance(number, "swapping", path=str(path))
        async with asyncio.timeout(limit):
            await self._router.engine.load(new.policy())
        on_trial = new.strategy == "ab_test"
        trial = Trial(new, self._config.ab) if on_trial else None
        self._router.live = Live(current=live.current if on_trial else new, trial=trial)

        await self.advance(number, "verifying")
        async with asyncio.timeout(limit):
            await self.verify()
        if on_trial:
            new = await self.advance(number, "trial")
        else:
            new = await self.promote(number)
        await self.tidy()
        return new

    async def verify(self) -> None:
        """Check that the live route answers; DeploymentError for other versions, or EngineError."""
        live = self._router.live
        for served in live.served():
            # In a trial the live route sends a probe to either version; both must answer.
            route = self._router.route(None) if live.trial is None else served.policy()
            answer = await self._router.answer(
                self._probe.prompt_token_ids, self._probe.params, route
            )
            if answer.policy_uid != served.uid or not answer.token_ids:
                raise DeploymentError(
                    f"a probe of {served.uid} was answered by {answer.policy_uid or 'no version'} "
                    f"with {len(answer.token_ids)} tokens"
                )

    async def problem_with(self, deployment: Deployment) -> str | None:
        """Why a version that was verified earlier cannot be served now; None where it can."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                if deployment.path is not None:
                    await asyncio.to_thread(read_manifest, Path(deployment.path))
                await self._router.engine.load(deployment.policy())
        except FAILURES as error:
            return self.sentence(error)
        return None

    async def promote(self, number: int) -> Deployment:
        """Serve a verified version to all users, also after a restart."""
        promoted = await asyncio.to_thread(self._journal.promote, number)
        self._router.live = Live(current=promoted)
        self.report(promoted)
        return promoted

    async def give_up(self, deployment: Deployment, error: BaseException) -> Deployment:
        """Record why a deployment failed; if the disk is full, only the result holds the reason."""
        reason = self.sentence(error)
        log.error("deployment of %s failed: %s", deployment.source, reason)
        try:
            swapped = (await asyncio.to_thread(self._journal.deployment, deployment.number)).phase
            phase: Phase = "rolled_back" if swapped == "verifying" else "failed"
            failed = await self.advance(deployment.number, phase, reason=reason)
        except DeploymentError as unwritable:
            log.error("%s", unwritable)
            failed = dataclasses.replace(deployment, phase="failed", reason=reason)
        await self.tidy()
        return failed

    async def tidy(self) -> None:
        """Delete versions beyond ``deployment.keep`` that no request uses, and copy the journal.

        Serving does not depend on it: a failure is only logged.
        """
        try:
            await asyncio.to_thread(self._journal.forget_former, self._config.keep)
            served = (*self._journal.live(), *self._router.live.served())
            paths = {*(d.path for d in served), *self._router.in_use}
            kept = {Path(path).name for path in paths if path}
            await asyncio.to_thread(prune, self._versions, 0, kept)
            await asyncio.to_thread(self._journal.back_up)
        except FAILURES as error:
            log.warning("could not tidy up: %s", self.sentence(error))

    async def advance(self, number: int, phase: Phase, **facts: Any) -> Deployment:
        """Record that a deployment is in ``phase``, and report it."""
        deployment = await asyncio.to_thread(self._journal.advance, number, phase, **facts)
        self.report(deployment)
        return deployment

    def report(self, deployment: Deployment) -> None:
        """Log a change of phase and pass it to ``on_phase``."""
        log.info("%s: %s %s", deployment.uid, deployment.phase, deployment.reason)
        if self._on_phase is not None:
            self._on_phase(deployment)

    def sentence(self, error: BaseException) -> str:
        """The error as one sentence for the user."""
        if isinstance(error, TimeoutError):
            return f"not done within deployment.timeout_s={self._config.timeout_s:g} s"
        if isinstance(error, OSError):
            return f"{error.filename or 'file system'}: {error.strerror or error}"
        return str(error)

    def _copy(self, new: Deployment, source: Checkpoint, files: dict[str, str]) -> Path:
        # A folder of this number exists only if the journal lost its newest entries.
        shutil.rmtree(self._versions / new.uid, ignore_errors=True)
        return write_checkpoint(
            self._versions,
            new.uid,
            copy_files(Path(source.path or ""), files),
            {"version": source.version, "source": new.source},
        )
