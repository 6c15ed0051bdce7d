"""Set-up of actor processes, and the wait for one that Ray restarts."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import faulthandler
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import ray

from rlforge.errors import RunError
from rlforge.record.files import open_log

log = logging.getLogger(__name__)

RESTART_PATIENCE_S = 300.0
"""Seconds within which a restarted actor must be back: it loads and compiles the model again."""


def end(cause: Exception) -> NoReturn:
    """End this process at once, with ``cause`` in its log: one of its threads may be stuck."""
    root = logging.getLogger("rlforge")
    root.critical("this process ends: %s", cause)
    for handler in root.handlers:
        handler.flush()
    os._exit(1)


_hosting = contextvars.ContextVar("hosting", default=False)


@contextlib.contextmanager
def hosting() -> Iterator[None]:
    """In the block actors are made for a process that is set up already."""
    token = _hosting.set(True)
    try:
        yield
    finally:
        _hosting.reset(token)


def begin(name: str, run_dir: str | Path) -> None:
    """Set this process up as that of the actor ``name``: its log file, its end with Ray's node."""
    if not _hosting.get():
        open_log(name, run_dir)
        end_with_node()


def end_with_node() -> None:
    """End this process of an actor once Ray's process of its node has ended.

    Ray itself looks at it by the clock of the machine: where that was set back, actors of a node
    that was killed would stay until it is as late again.
    """
    if not ray.is_initialized():  # the actor is used as an object of this process
        return
    node = os.getppid()

    def watch() -> None:
        while os.getppid() == node:
            time.sleep(1)
        end(RunError("Ray's process of this node has ended"))

    threading.Thread(target=watch, name="node-watch", daemon=True).start()


HELD_S = 60.0
"""Seconds without an answer after which code of a user holds the interpreter of a process."""


class Pulse:
    """Writes where a process stands into its crash log, unless it beats again in time.

    A timer of C does it, which needs no interpreter.
    """

    def __init__(self, name: str, run_dir: str | Path) -> None:
        logs = Path(run_dir) / "logs"
        self._log = (logs / f"{name}.crash.log").open("a", encoding="utf-8")

    def beat(self, within_s: float) -> None:
        """The interpreter is free; the next beat comes within this time, or else it is held."""
        faulthandler.dump_traceback_later(within_s, file=self._log)


def held_at(name: str, run_dir: Path) -> str:
    """Where code of a game holds the actor ``name``, from its crash log; empty: unknown."""
    log = run_dir / "logs" / f"{name}.crash.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    playing = [thread for thread in text.split("Thread 0x") if "in play_game" in thread]
    found = re.search(r'File "(.+)", line (\d+) in (.+)', playing[-1]) if playing else None
    return "" if found is None else f" ({found[1]}, line {found[2]}, in {found[3]})"


def limit_threads(threads: int | None) -> None:
    """OpenMP threads of this process; None leaves them to torch."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


def turn_file(run_dir: str | Path) -> Path:
    """A file that exists during the learner's turn, where it alternates with the engines on a card.

    An engine that Ray restarts in that turn must not load its model yet.
    """
    return Path(run_dir) / "learning"


async def call_restarted(actors: Mapping[str, Any], name: str, method: str) -> Any:
    """Call a method of the actor ``name``; again when its process dies and Ray restarts it."""
    while True:
        try:
            return await getattr(actors[name], method).remote()
        except ray.exceptions.ActorUnavailableError as error:
            log.warning("%s died and is restarted: %s", name, error)
            await restarted(actors[name], name)


async def restarted(actor: Any, name: str, *, elastic: bool = False) -> None:
    """Wait until an absent ``actor`` is there.

    Raises Ray's exception when Ray has given it up, and RunError after ``RESTART_PATIENCE_S``;
    elastic: it waits for a node, without a limit.
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
