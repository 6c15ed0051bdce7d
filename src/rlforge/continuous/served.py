"""The deployment service as the trainer sees it: versions go by the names of its checkpoints."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rlforge.continuous.trainer import Deployed
from rlforge.serving.records import Deployment
from rlforge.serving.service import DeploymentService
from rlforge.types import Checkpoint


class Served:
    """What ``service`` serves. The base model goes by the name of version 0, which it is."""

    def __init__(self, service: DeploymentService) -> None:
        self._service = service

    def on_trial(self) -> bool:
        """Whether a new version is still being compared with the current one."""
        return self._service.trial is not None

    def serving(self) -> str:
        """The version of this run that everybody gets; in a trial, all who are not in it."""
        return _name(self._service.current)

    def needed(self) -> Collection[str]:
        """Versions that learning may have to go on from."""
        return {_name(deployment) for deployment in self._service.served()}

    async def deploy(self, checkpoint: Checkpoint) -> Deployed:
        """Serve ``checkpoint`` if it may be served; one that is served already stays."""
        if checkpoint.uid in self.needed():
            return Deployed(success=True)
        deployment = await self._service.deploy(checkpoint)
        return Deployed(success=deployment.succeeded, reason=deployment.reason)


def _name(deployment: Deployment) -> str:
    return "step-0" if deployment.path is None else Path(deployment.source).name
