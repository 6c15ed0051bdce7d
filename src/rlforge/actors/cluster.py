"""Ray, and everybody on stage: the one place where Ray is configured and actors are placed.

The classes of the neighbouring modules know nothing of their being actors; here they become some.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlforge.actors.collector import CollectorActor
from rlforge.actors.engine import EngineActor
from rlforge.actors.learner import LearnerActor, LearnerGroup, rank_name
from rlforge.actors.process import turn_file
from rlforge.actors.state import BufferActor, PoolActor, TrackerActor
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.errors import RlforgeError, RunError
from rlforge.system.hardware import versions
from rlforge.types import value

log = logging.getLogger(__name__)

PLACEMENT_PATIENCE_S = 120.0
"""Seconds within which a cluster must have room for everybody."""

END_PATIENCE_S = 10.0
"""Seconds that processes of a Ray of our own have to end by themselves before they are killed."""


@contextlib.contextmanager
def ray_started(hardware: HardwareConfig, num_cpus: float) -> Iterator[None]:
    """A Ray of our own for the block, or a connection to ``hardware.ray_address``.

    Our own it is whatever cluster this machine belongs to, or RAY_ADDRESS names.
    None of the processes of our own outlives the block, in which SIGTERM is what Ctrl-C is.
    """
    before = _children()
    try:
        _enter_ray(hardware, num_cpus)
        # Ray's handler would end this process in the middle of anything, with a stack trace.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.default_int_handler)
    except BaseException:  # also Ctrl-C: Ray does not know of a node that is half there
        for process in _children() - before:
            _kill(process)
        raise
    try:
        yield
    finally:
        of_ray = _children() - before
        ray.shutdown()
        _ended(of_ray)


def _enter_ray(hardware: HardwareConfig, num_cpus: float) -> None:
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if hardware.ray_address is not None:
        try:
            ray.init(address=hardware.ray_address, **quiet)
        except ConnectionError:
            raise RunError(
                f"hardware.ray_address={hardware.ray_address}: no Ray cluster to join; start one "
                "with `ray start --head`, or take hardware=auto"
            ) from None
    else:
        # Our own Ray counts cores for placement only: the small actors share what there is.
        own: dict[str, Any] = {"address": "local", "include_dashboard": False}
        cpus = max(hardware.num_cpus or 1, round(num_cpus))
        ray.init(num_cpus=cpus, num_gpus=hardware.num_gpus, **own, **quiet)


def _ended(processes: Collection[psutil.Process]) -> None:
    """Wait until all are gone; kill those that are not within ``END_PATIENCE_S``.

    Ray gives its node one second, and leaves what the node started to end by itself.
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
    """Which of ``processes`` still run after ``END_PATIENCE_S``; sooner once none does."""
    deadline = time.monotonic() + END_PATIENCE_S
    while (left := [each for each in processes if _runs(each)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        # Nobody may be there to take notice of the end of an orphan.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@value
class RunActors:
    """All live actors of a run."""

    tracker: Any
    pool: Any
    buffer: Any
    engines: tuple[Any, ...]
    collectors: tuple[Any, ...]
    learner: LearnerGroup

    def named(self) -> dict[str, Any]:
        """Every actor by its name."""
        return {
            "tracker": self.tracker,
            "pool": self.pool,
            "buffer": self.buffer,
            **{f"engine-{index}": engine for index, engine in enumerate(self.engines)},
            **{f"collector-{index}": actor for index, actor in enumerate(self.collectors)},
            **self.learner.named(),
        }

    def name_of(self, actor_id: str | None) -> str | None:
        """Which actor has this id, as Ray's exceptions give it."""
        ids = {actor._actor_id.hex(): name for name, actor in self.named().items()}
        return ids.get(actor_id or "")


async def start_actors(
    config: RunConfig, hardware: HardwareConfig, run_dir: str, part: int
) -> RunActors:
    """Start everything; engines and learner load the model side by side.

    part: how often the run was taken up again, which keeps its game ids apart. Processes that share
    a card load one after the other: an engine may measure what it takes by what becomes less.
    Raises what an actor's constructor raised, wrapped by Ray (see ``reason``), and RunError where
    there is no room for all.
    """
    about = {"seed": config.seed, "versions": versions(), "experiment": config.name}
    tracker = _actor(TrackerActor, "tracker", num_cpus=0).remote(config, run_dir, about)
    pool = _actor(PoolActor, "pool", num_cpus=0).remote(config, run_dir, part)
    buffer = _actor(BufferActor, "buffer", num_cpus=0).remote(config, run_dir)
    learner = await _learner_group(config, hardware, run_dir)
    engines_and_collectors = [(1.0, hardware.engine_gpus)] * config.engine.num_engines
    engines_and_collectors += [(1.0, 0.0)] * config.collector.num_collectors
    places = await _places(
        engines_and_collectors,
        f"{config.engine.num_engines} engines with a CPU core and {hardware.engine_gpus:g} GPUs "
        f"each, and {config.collector.num_collectors} collectors with a core each",
        "engine.num_engines or collector.num_collectors",
    )
    turn_file(run_dir).unlink(missing_ok=True)  # of a part of the run that was killed in its turn
    learning = asyncio.ensure_future(learner.start())
    shared = hardware.alternate or 0 < hardware.engine_gpus < 1
    if shared:
        await learning
    collectors = tuple(
        _actor(
            CollectorActor,
            f"collector-{index}",
            num_cpus=1,
            max_restarts=config.collector.max_restarts,
            max_concurrency=16,
            **place,
        ).remote(config, f"collector-{index}", run_dir)
        for index, place in enumerate(places[config.engine.num_engines :])
    )
    engines = []
    for index, place in enumerate(places[: config.engine.num_engines]):
        engine = _actor(
            EngineActor,
            f"engine-{index}",
            num_cpus=1,
            num_gpus=hardware.engine_gpus,
            max_restarts=config.engine.max_restarts,
            max_concurrency=1000,
            **place,
        ).remote(config, hardware, f"engine-{index}", run_dir)
        engines.append(engine)
        if shared:
            await engine.__ray_ready__.remote()
    everyone = (tracker, pool, buffer, *engines, *collectors)
    await asyncio.gather(learning, *(actor.__ray_ready__.remote() for actor in everyone))
    return RunActors(
        tracker=tracker,
        pool=pool,
        buffer=buffer,
        engines=tuple(engines),
        collectors=collectors,
        learner=learner,
    )


async def _learner_group(config: RunConfig, hardware: HardwareConfig, run_dir: str) -> LearnerGroup:
    """The learner's ranks, side by side on as few nodes as have room for them."""
    size, gpus = config.learner.num_learners, hardware.learner_gpus
    places = await _places(
        [(1.0, gpus)] * size,
        f"{size} learner ranks with a CPU core and {gpus:g} GPUs each",
        "learner.num_learners",
    )
    return LearnerGroup(
        [
            _actor(LearnerActor, rank_name(rank), num_cpus=1, num_gpus=gpus, **place).remote(
                config, hardware, rank, run_dir
            )
            for rank, place in enumerate(places)
        ]
    )


async def _places(
    wanted: Sequence[tuple[float, float]], who: str, lower: str
) -> list[dict[str, Any]]:
    """Options that place one actor each: CPU cores and GPUs that are kept for it, also while it is
    restarted.

    All are had at once, on as few nodes as have room for them. Raises RunError when there is none:
    Ray itself would wait for ever. who, lower: whom it concerns, and which keys lower their number.
    """
    bundles = [{"CPU": cpus, **({"GPU": gpus} if gpus else {})} for cpus, gpus in wanted]
    group = ray.util.placement_group(bundles, strategy="PACK")
    if not await asyncio.to_thread(group.wait, PLACEMENT_PATIENCE_S):
        raise RunError(
            f"no room for {who} within {PLACEMENT_PATIENCE_S:g} s; lower {lower}, or free what "
            "others hold"
        )
    return [
        {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index)}
        for index in range(len(bundles))
    ]


def _actor(cls: type, name: str, **options: Any) -> Any:
    """``cls`` as a Ray actor class that is placed with ``options`` and found by ``name``."""
    made: Any = ray.remote(cls)
    return made.options(name=name, **options)


def explained(error: BaseException, cast: RunActors | None, run_dir: Path) -> BaseException:
    """What happened to whom in ``run_dir``, and how to go on; ``cast``: None before it stood.

    Of a group it is the first failure that counts. What did not come out of Ray stays as it is.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ray.exceptions.RayError):
        return error
    if not isinstance(error, ray.exceptions.RayActorError):
        return RunError(reason(error))
    name = cast.name_of(error.actor_id) if cast is not None else None
    if name is None:  # it did not live long enough to be known
        return RunError(f"an actor could not be started: {reason(error)}")
    return RunError(
        f"the {name} died: {reason(error)} See logs/{name}.log in {run_dir}; "
        f"go on with: rlforge train --resume {run_dir}"
    )


def reason(error: BaseException) -> str:
    """The user's sentence inside whatever Ray wrapped around it."""
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, RlforgeError):
        return str(cause)
    # What a constructor raised comes back as text only.
    if told := re.findall(r"rlforge\.errors\.\w+: (.+)", str(cause)):
        return str(told[-1])
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
