"""Explains to the user how actors ended: an error of their own, a crash, a kill."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import ray

from rlforge.errors import RlforgeError, RunError, command_line
from rlforge.record.files import RunPaths
from rlforge.record.growth import of_full_disk
from rlforge.run.actors.process import DEATHS, ENDS, SAVES_MEMORY
from rlforge.system.files import says_full_disk
from rlforge.system.folders import nearest, ray_base
from rlforge.system.hardware import ram

if TYPE_CHECKING:
    from rlforge.run.actors.cluster import RunActors

# Ray has no fields for these: its texts name an actor, its process, and the memory in use.
_NAME = re.compile(r"^\tname: (.+)$|\btask name=([\w-]+):", re.MULTILINE)
_PROCESS = re.compile(r"^\tpid: (\d+)$|\bpid=(\d+)", re.MULTILINE)
_IN_USE = re.compile(r"was ([\d.]+)GB used / ([\d.]+)GB limit")
_DETAIL = re.compile(r"Worker exit detail: (.+)")

#: The variable that sets the share of a node's memory from which Ray kills processes, and its
#: default.
_LIMIT, _RAY_LIMIT = "RAY_memory_usage_threshold", 0.95

Memory = Mapping[int, int]
"""The bytes that each process had when it was last looked at, by its id."""


def explained(
    error: BaseException, actors: RunActors | None, run_dir: Path, command: str, memory: Memory
) -> BaseException:
    """Error to raise in place of ``error``: with the actor that died, its log, and how to resume.

    Of a group the first error counts; errors that do not come from Ray stay as they are, unless a
    disk is full: then the error says which, what the run needs, and how to go on.

    Args:
        actors: None while they are starting.
        command: Command of ``rlforge`` that started the run.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    again = command_line(command, "--resume", run_dir)
    of_ray = isinstance(error, ray.exceptions.RayError)
    if says_full_disk(error):
        why = reason(error, run_dir, memory) if of_ray else str(error)
        said = of_full_disk(RunPaths(root=run_dir), [nearest(ray_base()[0] / "ray")])
        return RunError(f"{why}; {said}, then go on with: {again}")
    if not of_ray:
        return error
    known = getattr(error, "actor_id", None) if actors is not None else None
    name = (actors.name_of(known) if actors is not None else None) or _name(error, run_dir)
    why = reason(error, run_dir, memory, name)
    if not isinstance(error, DEATHS) or _own_message(error) is not None:
        return RunError(why)
    log = f"see logs/{name}.log in {run_dir}" if name else f"see logs in {run_dir}"
    if actors is None:
        return RunError(f"{why}; {log}")
    return RunError(f"{why}; {log}; go on with: {again}")


def reason(
    error: BaseException,
    run_dir: Path | None = None,
    memory: Memory = MappingProxyType({}),
    name: str | None = None,
) -> str:
    """Message for the user in an error of Ray, in one line; of a bug also file and line.

    Without ``run_dir`` no log of the run is read, and Ray's text alone says what ended. name: the
    actor's, where the caller knows it.
    """
    cause, trace = error, ""
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause, trace = cause.cause, str(cause)
    if (message := _own_message(cause)) is not None:
        return message
    if isinstance(cause, DEATHS):
        name = name or _name(cause, run_dir)
        if getattr(cause, "actor_init_failed", False):
            *_, last = str(cause).strip().splitlines()
            return f"{name or 'an actor'} could not be started: {last.strip()}{_place(str(cause))}"
        return f"{name or 'an actor'} {_end(cause, name, run_dir, memory)}"
    first = next(iter(str(cause).splitlines()), "")
    return f"{type(cause).__name__}: {first}{_place(trace)}"


def _end(error: Exception, name: str | None, run_dir: Path | None, memory: Memory) -> str:
    """How a process ended, as a predicate of its name."""
    text = str(error)
    process = _first(_PROCESS, text)
    bytes_had = memory.get(int(process)) if process else None
    had = f": it had {_gib(bytes_had)}" if bytes_had else ""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        rest = ""
        if in_use := _IN_USE.search(text):
            used, whole = map(float, in_use.groups())
            # Where nodes have another limit than this process, it is not known.
            allowed = float(os.environ.get(_LIMIT) or _RAY_LIMIT)
            share = f" (Ray's limit: {allowed:.0%})" if used >= allowed * whole else ""
            rest = f"{', and' if had else ':'} {used:.1f} of {whole:.1f} GiB{share} were in use"
        # The one that Ray chooses may be a small one.
        most = max(memory, key=memory.__getitem__, default=0)
        largest = _of_process(most, run_dir) if most != int(process or 0) else None
        by = f", {_gib(memory[most])} of them by {largest}" if largest else ""
        return f"was killed by Ray for want of memory{had}{rest}{by}; {SAVES_MEMORY}"
    detail = _DETAIL.search(text)
    if detail is None:
        lines = [line for line in text.splitlines() if line.strip() and line[0] != "\t"]
        return f"died: {lines[-1] if lines else type(error).__name__}"
    if "End of file" not in detail[1]:
        return f"died: {detail[1].strip().rstrip('.')}"
    # Ray knows only that the connection to the process ended: the process's own files say more.
    if run_dir is not None:
        logs = run_dir / "logs"
        if crash := _last(logs / f"{name}.crash.log", r"Fatal Python error: (.+)"):
            return f"crashed: {crash} (logs/{name}.crash.log)"
        if own := _last(logs / f"{name}.log", rf"{ENDS}: (.+)\Z"):
            return f"died: {own}"
    limit = f" of {_gib(ram()).removesuffix(' GiB')}" if had else ""
    return f"was killed (signal 9), perhaps for want of memory{had}{limit}; {SAVES_MEMORY}"


def _name(error: BaseException, run_dir: Path | None) -> str | None:
    """Name of the process that ended."""
    if name := _first(_NAME, str(error)):
        return name
    process = _first(_PROCESS, str(error))
    return _of_process(int(process), run_dir) if process else None


def _of_process(process: int, run_dir: Path | None) -> str | None:
    """Name of the part of the run whose process it was."""
    for log in (run_dir / "logs").glob("*.log") if run_dir is not None else ():
        if _last(log, rf"started as process ({process})$"):
            return log.stem
    return None


def _own_message(cause: BaseException) -> str | None:
    if isinstance(cause, RlforgeError):
        return str(cause)
    # The error of a constructor arrives only as text inside of Ray's error.
    messages = re.findall(r"rlforge\.[\w.]*Error: (.+)", str(cause))
    return messages[-1] if messages else None


def _place(trace: str) -> str:
    places = re.findall(r'File "(.+)", line (\d+)', trace)
    return f" ({places[-1][0]}, line {places[-1][1]})" if places else ""


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return next(filter(None, found.groups()), None) if found else None


def _last(file: Path, pattern: str) -> str | None:
    """The group of the last match in a file, which need not exist."""
    if not file.is_file():
        return None
    found = re.findall(pattern, file.read_text(encoding="utf-8", errors="replace").strip(), re.M)
    return found[-1] if found else None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
