"""The log files of a run: one per process."""

from __future__ import annotations

import faulthandler
import logging
import os
from pathlib import Path


def enter(name: str, run_dir: str) -> None:
    """What every process of a run does first: its own log file, and tracebacks of hard crashes."""
    logs = Path(run_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"{name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rlforge")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    crashes = (logs / f"{name}.crash.log").open("w")
    faulthandler.enable(crashes)
    root.info("%s started as process %d", name, os.getpid())
