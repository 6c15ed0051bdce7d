"""Set-up of actor processes, and the wait for one that Ray restarts."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import re
import sysconfig
import threading
import time
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NoReturn

import ray

from rlforge.errors import RunError
from rlforge.record.files import open_log
from rlforge.system.output import Output, keep

log = logging.getLogger(__name__)

#: Ray's exceptions that say that a process ended. One that Ray starts again gives
#: ``ActorUnavailableError`` alone, the others name why it was given up.
DEATHS = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.RuntimeEnvSetupError,
)

SAVES_MEMORY = "`rlforge doctor` lists what saves memory"

RESTART_PATIENCE_S = 300.0
"""Seconds within which a restarted actor must be back, with its model loaded and compiled."""


ENDS = "this process ends"
"""Begins the last line of the log of a process that ended itself."""


def end(cause: Exception) -> NoReturn:
    """End this process at once, with ``cause`` in its log."""
    root = logging.getLogger("rlforge")
    root.critical("%s: %s", ENDS, cause)
    for handler in root.handlers:
        handler.flush()
    # An exception would not be enough: Python would wait for a thread that is stuck.
    os._exit(1)


def begin(name: str, run_dir: str | Path) -> None:
    """Set this process up as that of the actor ``name``: its log, its output, its end."""
    global _crashes
    if _crashes is not None:
        # The host of several actors has set this process up before.
        return
    open_log(name, run_dir)
    # Without Ray the actor is an object of the caller's process, which must not end with a node.
    if ray.is_initialized():
        logs = Path(run_dir) / "logs"
        _crashes = (logs / f"{name}.crash.log").open("a", encoding="utf-8")
        # Ray would keep it in its own folder, without a limit, until that is deleted.
        watch(keep(logs / f"{name}.out"))


def watch(output: Output) -> None:
    """Limit the output of this process, and end it once Ray's process of its node has ended."""
    node = os.getppid()

    # Ray's own watch goes by the clock of the machine: where that was set back, actors of a node
    # that was killed would stay until it is as late again.
    def look() -> None:
        while os.getppid() == node:
            output.look()
            time.sleep(1)
        end(RunError("Ray's process of this node has ended"))

    threading.Thread(target=look, name="node-watch", daemon=True).start()


HELD_S = 60.0
"""Seconds without an answer after which code of a user holds an actor."""

#: By actor of this process, when it has to have answered again.
_due: dict[str, float] = {}
#: Where this process writes what it was doing when it crashed, or did not answer.
_crashes: IO[str] | None = None


def answer(actor: object, name: str, within_s: float) -> None:
    """Answer as the actor ``name``; where this process stands is written unless it does in time."""
    _due[name] = time.monotonic() + within_s
    if _crashes is not None:
        # This timer is C's and fires even while the user's code holds the interpreter.
        left = min(_due.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(left, 0.001), file=_crashes)


def held_at(process: str, run_dir: Path) -> str:
    """Where code of a user holds a process, from its crash log; empty: unknown."""
    log = run_dir / "logs" / f"{process}.crash.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    own, standard = str(Path(__file__).parents[2]), sysconfig.get_path("stdlib")

    def rank(frame: tuple[str, str, str]) -> int:
        return 1 if "site-packages" in frame[0] else 2 * frame[0].startswith(standard)

    # A user can mend the innermost line that rlforge has called, best one in a file of their own.
    found = list[tuple[str, str, str]]()
    for thread in text.rpartition("Timeout (")[2].split("Thread 0x"):
        frames = re.findall(r'File "(.+)", line (\d+) in (.+)', thread)
        called = [*takewhile(lambda frame: not frame[0].startswith(own), frames)]
        if len(called) < len(frames):
            found += [frame for frame in called if rank(frame) < 2]
    if not found:
        return ""
    file, line, function = min(found, key=rank)
    return f" ({file}, line {line}, in {function})"


def limit_threads(threads: int | None) -> None:
    """Set the OpenMP threads of this process; None leaves them to torch."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def turn_file(run_dir: str | Path) -> Path:
    """File that exists during the learner's turn, with ``hardware.alternate``."""
    # An engine that Ray restarts in that turn must not load its model yet.
    return Path(run_dir) / "learning"


async def executed(method: Any, *arguments: object) -> Any:
    """Call a method of an actor that is not restarted; again where the connection breaks.

    A call that was executed may be made again: the receiver needs a ``Received``. Raises Ray's
    exception when the actor has died.
    """
    while True:
        try:
            return await method.remote(*arguments)
        except ray.exceptions.ActorUnavailableError as error:
            log.warning("a call is made again: %s", error)
            await asyncio.sleep(1.0)


async def restarted(actor: Any, name: str, *, elastic: bool = False) -> None:
    """Wait until an absent ``actor`` is there; ``elastic`` ones wait for a node without a limit.

    Raises Ray's exception when Ray has given it up, and RunError after ``RESTART_PATIENCE_S``.
    """
    patience_s = None if elastic else RESTART_PATIENCE_S
    try:
        async with asyncio.timeout(patience_s):
            while True:
                try:
                    await actor.__ray_ready__.remote()
                except ray.exceptions.ActorUnavailableError:
                    await asyncio.sleep(1.0)
                else:
                    return
    except TimeoutError:
        raise RunError(
            f"{name} died, and was not back {patience_s:g} s after: see logs/{name}.log"
        ) from None
