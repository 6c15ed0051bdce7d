"""The runs below a folder, with status and results."""

from __future__ import annotations

from pathlib import Path

from rlforge.errors import ConfigError
from rlforge.record.files import RunPaths, read_jsonl, runs_below
from rlforge.record.results import read_evals
from rlforge.record.status import read_progress, read_summary
from rlforge.record.sweeps import FAILED
from rlforge.show.formatting import percent
from rlforge.types import value

FIRST_RUN = "start one: rlforge train simpletak_mirror"


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
        raise ConfigError(f"latest: there is no run below {folder}/ yet; {FIRST_RUN}")
    return found[0]


def run_row(path: Path) -> RunRow:
    """The run in ``path``; of a folder without one, that it is not started."""
    run = RunPaths(root=path)
    result = ""
    if windows := read_jsonl(run.windows):
        row = windows[-1]
        reward, control = row["policy_reward"], row["control_reward"]
        if reward is None:
            result = str(row["reason"])
        else:
            result = f"reward {reward:.3f}" + (
                "" if control is None else f", control {control:.3f}"
            )
    elif results := read_evals(run):
        newest = results[-1].policy_uid
        rates = {one.opponent: one.win_rate for one in results if one.policy_uid == newest}
        won = ", ".join(f"{percent(rate, 0)} vs {name}" for name, rate in rates.items())
        result = f"{newest}: {won}"
    status, done = how_far(run)
    return RunRow(path=str(path), status=status, done=done, result=result)


def how_far(run: RunPaths) -> tuple[str, str]:
    """The status of a run, and its updates or windows, of how many."""
    summary = read_summary(run)
    status = str(summary.get("status", "not started"))
    unit = "windows" if "windows" in summary or run.windows.is_file() else "updates"
    done, total = summary.get(unit, 0), summary.get(f"total_{unit}")
    if status in ("running", "killed"):  # summary.json is of an earlier part
        progress = read_progress(run)
        done, total = progress.get("update", 0), progress.get("total_updates") or total
    if status == "not started" and (run.root / FAILED).is_file():
        status = "failed"
    return status, f"{done} {unit}" if total is None else f"{done}/{total} {unit}"
