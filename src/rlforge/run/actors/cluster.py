"""Places and starts the actors of a plan.

The classes of the neighbouring modules are plain Python and become actors here.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlforge.errors import RunError
from rlforge.preflight.plan import RunPlan
from rlforge.record.scalars import Sums, means, taken
from rlforge.run.actors.folder import RunFolder, come_home, on_node, start_server, this_node
from rlforge.run.actors.host import STATE, Host, Hosted
from rlforge.run.actors.learner import LearnerGroup
from rlforge.run.actors.process import DEATHS, HELD_S, answer, turn_file
from rlforge.specs import ActorSpec

log = logging.getLogger(__name__)

PLACEMENT_PATIENCE_S = 120.0
"""Seconds within which a cluster must have room for all actors."""

START_PATIENCE_S = 300.0
"""Seconds within which an actor without a core must be there."""

SCALARS_PATIENCE_S = 10.0
"""Seconds that an update waits for the scalars of an actor."""


class RunActors:
    """The actors of a run, by name, and which of them are absent.

    Absent are actors that wait for room on a node, and actors that died and are not back.

    Example:
        >>> actors = RunActors({"tracker": "t", "engine-0": "e0", "engine-1": "e1"}, {"engine-1"})
        >>> actors.tracker, actors.engines, list(actors.present("engine"))
        ('t', ('e0', 'e1'), ['engine-0'])
    """

    def __init__(self, named: Mapping[str, Any], absent: Collection[str] = ()) -> None:
        """Take handles of Ray actors by name, replicas in the order of their numbers."""
        self.named = dict(named)
        self.absent = set(absent)
        # Each actor is asked for its scalars once at a time.
        self._asked_for_scalars: dict[str, asyncio.Future[Sums]] = {}

    def replicas(self, kind: str) -> dict[str, Any]:
        return {name: actor for name, actor in self.named.items() if name.partition("-")[0] == kind}

    def present(self, kind: str) -> dict[str, Any]:
        replicas = self.replicas(kind).items()
        return {name: actor for name, actor in replicas if name not in self.absent}

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
        return tuple(self.replicas("engine").values())

    @property
    def collectors(self) -> tuple[Any, ...]:
        return tuple(self.replicas("collector").values())

    @property
    def learner(self) -> LearnerGroup:
        return LearnerGroup(tuple(self.replicas("learner").values()))

    async def custom_scalars(self) -> dict[str, float]:
        """Means of what users' code reported with ``log_scalar`` since the last call.

        What an actor answers after ``SCALARS_PATIENCE_S`` counts in a later call.
        """
        asked = self._asked_for_scalars
        for name, actor in self.named.items():
            # The tracker is not asked, because its slow sinks would hold up the loops.
            if name != "tracker" and name not in self.absent and name not in asked:
                asked[name] = asyncio.ensure_future(actor.__ray_call__.remote(_taken))
        if asked:
            await asyncio.wait(asked.values(), timeout=SCALARS_PATIENCE_S)
        answered = [asked.pop(name) for name, call in list(asked.items()) if call.done()]
        # An actor that died takes its numbers along.
        reports = [call.result() for call in answered if call.exception() is None]
        return means([taken(), *reports])

    def process_of(self, name: str) -> str:
        """Name of an actor's process: its own, unless it is shared."""
        return STATE if isinstance(self.named[name], Hosted) else name

    async def held(self, name: str) -> None:
        """Wait until an actor that is there does not answer for ``HELD_S``."""
        while True:
            # An actor that died is not held: its other callers end the run, or wait for it.
            with contextlib.suppress(*DEATHS):
                try:
                    async with asyncio.timeout(HELD_S):
                        if name not in self.absent:
                            asked = self.named[name].__ray_call__
                            await asked.remote(answer, name, 0.75 * HELD_S)
                except TimeoutError:
                    return
            await asyncio.sleep(min(5.0, HELD_S / 4))

    async def about_engines(self) -> tuple[str, ...]:
        """Lines on which engine ``engine=auto`` has taken, and why."""
        about = await asyncio.gather(
            *(engine.about.remote() for engine in self.present("engine").values())
        )
        return tuple(f"engine: {line}" for line in dict.fromkeys(about) if line)

    async def come_home(self) -> None:
        if "files" in self.named:
            await come_home(self.named["files"])

    def name_of(self, actor_id: str | None) -> str | None:
        """Name of the process with the actor of this id, from one of Ray's exceptions."""
        for name, actor in self.named.items():
            handle = actor.host if isinstance(actor, Hosted) else actor
            if handle._actor_id.hex() == actor_id:
                return self.process_of(name)
        return None


def _taken(actor: object) -> Sums:
    return taken()


async def start_actors(plan: RunPlan[Any], run_dir: Path, part: int = 0) -> RunActors:
    """Start every actor of ``plan`` and wait until the run can begin with them.

    A constructor gets what it has parameters for, of the plan's ``config`` and ``hardware``,
    ``name``, ``rank`` (number of the replica), ``folder``, ``part``, and ``run_dir``, which is for
    actors on the driver's node. Replicas beyond ``ActorSpec.least`` are absent at first: they come
    when a node has room. ``part`` says how often the run was resumed, and keeps its game ids apart.

    Raises RunError when there is no room for all, or Ray does not start one; errors of constructors
    arrive wrapped by Ray (see ``ends.reason``).
    """
    specs = [spec for spec in plan.nodes if spec.actor is not None]
    places = await _places(specs)
    # A run that was killed in the learner's turn leaves this file, and engines would not load.
    turn_file(run_dir).unlink(missing_ok=True)
    named: dict[str, Any] = {}
    folder = RunFolder(run_dir=str(run_dir))
    if plan.hardware.ray_address is not None:
        named["files"], folder = start_server(run_dir)
    given = {"config": plan.config, "hardware": plan.hardware, "part": part}
    given |= {"folder": folder, "run_dir": str(run_dir)}
    loading: list[asyncio.Future[Any]] = []
    hosts: dict[str, Any] = {}
    absent = set[str]()
    alone: asyncio.Future[Any] | None = None
    try:
        for spec in specs:
            for rank, name in enumerate(spec.actor_names):
                # An engine may measure its memory as the fall of the card's free memory: actors
                # that share a card do not load side by side.
                if spec.loads_alone and alone is not None:
                    await alone
                place = on_node(this_node()) if spec.on_driver_node else places.get(name)
                more = given | {"name": name, "rank": rank}
                if spec.host:
                    if spec.host not in hosts:
                        hosts[spec.host] = _host(spec.host, place, str(run_dir))
                    actor = named[name] = Hosted(hosts[spec.host], name)
                    made = actor.host.make.remote(name, spec.actor, _arguments(spec, more))
                    loading.append(asyncio.ensure_future(_ready(spec, name, made)))
                    continue
                actor = named[name] = _create(spec, place, more)
                if spec.least is not None and rank >= spec.least:
                    absent.add(name)
                    continue
                loading.append(
                    asyncio.ensure_future(_ready(spec, name, actor.__ray_ready__.remote()))
                )
                if spec.name == "learner" and rank + 1 == spec.replicas:
                    # A rank connects to all others before it loads its model, so all must exist.
                    loading.append(asyncio.ensure_future(RunActors(named).learner.start()))
                alone = loading[-1] if spec.loads_alone else None
        await asyncio.gather(*loading)
    except BaseException:
        # Also after Ctrl-C the other nodes send their logs and delete their folders.
        await RunActors(named).come_home()
        raise
    finally:
        for waiting in loading:
            waiting.cancel()
    return RunActors(named, absent)


async def _ready(spec: ActorSpec, name: str, there: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(None if spec.num_cpus else START_PATIENCE_S):
            await there
    except TimeoutError:
        raise RunError(
            f"Ray has not started {name} within {START_PATIENCE_S:g} s: this machine is busy, or "
            "its clock was set back; start again"
        ) from None


def _arguments(spec: ActorSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(resolve_name(spec.actor or "")).parameters
    return {key: argument for key, argument in given.items() if key in parameters}


def _create(spec: ActorSpec, place: Any, given: Mapping[str, Any]) -> Any:
    made: Any = ray.remote(resolve_name(spec.actor or ""))
    return made.options(
        name=given["name"],
        num_cpus=spec.num_cpus,
        num_gpus=spec.num_gpus,
        max_restarts=spec.restarts,
        max_concurrency=spec.concurrency,
        scheduling_strategy=place,
    ).remote(**_arguments(spec, given))


def _host(name: str, place: Any, run_dir: str) -> Any:
    made: Any = ray.remote(Host)
    # Calls that wait, as for room in the buffer, must hold up no others.
    options = {"name": name, "num_cpus": 0, "max_concurrency": 1000, "scheduling_strategy": place}
    return made.options(**options).remote(name, run_dir)


async def _places(specs: Sequence[ActorSpec]) -> dict[str, PlacementGroupSchedulingStrategy]:
    """Placement of each actor that has a placement group (see ``ActorSpec``), by its name.

    Raises RunError when what the run needs does not fit.
    """
    places = {}
    placed = [spec for spec in specs if spec.placement_group is not None]
    together = [spec for spec in placed if spec.least is None]
    for name in dict.fromkeys(spec.placement_group for spec in together):
        inside = [spec for spec in together if spec.placement_group == name]
        group = _group(*(spec for spec in inside for _ in spec.actor_names))
        fewer = f"lower {' or '.join(spec.replicas_key for spec in inside)}"
        await _has_room([group], [(spec.replicas, spec) for spec in inside], fewer)
        names = [name for spec in inside for name in spec.actor_names]
        for index, name in enumerate(names):
            places[name] = PlacementGroupSchedulingStrategy(group, index)
    alone = [(spec, spec.least) for spec in placed if spec.least is not None]
    needed = {name: spec for spec, least in alone for name in spec.actor_names[:least]}
    groups = {name: _group(spec) for name, spec in needed.items()}
    await _has_room(groups.values(), [(least, spec) for spec, least in alone], "start another node")
    # Replicas that may be absent come last, else they could take the room of those that may not.
    others = {name: spec for spec, least in alone for name in spec.actor_names[least:]}
    groups |= {name: _group(spec) for name, spec in others.items()}
    for name, group in groups.items():
        places[name] = PlacementGroupSchedulingStrategy(group, 0)
    return places


def _group(*specs: ActorSpec) -> PlacementGroup:
    bundles = [
        {"CPU": spec.num_cpus, **({"GPU": spec.num_gpus} if spec.num_gpus else {})}
        for spec in specs
    ]
    group: PlacementGroup = ray.util.placement_group(bundles, strategy="PACK")
    return group


async def _has_room(
    groups: Collection[PlacementGroup], wanted: Sequence[tuple[int, ActorSpec]], mend: str
) -> None:
    """Wait until all groups are placed; RunError if late, with what was ``wanted`` and ``mend``."""
    # Ray itself would wait for ever.
    waits = (asyncio.to_thread(group.wait, PLACEMENT_PATIENCE_S) for group in groups)
    if not all(await asyncio.gather(*waits)):
        what = ", and ".join(
            f"{number} {spec.name}s with a CPU core and {spec.num_gpus:g} GPUs each"
            for number, spec in wanted
        )
        raise RunError(
            f"no room for {what} within {PLACEMENT_PATIENCE_S:g} s; {mend}, "
            "or free what others hold"
        )
