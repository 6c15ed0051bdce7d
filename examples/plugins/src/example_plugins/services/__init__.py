"""What sinks of services share: a resumed run goes on there as one run, with each point once."""

import contextlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlforge import RunPaths


class Unsent:
    """The points that the earlier parts of a run have not recorded; services delete none.

    scalars.jsonl holds what those parts gave to every sink, when it is read before its rewind.
    """

    def __init__(self, run: RunPaths) -> None:
        self._sent: dict[str, int] = {}
        for line in run.scalars.read_text().splitlines() if run.scalars.exists() else ():
            with contextlib.suppress(ValueError):  # a damaged line
                row = json.loads(line)
                for key in row:
                    self._sent[key] = max(row["step"], self._sent.get(key, row["step"]))

    def of(self, step: int, scalars: Mapping[str, float]) -> dict[str, float]:
        """Those of ``scalars`` that are not recorded at ``step`` or after it."""
        return {
            key: value for key, value in scalars.items() if step > self._sent.get(key, step - 1)
        }


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
