"""What sinks of services share: a resumed run goes on there as one run."""

import json
import shlex
from pathlib import Path
from typing import Any

import yaml

from rlforge import RunPaths


def known_ids(run: RunPaths) -> dict[str, str]:
    """The ids of the run at services, which its directory keeps."""
    return json.loads(run.trackers.read_text()) if run.trackers.exists() else {}


def configuration(run: RunPaths) -> dict[str, Any]:
    """The configuration of the run."""
    return yaml.safe_load(run.config.read_text()) if run.config.exists() else {}


def sweep(run: RunPaths) -> str | None:
    """The name of the sweep's folder that the run is a job of."""
    folder = Path(run.root).absolute().parent.name
    return folder if folder.startswith("sweep_") else None


def title(run: RunPaths, name: str) -> str:
    """The name of the experiment; of a job of a sweep, with its overrides."""
    if sweep(run) is None or not run.command.exists():
        return name
    words = shlex.split(run.command.read_text().splitlines()[0])
    own = [word for word in words if "=" in word and not word.startswith(("+", "--", "hydra"))]
    return " ".join([name, *own])[:128]  # services cut or refuse longer names
