"""Limits that shells, batch systems and containers set for processes, and what a run needs."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import psutil

from rlforge.config.schema import PolicyConfig
from rlforge.kinds import kind_of
from rlforge.preflight.finding import Finding
from rlforge.system.cgroups import process_limit
from rlforge.system.files import readable_size

#: Open files with which a run neither fails nor waits for ever.
LEAST_FILES = 512

#: Threads of Ray, of the driver and of processes without a model, measured on two cores, and of
#: each engine or rank of a learner. More cores take more.
THREADS, THREADS_OF_MODEL = 210, 32

#: Bytes of addresses that Ray and torch reserve in one process, most of which they never use. With
#: 8 GiB Ray's raylet has ended in the middle of a run.
LEAST_ADDRESSES = 10 * 2**30


def allowances(config: PolicyConfig, largest_file: int) -> Iterator[Finding]:
    """Limits of this process, which those that it starts inherit.

    largest_file: bytes of the largest file that a start writes.
    """
    yield _files()
    if config.hardware.ray_address is None:
        yield _processes(config)
        need = " for each process, and Ray's reserve"
        yield _size("address space", resource.RLIMIT_AS, LEAST_ADDRESSES, need, "-v")
    need = ", and the largest file of the start has about"
    yield _size("size of files", resource.RLIMIT_FSIZE, largest_file, need, "-f")
    for name, limit, flag in (
        ("data segment", resource.RLIMIT_DATA, "-d"),
        ("CPU time", resource.RLIMIT_CPU, "-t"),
    ):
        if (most := _limit(limit)) is not None:
            amount = f"{most} seconds" if flag == "-t" else readable_size(most)
            detail = f"{amount} for each process, which fails beyond; ulimit {flag} unlimited"
            yield Finding(what=name, state="note", detail=detail)


def _limit(which: int) -> int | None:
    """The limit in force, None where there is none."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _files() -> Finding:
    # Ray raises the first number to the second.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILES:
        detail = f"at most {most}, and a run needs {LEAST_FILES}; raise it with ulimit -Hn"
        return Finding(what="open files", state="problem", detail=detail)
    shown = "any number" if most == resource.RLIM_INFINITY else f"at most {most}"
    return Finding(what="open files", state="ok", detail=shown)


def _processes(config: PolicyConfig) -> Finding:
    """Threads count as processes do, for the user and for a control group."""
    kind = kind_of(config)
    models = config.engine.num_engines if kind.generates else 0
    models += config.learner.num_learners if kind.learns else 0
    needed, bounds = THREADS + models * THREADS_OF_MODEL, list[tuple[float, str, str]]()
    # The limit of a user does not hold for root.
    if (most := _limit(resource.RLIMIT_NPROC)) is not None and os.getuid():
        used = _threads_of(os.getuid())
        said = f"{most} for this user, {used} in use"
        bounds.append((most - used, said, "end some, or raise ulimit -u"))
    if (limit := process_limit()) is not None:
        said = f"{limit.number:.0f} in {limit.group}, {limit.used:.0f} in use"
        bounds.append((limit.left, said, "raise pids.max of the group (containers: --pids-limit)"))
    left, said, mend = min(bounds, default=(float("inf"), "any number", ""))
    if left >= needed:
        return Finding(what="processes", state="ok", detail=said)
    short = f"{said}, and the start needs {needed} more, with threads"
    return Finding(what="processes", state="problem", detail=f"{short}; {mend}")


def _threads_of(user: int) -> int:
    found = psutil.process_iter(["uids", "num_threads"])
    infos = (process.info for process in found)
    own = (info for info in infos if info["uids"] is not None and info["uids"].real == user)
    return sum(info["num_threads"] or 0 for info in own)


def _size(what: str, limit: int, needed: int, need: str, flag: str) -> Finding:
    """A limit of sizes. need: clause on who needs so many bytes, which follow it."""
    most = _limit(limit)
    if most is not None and most < needed:
        detail = f"at most {readable_size(most)}{need} {readable_size(needed)}; raise it with "
        return Finding(what=what, state="problem", detail=f"{detail}ulimit {flag} unlimited")
    detail = "any size" if most is None else f"at most {readable_size(most)}"
    return Finding(what=what, state="ok", detail=detail)
