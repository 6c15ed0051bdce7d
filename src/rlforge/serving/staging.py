"""Deploying where no service runs: the next one does it."""

from __future__ import annotations

from pathlib import Path

from rlforge.errors import DeploymentError
from rlforge.serving.adapter import checkpoint_of
from rlforge.serving.journal import Journal
from rlforge.serving.records import Deployment
from rlforge.system.locks import RunLock


def stage(folder: Path, source: Path, strategy: str) -> Deployment:
    """Note an adapter for the service that will next own ``folder``.

    Raises RunError when one owns it now, DeploymentError when none ever did, or ``source`` holds
    no adapter.
    """
    checkpoint = checkpoint_of(source)
    with RunLock(folder):
        journal = Journal(folder)
        try:
            if not journal.history():
                raise DeploymentError(f"{folder}: no service was ever started here")
            return journal.begin(
                checkpoint.path or "",
                strategy=strategy,
                version=checkpoint.version,
                phase="staged",
            )
        finally:
            journal.close()
