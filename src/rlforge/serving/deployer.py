"""One version on its way: validate, copy, swap, verify, each phase written down before it begins.

What is served changes by one assignment (``Router.live``); what a restart serves changes by one
transaction, after the verification. A process that is killed in any phase therefore comes back
with the last verified version.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlforge.config.serving import DeploymentConfig
from rlforge.errors import DeploymentError, RlforgeError
from rlforge.serving.adapter import copy_files
from rlforge.serving.journal import Journal
from rlforge.serving.records import Deployment, Holdout, Phase, Probe
from rlforge.serving.router import Live, Router, Trial
from rlforge.serving.validation import Validator
from rlforge.system.checkpoint import prune, read_manifest, write_checkpoint
from rlforge.types import Checkpoint, PolicyRef

log = logging.getLogger(__name__)

T = TypeVar("T")

VERSIONS = "versions"
"""Folder of the service's own copies."""

FAILURES = (RlforgeError, OSError, TimeoutError)
"""What a disk, an adapter or an engine does; anything else is a bug, and is raised."""


class Deployer:
    """The phases of a deployment; the caller sees to it that there is one at a time.

    folder: where its copies are kept. on_phase: told of every step.
    """

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
        """Bring deployment ``number`` from ``source`` to its end: live, on trial or rejected.

        Raises one of ``FAILURES`` when a phase fails; the caller puts back what was served.
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
        """The live route answers, and with the versions that are served now.

        Raises DeploymentError, or what the engine raises.
        """
        live = self._router.live
        for served in live.served():
            # In a trial the live route sends a probe to either version; both must answer.
            route = self._router.route(None) if live.trial is None else served.policy()
            answer = await self._router.answer(
                self._probe.prompt_token_ids, self._probe.params, route
            )
            if answer.policy_uid != served.uid or not answer.token_ids:
                raise DeploymentError(
                    f"a probe of {served.uid} was answered by {answer.policy_uid or 'nobody'} "
                    f"with {len(answer.token_ids)} tokens"
                )

    async def problem_with(self, deployment: Deployment) -> str | None:
        """Why a version that was verified once cannot be served now; None where it can."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                if deployment.path is not None:
                    await asyncio.to_thread(read_manifest, Path(deployment.path))
                await self._router.engine.load(deployment.policy())
        except FAILURES as error:
            return self.sentence(error)
        return None

    async def promote(self, number: int) -> Deployment:
        """A verified version is live from now on, also after a restart."""
        promoted = await self.noted(self._journal.promote, number)
        self._router.live = Live(current=promoted)
        self.tell(promoted)
        return promoted

    async def give_up(self, deployment: Deployment, error: BaseException) -> Deployment:
        """Write down why a deployment failed; where the disk is full, the answer says it only."""
        reason = self.sentence(error)
        log.error("deployment of %s failed: %s", deployment.source, reason)
        try:
            swapped = (await self.noted(self._journal.deployment, deployment.number)).phase
            phase: Phase = "rolled_back" if swapped == "verifying" else "failed"
            failed = await self.advance(deployment.number, phase, reason=reason)
        except DeploymentError as unwritable:
            log.error("%s", unwritable)
            failed = deployment.ended("failed", reason)
        await self.tidy()
        return failed

    async def tidy(self) -> None:
        """Forget versions that nobody can go back to, and keep a copy of the journal.

        What is served does not depend on it: a failure is logged.
        """
        try:
            await self.noted(self._journal.forget_former, self._config.keep)
            served = (*self._journal.live(), *self._router.live.served())
            paths = {*(d.path for d in served), *self._router.leased}
            # By path, not by uid: folders of older states are named version-N.
            kept = {Path(path).name for path in paths if path}
            await asyncio.to_thread(prune, self._versions, 0, kept)
            await self.noted(self._journal.back_up)
        except FAILURES as error:
            log.warning("could not tidy up: %s", self.sentence(error))

    async def advance(self, number: int, phase: Phase, **facts: Any) -> Deployment:
        """Write down that a deployment is in ``phase``, and tell."""
        deployment = await self.noted(self._journal.advance, number, phase, **facts)
        self.tell(deployment)
        return deployment

    async def noted(self, method: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call the journal in a thread: it waits for the disk."""
        return await asyncio.to_thread(method, *arguments, **named)

    def tell(self, deployment: Deployment) -> None:
        """Log a step, and hand it on."""
        log.info("%s: %s %s", deployment.uid, deployment.phase, deployment.reason)
        if self._on_phase is not None:
            self._on_phase(deployment)

    def sentence(self, error: BaseException) -> str:
        """What went wrong, for the user."""
        if isinstance(error, TimeoutError):
            return f"not done within deployment.timeout_s={self._config.timeout_s:g} s"
        if isinstance(error, OSError):
            return f"{error.filename or 'file system'}: {error.strerror or error}"
        return str(error)

    def _copy(self, new: Deployment, source: Checkpoint, files: dict[str, str]) -> Path:
        # Numbers are never used twice, unless the journal's newest entries were lost.
        shutil.rmtree(self._versions / new.uid, ignore_errors=True)
        return write_checkpoint(
            self._versions,
            new.uid,
            copy_files(Path(source.path or ""), files),
            {"version": source.version, "source": source.path},
        )
