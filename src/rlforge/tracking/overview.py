"""The runs below a folder, with status and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlforge.errors import ConfigError
from rlforge.tracking.files import RunPaths, read_jsonl, runs_below
from rlforge.tracking.formatting import percent
from rlforge.tracking.status import read_summary
from rlforge.types import value


@value
class RunRow:
    """A run. done: updates or windows, of how many. result: of its last evaluation or window."""

    path: str
    status: str
    done: str
    result: str


def newest_run(folder: Path) -> Path:
    """The newest run below ``folder``. Raises ConfigError where there is none."""
    found = runs_below(folder)
    if not found:
        raise ConfigError(f"latest: there is no run below {folder}/; name a run directory")
    return found[0]


def overview(folder: Path) -> list[RunRow]:
    """The runs below ``folder``, the newest first."""
    return [_row(path) for path in runs_below(folder)]


def _row(path: Path) -> RunRow:
    run = RunPaths(root=path)
    summary = read_summary(run)
    status = str(summary.get("status", "not started"))
    if "windows" in summary:
        done = _of(summary["windows"], summary.get("total_windows"), "windows")
        rows = list(read_jsonl(run.windows))
        result = _of_window(rows[-1]) if rows else ""
    else:
        done = _of(summary.get("updates", 0), summary.get("total_updates"), "updates")
        result = _of_evaluations(list(read_jsonl(run.evals)))
    return RunRow(path=str(path), status=status, done=done, result=result)


def _of(done: int, total: int | None, unit: str) -> str:
    return f"{done} {unit}" if total is None else f"{done}/{total} {unit}"


def _of_evaluations(rows: list[dict[str, Any]]) -> str:
    """Win rates of the version that was evaluated last."""
    if not rows:
        return ""
    last = [row for row in rows if row["policy_uid"] == rows[-1]["policy_uid"]]
    rates = {row["opponent"]: row["win_rate"] for row in last}
    won = ", ".join(f"{percent(rate, 0)} vs {name}" for name, rate in rates.items())
    return f"{rows[-1]['policy_uid']}: {won}"


def _of_window(row: dict[str, Any]) -> str:
    """The reward of the policy in a window, and that of the control agents."""
    reward, control = row["policy_reward"], row["control_reward"]
    if reward is None:
        return str(row["reason"])
    return f"reward {reward:.3f}" + ("" if control is None else f", control {control:.3f}")
