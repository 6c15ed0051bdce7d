"""Limits that control groups, versions 1 and 2, set for memory, cores and processes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from rlforge.types import value

PROCESS = Path("/proc/self")

#: What version 1 says for no limit is near the largest number of bytes.
_NO_LIMIT = 2**60


@value
class Limit:
    """The tightest limit of all groups around this process, with the folder of its group.

    used: of the number, where that is read.
    """

    number: float
    group: Path
    used: float = 0

    @property
    def left(self) -> float:
        return self.number - self.used


def memory_limit(process: Path = PROCESS) -> Limit | None:
    """Bytes that this process and others of its group may use; None without a limit."""
    return _least(process, _memory)


def core_limit(process: Path = PROCESS) -> Limit | None:
    """Cores whose time this process and others of its group may use; None without a limit."""
    return _least(process, _cores)


def process_limit(process: Path = PROCESS) -> Limit | None:
    """Processes, threads among them, that this group may have; None without a limit."""
    return _least(process, _processes, lambda group: int((group / "pids.current").read_text()))


def _least(
    process: Path, read: Callable[[Path], float], used: Callable[[Path], float] = lambda group: 0
) -> Limit | None:
    found = []
    for group in _groups(process):
        # A group has the files of its own controllers, and its words for "no limit".
        with contextlib.suppress(OSError, ValueError):
            found.append(Limit(number=read(group), group=group, used=used(group)))
    return min(found, key=lambda limit: limit.left, default=None)


def _memory(group: Path) -> float:
    second = group / "memory.max"
    file = second if second.exists() else group / "memory.limit_in_bytes"
    limit = int(file.read_text())
    if limit >= _NO_LIMIT:
        raise ValueError("no limit")
    return limit


def _processes(group: Path) -> float:
    return int((group / "pids.max").read_text())  # which is "max" for no limit


def _cores(group: Path) -> float:
    second = group / "cpu.max"
    if second.exists():
        quota, period = second.read_text().split()
    else:
        quota = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
    if int(quota) < 0:
        raise ValueError("no quota")
    return int(quota) / int(period)


def _groups(process: Path) -> Iterator[Path]:
    """Folders of the groups that hold the process, each followed by those around it."""
    try:
        member = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return
    # Controller -> path; version 2 has one path, under no name.
    paths: dict[str, str] = {}
    for line in member:
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path)
    for line in mounts:
        mount, _, system = line.partition(" - ")
        kind, _, options = system.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        held = ("",) if kind == "cgroup2" else options.split(",")
        known = [paths[name] for name in held if name in paths]
        if not known:
            continue
        root, point = map(_unescaped, mount.split(" ")[3:5])
        # In a container the path may be the host's, and the mount begins at the container's group.
        own, inside = PurePosixPath(known[0]), PurePosixPath(root)
        below = own.is_relative_to(inside) and ".." not in own.parts
        top = Path(point)
        group = top / own.relative_to(inside) if below else top
        yield group
        yield from (each for each in group.parents if each.is_relative_to(top))


def _unescaped(text: str) -> str:
    """A path as it is; the kernel writes spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
