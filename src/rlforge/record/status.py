"""How a run stands: running, done, interrupted, failed or killed.

Its tracker writes the status, and where that cannot, the process of the command.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlforge.errors import ConfigError, command_line
from rlforge.record.files import RunPaths, read_json, read_jsonl, write_json
from rlforge.system.locks import RunLock


def is_of_start(summary: Mapping[str, Any]) -> bool:
    """Whether a run's summary is of its start, or an earlier part: progress.json is newer."""
    return summary.get("status") in ("running", "killed")


def read_summary(run: RunPaths) -> dict[str, Any]:
    """``summary.json`` with its status as it stands, or empty; RlforgeError if damaged."""
    return _as_it_stands(run, run.summary)


def is_done(run: RunPaths) -> bool:
    return read_summary(run).get("status") == "done"


def check_unused(run_dir: Path, command: str) -> None:
    """Raise ConfigError where ``run_dir`` holds a run already. command: resumes such a run."""
    if RunPaths(root=run_dir).config.exists():
        again = command_line(command, "--resume", run_dir)
        raise ConfigError(f"run_dir={run_dir}: holds a run already; name another, or {again}")


def read_progress(run: RunPaths) -> dict[str, Any]:
    """``progress.json``, as ``read_summary``."""
    return _as_it_stands(run, run.progress)


def _as_it_stands(run: RunPaths, file: Path) -> dict[str, Any]:
    # A run locks before it writes that it runs, and writes how it ended before it unlocks: only a
    # lock that is free before and after the file is read means that the run was killed.
    lock = RunLock(run.root)
    free = lock.held() is False
    data = read_json(file)
    if free and data.get("status") == "running" and lock.held() is False:
        data["status"] = "killed"
    return data


def why_it_ended(summary: Mapping[str, Any]) -> str | None:
    """Why the run of a ``read_summary`` failed or was killed; None for any other.

    Example:
        >>> why_it_ended({"status": "failed", "error": "the learner died"})
        'failed: the learner died'
    """
    if summary.get("status") == "killed":
        return (
            "was killed: its process has not written how it ended; logs/ may tell why, --resume "
            "goes on"
        )
    return f"failed: {summary.get('error')}" if summary.get("status") == "failed" else None


def write_start(run: RunPaths, run_name: str, total_updates: int) -> None:
    """Say that the run starts or goes on."""
    known = {"updates": 0, **read_json(run.summary)}
    known.pop("error", None)
    about = {"run_name": run_name, "total_updates": total_updates, "status": "running"}
    write_json(run.summary, {**known, **about})
    view = {"elapsed_s": 0.0, "update": 0, **read_json(run.progress)}
    write_json(run.progress, {**view, **about, "updated_at": time.time()})


def write_end(run: RunPaths, status: str, error: str | None = None) -> None:
    """Say how the run ended (interrupted, or failed with an error), unless its tracker did."""
    summary = read_json(run.summary)
    if summary.get("status") != "running":
        return  # its tracker did, with newer figures
    # The tracker's figures are of the start of the run.
    if rows := read_jsonl(run.metrics):
        summary["updates"] = len(rows)
        summary["wall_time_s"] = rows[-1].get("time_s", summary.get("wall_time_s"))
    if windows := read_jsonl(run.windows):
        summary["windows"] = len(windows)
    ending = {"status": status} if error is None else {"status": status, "error": error}
    write_json(run.summary, {**summary, **ending})
    view = read_json(run.progress)
    write_json(run.progress, {**view, "status": status, "updated_at": time.time()})
