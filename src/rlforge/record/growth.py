"""Bytes of a run's folder, how fast they grow, and the words on a disk that is full."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from rlforge.record.files import RunPaths
from rlforge.record.status import read_progress, read_summary
from rlforge.system.files import files_below, readable_size
from rlforge.types import value


@value
class Part:
    """A file of a run, or a folder with all that is in it."""

    name: str
    size: int
    files: int


def parts(run_dir: Path) -> list[Part]:
    """Parts of a run, the largest first."""
    found = []
    for path in run_dir.iterdir():
        sizes = []
        for file in files_below(path) if path.is_dir() else (path,):
            with contextlib.suppress(FileNotFoundError):  # the run deleted it meanwhile
                if file.is_file() and not file.is_symlink():  # a link's target is elsewhere
                    sizes.append(file.stat().st_size)
        found.append(Part(name=path.name, size=sum(sizes), files=len(sizes)))
    return sorted(found, key=lambda part: (-part.size, part.name))


def a_day(run: RunPaths, size: int) -> int | None:
    """Bytes by which a run that has made ``size`` grows in a day; None of one of seconds."""
    took = read_summary(run).get("wall_time_s") or read_progress(run).get("elapsed_s") or 0.0
    # What a run of less than a minute has written is mostly its start.
    return round(size / took * 86_400) if took >= 60 else None


def of_run(run: RunPaths, size: int) -> str:
    """Words on a run of ``size`` bytes and its growth."""
    day = a_day(run, size)
    growth = "" if day is None else f", {readable_size(day)} a day at its pace so far"
    return f"{run.root}: {readable_size(size)}{growth}"


def of_full_disk(run: RunPaths, others: Sequence[Path]) -> str:
    """Words on a disk that filled, and on what the run needs. others: what it writes elsewhere."""
    free = {folder: shutil.disk_usage(folder).free for folder in (run.root, *others)}
    full = min(free, key=free.__getitem__)
    made = of_run(run, sum(part.size for part in parts(run.root)))
    return f"{readable_size(free[full])} are free on the disk of {full} ({made}); free some"
