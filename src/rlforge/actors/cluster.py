"""Starts Ray and the actors of a run graph: the only module that configures Ray and places actors.

The classes of the neighbouring modules are plain Python and become actors here.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlforge.actors.folder import RunFolder, come_home, on_node, start_server, this_node
from rlforge.actors.learner import LearnerGroup
from rlforge.actors.process import turn_file
from rlforge.actors.specs import ActorSpec, RunGraph
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.errors import RlforgeError, RunError
from rlforge.tracking.scalars import Sums, means, taken

log = logging.getLogger(__name__)

PLACEMENT_PATIENCE_S = 120.0
"""Seconds within which a cluster must have room for all actors."""

END_PATIENCE_S = 10.0
"""Seconds after which processes of a Ray of our own that have not ended are killed."""

SCALARS_PATIENCE_S = 2.0
"""Seconds to wait for the scalars of an actor, which may be dead or busy."""


@contextlib.contextmanager
def ray_started(hardware: HardwareConfig, num_cpus: float) -> Iterator[None]:
    """A Ray of our own for the block, or a connection to ``hardware.ray_address``.

    Only ``hardware.ray_address`` decides: a cluster of this machine and RAY_ADDRESS are ignored.
    No process of our own Ray outlives the block, and the signal handlers are as before. In the
    block SIGTERM acts like Ctrl-C; signals that arrive while Ray ends are ignored. Processes of our
    own Ray get no signals that are sent to the process group of this one. Raises RunError where
    this process uses Ray already.
    """
    if ray.is_initialized():
        raise RunError("this process uses Ray already; call ray.shutdown() before the run")
    before = _children()
    with _own_handlers():
        try:
            _enter_ray(hardware, num_cpus)
            # Ray's handler would end this process in the middle of anything, with a stack trace.
            _handle(signal.SIGTERM, signal.default_int_handler)
        except BaseException:  # also Ctrl-C: Ray itself forgets a node that is still starting
            for process in _children() - before:
                _kill(process)
            ray.shutdown()  # of what Ray has set up in this process
            raise
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                _handle(number, signal.SIG_IGN)
            of_ray = _children() - before
            ray.shutdown()
            end_processes(of_ray)


#: Whether processes that are forked in this context lead process groups of their own.
_forks_lead = ContextVar("_forks_lead", default=False)


def _lead_group() -> None:
    if _forks_lead.get():
        os.setpgrp()


# Ray passes a ``preexec_fn`` to what it starts; with one, ``subprocess`` runs the hooks of forks.
os.register_at_fork(after_in_child=_lead_group)


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
def _own_handlers() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # That of a running loop would cancel the task that starts Ray and not interrupt the start.
    if callable(before[signal.SIGINT]):
        _handle(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                _handle(number, handler)


def _handle(number: signal.Signals, handler: Any) -> None:
    """Set a signal's handler; nothing in a thread that gets no signals."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)


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
        # Cores only decide placement; tracker, pool and buffer reserve none.
        own: dict[str, Any] = {"address": "local", "include_dashboard": False}
        cpus = max(hardware.num_cpus or 1, round(num_cpus))
        with _own_groups():
            try:
                ray.init(num_cpus=cpus, num_gpus=hardware.num_gpus, **own, **quiet)
            except Exception as error:  # Ray has no class of its own for it
                if "timed out during startup" not in str(error):
                    raise
                raise RunError(
                    "Ray did not start in time: this machine is busy, or short of memory; stop "
                    "other work and start again"
                ) from error


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
        # An orphan stays a zombie where no process waits for it.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class RunActors:
    """All live actors of a run, by name.

    Example:
        >>> actors = RunActors({"tracker": "t", "engine-0": "e0", "engine-1": "e1"})
        >>> actors.tracker, actors.engines, actors.collectors
        ('t', ('e0', 'e1'), ())
    """

    def __init__(self, named: Mapping[str, Any]) -> None:
        """named: handles of Ray actors, those of one kind in the order of their numbers."""
        self.named = dict(named)

    def of(self, kind: str) -> dict[str, Any]:
        """All replicas of one kind, by name."""
        return {name: actor for name, actor in self.named.items() if name.partition("-")[0] == kind}

    @property
    def tracker(self) -> Any:
        return self.named["tracker"]

    @property
    def pool(self) -> Any:
        return self.named["pool"]

    @property
    def buffer(self) -> Any:
        return self.named["buffer"]

    @property
    def engines(self) -> tuple[Any, ...]:
        return tuple(self.of("engine").values())

    @property
    def collectors(self) -> tuple[Any, ...]:
        return tuple(self.of("collector").values())

    @property
    def learner(self) -> LearnerGroup:
        return LearnerGroup(tuple(self.of("learner").values()))

    async def custom_scalars(self) -> dict[str, float]:
        """Means of what users' code reported with ``log_scalar`` since the last call.

        In this process and in all actors but the tracker, for which no loop waits. An actor that
        does not answer within ``SCALARS_PATIENCE_S`` is left out.
        """
        calls = [
            asyncio.ensure_future(actor.__ray_call__.remote(_taken))
            for name, actor in self.named.items()
            if name != "tracker"
        ]
        answered, late = await asyncio.wait(calls, timeout=SCALARS_PATIENCE_S)
        for call in late:
            call.cancel()
        reports = [call.result() for call in answered if call.exception() is None]
        return means([taken(), *reports])

    async def come_home(self) -> None:
        """Bring what other nodes still have of the run to the run directory."""
        if "files" in self.named:
            await come_home(self.named["files"])

    def name_of(self, actor_id: str | None) -> str | None:
        """The name of the actor with this id, which Ray's exceptions give; None if unknown."""
        ids = {actor._actor_id.hex(): name for name, actor in self.named.items()}
        return ids.get(actor_id or "")


def _taken(actor: object) -> Sums:
    return taken()


async def start_actors(
    graph: RunGraph,
    config: PolicyConfig,
    hardware: HardwareConfig,
    run_dir: Path,
    part: int = 0,
) -> RunActors:
    """Start every actor of ``graph`` and wait until all have loaded what they need.

    A constructor gets those of ``config``, ``hardware``, ``name``, ``rank`` (number of the
    replica), ``folder``, ``run_dir`` and ``part`` that it has parameters for; ``run_dir`` is for
    actors on the driver's node. part: how often the run was resumed, which keeps its game ids
    apart. Actors load side by side, except those that share a card: an engine may measure its
    memory as the fall of the card's free memory.
    Raises RunError when there is no room for all; errors of constructors arrive wrapped by Ray
    (see ``reason``).
    """
    specs = [spec for spec in graph.nodes if spec.actor is not None]
    places = await _places(specs)
    turn_file(run_dir).unlink(missing_ok=True)  # left by a run killed in the learner's turn
    named: dict[str, Any] = {}
    folder = RunFolder(run_dir=str(run_dir))
    if hardware.ray_address is not None:
        named["files"], folder = start_server(run_dir)
    given = {"config": config, "hardware": hardware, "part": part}
    given |= {"folder": folder, "run_dir": str(run_dir)}
    loading: list[asyncio.Future[Any]] = []
    alone: asyncio.Future[Any] | None = None
    try:
        for spec in specs:
            for rank, name in enumerate(spec.actor_names):
                if spec.loads_alone and alone is not None:
                    await alone
                place = on_node(this_node()) if spec.on_driver_node else places.get(name)
                actor = _create(spec, place, given | {"name": name, "rank": rank})
                named[name] = actor
                loading.append(asyncio.ensure_future(actor.__ray_ready__.remote()))
                if spec.name == "learner" and rank + 1 == spec.replicas:
                    # A rank loads its model only after it has connected to the others.
                    loading.append(asyncio.ensure_future(RunActors(named).learner.start()))
                alone = loading[-1] if spec.loads_alone else None
        await asyncio.gather(*loading)
    except BaseException:  # also Ctrl-C
        await RunActors(named).come_home()
        raise
    finally:
        for waiting in loading:
            waiting.cancel()
    return RunActors(named)


def _create(spec: ActorSpec, place: Any, given: Mapping[str, Any]) -> Any:
    assert spec.actor is not None
    module, _, class_name = spec.actor.partition(":")
    cls = getattr(importlib.import_module(module), class_name)
    made: Any = ray.remote(cls)
    parameters = inspect.signature(cls).parameters
    return made.options(
        name=given["name"],
        num_cpus=spec.num_cpus,
        num_gpus=spec.num_gpus,
        max_restarts=spec.restarts,
        max_concurrency=spec.concurrency,
        scheduling_strategy=place,
    ).remote(**{key: argument for key, argument in given.items() if key in parameters})


async def _places(specs: Sequence[ActorSpec]) -> dict[str, PlacementGroupSchedulingStrategy]:
    """Placement of each actor that has a placement group, by its name (see ``ActorSpec``).

    Raises RunError when a group does not fit: Ray itself would wait for ever.
    """
    places = {}
    for name in dict.fromkeys(s.placement_group for s in specs if s.placement_group is not None):
        inside = [spec for spec in specs if spec.placement_group == name]
        bundles = [
            {"CPU": spec.num_cpus, **({"GPU": spec.num_gpus} if spec.num_gpus else {})}
            for spec in inside
            for _ in range(spec.replicas)
        ]
        group = ray.util.placement_group(bundles, strategy="PACK")
        if not await asyncio.to_thread(group.wait, PLACEMENT_PATIENCE_S):
            wanted = ", and ".join(
                f"{spec.replicas} {spec.name}s with a CPU core and {spec.num_gpus:g} GPUs each"
                for spec in inside
            )
            raise RunError(
                f"no room for {wanted} within {PLACEMENT_PATIENCE_S:g} s; lower "
                f"{' or '.join(spec.replicas_key for spec in inside)}, or free what others hold"
            )
        names = [name for spec in inside for name in spec.actor_names]
        for index, name in enumerate(names):
            places[name] = PlacementGroupSchedulingStrategy(group, index)
    return places


def explained(
    error: BaseException, actors: RunActors | None, run_dir: Path, command: str
) -> BaseException:
    """``error`` with the actor that died, its log in ``run_dir`` and how to resume.

    actors: None while they are starting. command: the ``rlforge`` command of the run. Of a group
    the first error counts; errors that do not come from Ray stay as they are.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ray.exceptions.RayError):
        return error
    if not isinstance(error, ray.exceptions.RayActorError):
        return RunError(reason(error))
    name = actors.name_of(error.actor_id) if actors is not None else None
    if name is None:
        return RunError(f"an actor could not be started: {reason(error)}")
    return RunError(
        f"the {name} died: {reason(error)} See logs/{name}.log in {run_dir}; "
        f"go on with: rlforge {command} --resume {run_dir}"
    )


def reason(error: BaseException) -> str:
    """The message for the user inside an error that Ray wrapped; of a bug also file and line."""
    cause, trace = error, ""
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause, trace = cause.cause, str(cause)
    if isinstance(cause, RlforgeError):
        return str(cause)
    # An error of a constructor arrives as text.
    if messages := re.findall(r"rlforge\.errors\.\w+: (.+)", str(cause)):
        return str(messages[-1])
    places = re.findall(r'File "(.+)", line (\d+)', trace)
    place = f" ({places[-1][0]}, line {places[-1][1]})" if places else ""
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}{place}"
