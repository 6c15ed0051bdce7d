"""The folder of a sweep, with its jobs in folders 0, 1, …

``sweep.json`` is written at the start: the overrides that all jobs have (``shared``), and a list of
further ones for each (``jobs``; null where the sweeper chooses them as it goes).
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlforge.errors import DamagedError
from rlforge.record.files import RunPaths, read_json, runs_below, write_json
from rlforge.record.status import read_summary
from rlforge.system.files import reading
from rlforge.system.locks import RunLock
from rlforge.types import value

log = logging.getLogger(__name__)

SWEEP_FILE = "sweep.json"
#: In the folder of a job that failed: why.
FAILED = "failed.txt"
#: In the folder of a sweep that a signal stops: no further job starts.
STOPPED = "stopped"

#: Most characters of the overrides in front of every line that a job prints.
_LABEL = 40


@value
class Job:
    """A job of a sweep. total: of the jobs, None where it is not known. overrides: its own ones.

    Example:
        >>> job = Job(number=1, total=6, overrides=("seed=1", "learner.learning_rate=0.001"))
        >>> str(job), job.label
        ('job 2 of 6: seed=1 learner.learning_rate=0.001', '2/6 seed=1 learning_rate=0.001')
    """

    number: int
    total: int | None
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        at = f"{self.number + 1}/{self.total}" if self.total else f"{self.number + 1}"
        what = " ".join(map(shortened, self.overrides))
        return f"{at} {what}" if 0 < len(what) <= _LABEL else at

    def __str__(self) -> str:
        total = f" of {self.total}" if self.total else ""
        what = f": {' '.join(self.overrides)}" if self.overrides else ""
        return f"job {self.number + 1}{total}{what}"


def shortened(override: str) -> str:
    """An override with the last part of its key.

    Example:
        >>> shortened("learner.learning_rate=0.001"), shortened("+experiment=kuhn_grpo")
        ('learning_rate=0.001', 'experiment=kuhn_grpo')
    """
    key, _, setting = override.partition("=")
    return f"{key.lstrip('+').rpartition('.')[2]}={setting}"


def write_sweep(folder: Path, shared: Sequence[str], jobs: Sequence[Sequence[str]] | None) -> None:
    """Write ``sweep.json``. jobs: all overrides of each."""
    own = None if jobs is None else [[one for one in job if one not in shared] for job in jobs]
    write_json(folder / SWEEP_FILE, {"shared": list(shared), "jobs": own})


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP_FILE).is_file()


def under_way(folder: Path) -> bool:
    """Whether the run or sweep of a folder, or a run below it, goes on."""
    folders = [folder, *runs_below(folder)]
    # Between two jobs no run goes on, but the sweep holds the lock of its folder.
    return any(RunLock(each).held() is True or _runs(RunPaths(root=each)) for each in folders)


def _runs(run: RunPaths) -> bool:
    try:
        return bool(read_summary(run).get("status") == "running")
    except DamagedError:  # which ``compare`` shows
        return False


def read_sweep(folder: Path) -> dict[str, Any]:
    """``sweep.json``, empty where there is none, and with a line in the log where it is damaged."""
    file = folder / SWEEP_FILE
    try:
        with reading(file):
            sweep = read_json(file)
            return {key: sweep[key] for key in ("shared", "jobs")} if sweep else {}
    except DamagedError as error:  # it must not hide the jobs, which are there without it
        log.warning("%s", error)
        return {}


def elsewhere(folder: Path) -> set[int]:
    """Processes, other than this one, that run jobs of the sweep on this machine."""
    locks = (RunLock(file.parent) for file in folder.glob(f"*/{RunLock.FILE}"))
    return {pid for lock in locks if (pid := lock.holder()) not in (None, os.getpid())}


def to_resume(folder: Path) -> list[Path]:
    """The jobs of a sweep that were begun and have not come to an end of their own."""
    ends = {run: read_summary(RunPaths(root=run)).get("status") for run in members(folder)}
    return [run for run, status in ends.items() if status in ("running", "interrupted", "killed")]


def waiting(folder: Path) -> dict[Path, list[str]]:
    """All overrides of each job of a sweep that has not begun; empty where its sweeper chooses."""
    sweep, begun = read_sweep(folder), set(members(folder))
    jobs = {folder / str(number): own for number, own in enumerate(sweep.get("jobs") or ())}
    return {job: [*sweep["shared"], *own] for job, own in jobs.items() if job not in begun}


def job_of(run_dir: Path, overrides: Sequence[str] = ()) -> Job | None:
    """The job of a run directory, or None. overrides: all of it, before command.txt has them."""
    sweep = read_sweep(run_dir.absolute().parent)
    if not sweep or not run_dir.name.isdecimal():
        return None
    number, jobs = int(run_dir.name), sweep["jobs"]
    if jobs is not None and number < len(jobs):
        return Job(number=number, total=len(jobs), overrides=tuple(jobs[number]))
    file = RunPaths(root=run_dir).command
    if not overrides and file.is_file():
        # The first line started the run; ``--option=value`` is no override.
        with reading(file):
            first, *_ = file.read_text(encoding="utf-8").splitlines()
            overrides = [word for word in shlex.split(first) if "=" in word and word[0] != "-"]
    own = tuple(one for one in overrides if one not in sweep["shared"])
    return Job(number=number, total=None, overrides=own)


def job_label(run_dir: Path) -> str:
    """``Job.label`` of a run directory; empty where it is of no sweep."""
    job = job_of(run_dir)
    return "" if job is None else job.label


def members(folder: Path) -> list[Path]:
    """The runs below ``folder``, by name, and the jobs that failed before they were runs."""
    failed = [file.parent for file in folder.glob(f"*/{FAILED}")]
    return sorted({*runs_below(folder), *failed}, key=_by_name)


def all_jobs(folder: Path) -> list[Path]:
    """The ``members`` of a sweep, and its jobs that have not started."""
    return sorted({*members(folder), *waiting(folder)}, key=_by_name)


def _by_name(path: Path) -> list[tuple[bool, int, str]]:
    # Numbers in names of folders are sorted as numbers.
    parts = path.parts
    return [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
