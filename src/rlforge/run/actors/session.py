"""Ray for one block: a cluster of our own, of which no process is left, or one that exists."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import psutil
import ray
from ray._private import utils, worker

from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.run.actors.process import SAVES_MEMORY
from rlforge.system.folders import ray_base
from rlforge.system.signals import WARNINGS, heed, held, owned, regained

log = logging.getLogger(__name__)

END_PATIENCE_S = 10.0
"""Seconds after which processes of a Ray of our own that have not ended are killed."""
STARTS = 3
"""How often Ray is started where it is late; each start waits half a minute."""
KEPT_FOLDERS = 5
"""Session folders of Ray, with its logs, that stay of runs that have ended."""
WATCH_EVERY_S = 0.5
"""Seconds between looks at the processes of a Ray of our own."""

_VITAL = ("raylet", "gcs_server")
_LIST_EVERY = 4
"""Looks at the memory of a node's processes for each look at which processes it has."""
T = TypeVar("T")


@contextlib.contextmanager
def ray_started(hardware: HardwareConfig, num_cpus: float) -> Iterator[RayProcesses]:
    """A Ray of our own for the block, or a connection to ``hardware.ray_address``.

    Only ``hardware.ray_address`` decides: a cluster of this machine and RAY_ADDRESS are ignored.
    No process of our own Ray outlives the block. Signals that arrive while Ray ends are heeded
    afterwards. Processes of our own Ray get none that is sent to the process group of this one.
    Raises RunError where this process uses Ray already.
    """
    if ray.is_initialized():
        raise RunError("this process uses Ray already; call ray.shutdown() before the run")
    before = _children()
    with owned(), _without_handlers(), _heard_in_log():
        try:
            _enter_ray(hardware, num_cpus)
            heed()
        except BaseException:
            # After Ctrl-C Ray itself would forget a node that is still starting.
            with held(), regained():
                for process in _children() - before:
                    _kill(process)
                ray.shutdown()
            raise
        try:
            yield RayProcesses(_children() - before if hardware.ray_address is None else ())
        finally:
            with held(), regained():
                of_ray = _children() - before
                ray.shutdown()
                end_processes(of_ray)


class RayProcesses:
    """The processes of a Ray of our own that a run needs: its node and its store of actors.

    Where the store (``gcs_server``) ends, Ray ends the driver a minute later, without an exception.
    """

    def __init__(self, started: Collection[psutil.Process]) -> None:
        self._vital: dict[psutil.Process, str] = {}
        for process in started:
            # A helper that Ray started may have ended already.
            with contextlib.suppress(psutil.NoSuchProcess):
                if (name := process.name()) in _VITAL:
                    self._vital[process] = name
        self._workers, self._looks = list[psutil.Process](), 0
        #: Bytes that each process of the node had within the last second of its life, by its id.
        self.memory = dict[int, int]()

    def _look_at_memory(self) -> None:
        with contextlib.suppress(psutil.Error):
            if self._looks % _LIST_EVERY == 0:
                nodes = [node for node, name in self._vital.items() if name == "raylet"]
                self._workers = [each for node in nodes for each in node.children()]
        self._looks += 1
        for process in self._workers:
            # A process that is ending has none any more.
            with contextlib.suppress(psutil.Error):
                if had := process.memory_info().rss:
                    self.memory[process.pid] = had

    def ended(self) -> RunError | None:
        """The error to raise where one of the processes has ended; None: all run."""
        for process, name in self._vital.items():
            if not _runs(process):
                return RunError(
                    f"Ray's process {name} has ended: it was killed, perhaps for want of memory; "
                    f"{SAVES_MEMORY}"
                )
        return None

    async def during(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``; raises what ``ended`` returns where a process ends before."""
        working, watching = asyncio.create_task(work), asyncio.create_task(self.gone())
        try:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done() and (ended := self.ended()) is not None:
                raise ended
            return await working
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def gone(self) -> None:
        """Return once one of the processes has ended."""
        while True:
            if self.ended() is not None:
                return
            self._look_at_memory()
            await asyncio.sleep(WATCH_EVERY_S)


#: Whether processes that are forked in this context lead process groups of their own.
_forks_lead = ContextVar("_forks_lead", default=False)


def _lead() -> None:
    if _forks_lead.get():
        os.setpgrp()
        # Slurm sends the warning to all processes of a step.
        for number in (signal.SIGHUP, *WARNINGS.values()):
            signal.signal(number, signal.SIG_IGN)


# The hook reaches Ray's processes: Ray starts them with a ``preexec_fn``, and only then
# ``subprocess`` runs the hooks of forks.
os.register_at_fork(after_in_child=_lead)


@contextlib.contextmanager
def _own_groups() -> Iterator[None]:
    """Ray's processes, started in the block, and their children leave this process group.

    ``timeout``, shells and batch systems signal a whole group: then only this process gets the
    signal, and ends the others in order.
    """
    before = _forks_lead.set(True)
    try:
        yield
    finally:
        _forks_lead.reset(before)


@contextlib.contextmanager
def _without_handlers() -> Iterator[None]:
    """In the block Ray sets no handler of SIGTERM.

    Its own ends this process in the middle of anything, by an exit code that says nothing; another
    one, of its native code, prints a stack trace.
    """
    set_handler, connect = utils.set_sigterm_handler, worker.connect
    utils.set_sigterm_handler = lambda handler: None
    worker.connect = regained()(connect)
    try:
        yield
    finally:
        utils.set_sigterm_handler, worker.connect = set_handler, connect


@contextlib.contextmanager
def _heard_in_log() -> Iterator[None]:
    """In the block Ray's paragraphs on processes that died are lines of the log.

    Ray prints them on standard output, which has the folder of the run alone; no setting of it
    leaves them out.
    """
    print_them = worker.print_to_stdstream
    worker.print_to_stdstream = lambda data, ignore_prefix: log.warning("Ray: %s", data["lines"])
    try:
        yield
    finally:
        worker.print_to_stdstream = print_them


def _enter_ray(hardware: HardwareConfig, num_cpus: float) -> None:
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if hardware.ray_address is not None:
        try:
            ray.init(address=hardware.ray_address, **quiet)
        except ConnectionError:
            raise RunError(
                f"hardware.ray_address={hardware.ray_address}: no Ray cluster to join; start one "
                "with `ray start --head`, set RAY_AUTH_TOKEN to its token if it has one, or take "
                "hardware=auto"
            ) from None
    else:
        # Cores only decide placement: with fewer than the actors reserve Ray would not place all.
        own: dict[str, Any] = {"address": "local", "include_dashboard": False}
        cpus = max(hardware.num_cpus or 1, round(num_cpus))
        own |= {"num_cpus": cpus, "num_gpus": hardware.num_gpus}
        with _own_groups():
            context = _patiently(lambda: ray.init(**own, **quiet))
        # Ray never removes its session folders, which would fill the disk. A mark says which are
        # ours, and whose process has ended.
        ours = Path(context.address_info["session_dir"])
        (ours / f"rlforge.{os.getpid()}").touch()
        marks = ours.parent.glob("session_[0-9]*/rlforge.*")
        ended = sorted(mark.parent for mark in marks if not psutil.pid_exists(int(mark.suffix[1:])))
        for folder in ended[:-KEPT_FOLDERS]:
            # The folder of another user cannot be deleted, and stays.
            shutil.rmtree(folder, ignore_errors=True)


def _patiently(start: Callable[[], Any]) -> Any:
    """The result of ``start``, which is called again where Ray is late."""
    tries = 1
    while True:
        before = _children()
        try:
            return start()
        except Exception as error:
            # Ray has no class of its own for a start that timed out, so the text decides.
            if "timed out during startup" not in str(error):
                raise
            if tries == STARTS:
                raise RunError(
                    f"Ray did not start in time, {STARTS} times{_of_load()}; `rlforge doctor` "
                    f"lists what it needs, and its logs are below {ray_base()[0] / 'ray'}"
                ) from error
        tries += 1
        print(f"Ray is late{_of_load()}: it is started again", file=sys.stderr, flush=True)
        # Ray forgets a node that was late, whose processes would take the time of the next.
        with held(), regained():
            late = _children() - before
            for process in late:
                _kill(process)
            end_processes(late)
            ray.shutdown()


def _of_load() -> str:
    """`` on this busy machine``, with its load, where it is busy; else empty."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return f" on this busy machine (load {load:.0f}, cores {cores})" if load > cores else ""


def end_processes(processes: Collection[psutil.Process]) -> None:
    """Wait until all have ended; kill those that run longer than ``END_PATIENCE_S``.

    Ray gives its node one second to end, and does not wait for what the node started.
    """
    for process in _left(processes):
        log.warning("%s does not end and is killed", process)
        _kill(process)
    if left := _left(processes):
        log.error("these processes cannot be killed: %s", left)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _left(processes: Collection[psutil.Process]) -> list[psutil.Process]:
    """The ``processes`` that still run after ``END_PATIENCE_S``; returns early once all ended."""
    deadline = time.monotonic() + END_PATIENCE_S
    while (left := [each for each in processes if _runs(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        # An orphan that has ended stays a zombie where no process waits for it.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
