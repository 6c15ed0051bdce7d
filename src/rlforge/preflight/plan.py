"""The plan of a run: what starts, decided once from a configuration and a machine.

    configuration, machine ─▶ make_plan ─▶ RunPlan ─▶ rlforge graph, plan.json, actors

No other place changes a configuration on its way to the actors.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from rlforge.config.rules import as_values
from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.engines.registry import check_playable
from rlforge.engines.vllm_settings import VLLM_VERSION, lacking, obstacle
from rlforge.errors import ConfigError, first_line, refusals
from rlforge.kinds import kind_of
from rlforge.models.catalog import locate
from rlforge.models.fit import start_of
from rlforge.preflight.fit import in_gib, memory_on
from rlforge.preflight.memory.plan import place
from rlforge.preflight.memory.remedies import with_keys
from rlforge.preflight.model import saved_policies
from rlforge.record.files import RunPaths
from rlforge.specs import ActorSpec
from rlforge.system.files import atomic_write
from rlforge.system.hardware import Machine, detect, resolve_device, resolve_hardware
from rlforge.types import value

C = TypeVar("C", bound=PolicyConfig)

#: Most cores of a machine on which the actors that hold state share a process.
FEW_CORES = 4


@value
class Edge:
    source: str
    target: str
    carries: str


@value
class RunPlan(Generic[C]):
    """The plan of a start; frozen, as are its configurations."""

    config: C  #: with the engines that start, their share of a card, and the start of the weights
    hardware: HardwareConfig  #: its profile for the machine
    nodes: tuple[ActorSpec, ...]  #: the parts of the run, in the order in which they start
    engine: str = ""  #: which one ``auto`` tries, and why; empty where another name is configured
    notes: tuple[str, ...] = ()  #: on engines that do not start, and on GPUs that nothing uses

    def node(self, name: str) -> ActorSpec:
        return next(node for node in self.nodes if node.name == name)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return tuple(
            Edge(source=node.name, target=target, carries=carries)
            for node in self.nodes
            for target, carries in node.sends
        )

    @property
    def actor_names(self) -> tuple[str, ...]:
        return tuple(name for node in self.nodes for name in node.actor_names)

    @property
    def num_cpus(self) -> float:
        return sum(node.num_cpus * node.replicas for node in self.nodes)

    @property
    def cards(self) -> int:
        return _cards(self.config, self.hardware)


def make_plan(
    config: C, machine: Machine, run_dir: Path | None = None, claimed: HardwareConfig | None = None
) -> RunPlan[C]:
    """The plan of ``config`` on ``machine``; ConfigError where its GPUs do not fit.

    run_dir: folder of a run that has begun. claimed: profile with the GPUs that the run has
    claimed.
    """
    kind = kind_of(config)
    settled = with_engines_that_start(config, machine)
    engines, learners = settled.engine.num_engines, settled.learner.num_learners
    hardware = claimed or resolve_hardware(settled.hardware, machine, engines, learners)
    notes = tuple(gpu_notes(config, settled, hardware, machine))
    settled, engine = engine_tried(settled, hardware, machine)
    settled = _divided(settled, hardware, machine)
    if engine and settled.engine.name == "vllm":
        # The name stays ``auto``: engines try vLLM themselves (``rlforge.learner.engine_trial``),
        # and plans of memory count the embedded engine, which takes over where the trial fails.
        settled = named_engine(settled, "auto")
    settled = with_start(settled, run_dir)
    if run_dir is not None:
        settled = kind.counted(settled, run_dir)
    nodes = kind.nodes(settled, hardware)
    state = [node for node in nodes if node.actor and node.on_driver_node and not node.num_cpus]
    few = hardware.ray_address is None and (hardware.num_cpus or 0) <= FEW_CORES
    if few and len(state) > 1:
        # Games keep a process of their own: they hold the interpreter's lock, and the state must
        # answer.
        nodes = tuple(
            dataclasses.replace(node, host="state") if node in state else node for node in nodes
        )
    return RunPlan(config=settled, hardware=hardware, nodes=nodes, engine=engine, notes=notes)


# ---------------------------------------------------------------- what of the profile starts


def for_machine(
    config: C, gpus: int | None = None, memory_gb: float | None = None
) -> tuple[C, Machine, str | None]:
    """``config`` and the machine that it is planned for, and a note where that is a guess.

    gpus, memory_gb: GPUs of that machine and GiB of each. Raises ConfigError for GPUs on a CPU run.
    """
    hardware, here = config.hardware, detect()
    if memory_gb is not None and not math.isfinite(memory_gb):
        raise ConfigError(f"--gpu-memory {memory_gb}: must be a finite number of GiB")
    option = "--gpus" if gpus else "--gpu-memory" if memory_gb is not None else None
    if option and hardware.device == "cpu":
        raise ConfigError(f"{option}: hardware.device=cpu uses none; choose another profile")
    if gpus == 0 and memory_gb is not None:
        raise ConfigError("--gpu-memory: a machine of --gpus 0 has none; leave one of them out")
    actors = with_engines_that_start(config, here)
    asked = actors.learner.num_learners * hardware.learner_gpus
    asked = max(1, math.ceil(asked + actors.engine.num_engines * hardware.engine_gpus))
    # Without both options it is this machine, or, where a profile wants a GPU and none is here, one
    # with as many as the actors ask for.
    note, other = None, (gpus, memory_gb) != (None, None)
    if gpus is None and memory_gb is not None:
        gpus = hardware.num_gpus or max(here.gpus, asked)
    elif gpus is None and hardware.num_gpus is None and hardware.ray_address is None:
        try:
            resolve_device(hardware, here.gpus)
        except ConfigError as error:
            gpus = asked
            note = (
                f"{str(error).partition(';')[0]}, so that train refuses here; planned for {gpus} "
                "(--gpus N --gpu-memory GB: for others)"
            )
    given = {"hardware.num_gpus": gpus, "hardware.memory_gb": memory_gb}
    if other or note is not None:
        here = dataclasses.replace(here, cards=(), here=False)
    changes = {key: number for key, number in given.items() if number is not None}
    return with_keys(config, changes), here, note


def with_engines_that_start(config: C, machine: Machine) -> C:
    """``config`` with the engines that start on ``machine``; none where nothing is generated."""
    engine, hardware = config.engine, config.hardware
    if not kind_of(config).generates:
        none = {"engine.name": "transformers", "engine.num_engines": 0}
        return with_keys(config, none | {"hardware.alternate": False})
    least = engine.min_engines
    fixed = hardware.learner_gpus or hardware.engine_gpus or hardware.ray_address is not None
    if least is None or fixed:
        return config
    # Engines beyond the least start only if a GPU is left for each.
    left = 0 if hardware.alternate else _gpus_of(config, machine) - config.learner.num_learners
    number = max(least, min(engine.num_engines, left))
    return with_keys(config, {"engine.num_engines": number})


def _cards(config: PolicyConfig, hardware: HardwareConfig) -> int:
    engines, learners = config.engine.num_engines, config.learner.num_learners
    return sum(card.count for card in place(hardware, learners, engines, capacity=0))


def _gpus_of(config: PolicyConfig, machine: Machine) -> int:
    hardware = config.hardware
    if hardware.device == "cpu":
        return 0
    return machine.gpus if hardware.num_gpus is None else hardware.num_gpus


def gpu_notes(
    config: PolicyConfig, live: PolicyConfig, hardware: HardwareConfig, machine: Machine
) -> Iterator[str]:
    """Engines that do not start for want of GPUs, and GPUs that nothing uses.

    live: ``config`` with the engines that start. hardware: its profile for ``machine``.
    """
    there, learners = _gpus_of(config, machine), live.learner.num_learners
    engines, wanted = live.engine.num_engines, config.engine.num_engines
    if 0 < engines < wanted:
        yield (
            f"engine.num_engines={wanted}: {engines} start{'' if engines > 1 else 's'}, as "
            f"{wanted + learners} GPUs are for all of them and {there or 'none'} "
            f"{'is' if there == 1 else 'are'} there (engine.min_engines={live.engine.min_engines})"
        )
    if hardware.device != "cuda" or hardware.num_gpus is None:
        # The GPUs of a cluster are not counted, so none is called idle.
        return
    if not machine.cards and find_spec("pynvml") is None:
        yield (
            "GPUs are neither measured nor reserved without nvidia-ml-py: "
            "pip install 'rlforge[gpu]'"
        )
    used = _cards(live, hardware)
    if used < there:
        keys = f"engine.num_engines={engines}, " if engines else ""
        turns = ", hardware.alternate=true" if hardware.alternate else ""
        yield (
            f"{there - used} of {there} GPUs {'is' if there - used == 1 else 'are'} not used: "
            f"{keys}learner.num_learners={learners}{turns}"
        )


# ---------------------------------------------------------------- which engine


def engine_tried(config: C, hardware: HardwareConfig, machine: Machine) -> tuple[C, str]:
    """``config`` with the engine that ``engine.name=auto`` tries first, and which one that is."""
    if config.engine.name != "auto":
        return config, ""
    wanted = named_engine(config, "vllm")
    if (reason := _not_vllm(wanted, hardware, machine)) is not None:
        return named_engine(config, "transformers"), f"transformers, not vLLM: {reason}"
    trial = f"vLLM {VLLM_VERSION} if it passes a trial at the start, else transformers"
    # Another machine may have vLLM, so its lack here is only a note.
    absent = None if machine.here else lacking("cuda")
    return wanted, trial if absent is None else f"{trial}, planned: here {absent}"


def named_engine(config: C, name: str) -> C:
    return with_keys(config, {"engine.name": name})


def _not_vllm(config: PolicyConfig, hardware: HardwareConfig, machine: Machine) -> str | None:
    """Why a run does not try vLLM, which ``config`` names; None: it does."""
    if (reason := obstacle(config, hardware.device, here=machine.here)) is not None:
        return reason
    for policies in saved_policies(config).values() if machine.here else ():
        for problem in refusals(partial(check_playable, policies, config)):
            return str(problem)
    memory = memory_on(machine.cards, config, locate(config.model), hardware)
    if memory is not None and memory.plan.excess > 0:
        return f"with it the run needs {in_gib(memory.plan.excess)} more memory than there is"
    return None


def _divided(config: C, hardware: HardwareConfig, machine: Machine) -> C:
    vllm = config.engine.vllm
    if config.engine.name != "vllm" or vllm.gpu_memory_utilization is not None:
        return config
    memory = memory_on(machine.cards, config, locate(config.model), hardware)
    if memory is None or memory.plan.share is None:
        return config
    # vLLM's share is of the whole card, the plan's of the part that the profile uses.
    planned = memory.plan.cards[0].capacity
    own = machine.cards if config.hardware.ray_address is None else ()
    whole = min((card.memory for card in own), default=planned)
    share = memory.plan.share * planned / whole
    return with_keys(config, {"engine.vllm.gpu_memory_utilization": share})


def with_start(config: C, run_dir: Path | None = None) -> C:
    start = start_of(config, run_dir)
    return config if start is None else with_keys(config, {"learner.initial_adapter": str(start)})


# ---------------------------------------------------------------- as text


def as_plain(plan: RunPlan[Any]) -> dict[str, Any]:
    """The plan as plain values, for ``plan.json`` and ``rlforge graph``."""
    nodes = []
    for spec in plan.nodes:
        node: dict[str, Any] = {"name": spec.name, "kind": spec.name}
        node |= {"actor_names": spec.actor_names, **dataclasses.asdict(spec)}
        # The text has these as ``edges`` and, with their values, as ``config``.
        del node["sends"]
        del node["reads"]
        groups = {name: getattr(plan.config, name) for name in spec.reads}
        node["config"] = {name: dataclasses.asdict(group) for name, group in groups.items()}
        nodes.append(node)
    read = {"hardware", *(name for spec in plan.nodes for name in spec.reads)}
    rest = {key: each for key, each in as_values(plan.config).items() if key not in read}
    return {
        "hardware": dataclasses.asdict(plan.hardware),
        "engine": plan.engine or plan.config.engine.name,
        # Groups that nodes read are in the entries of these, and are not repeated here.
        "config": rest,
        "nodes": nodes,
        "edges": [dataclasses.asdict(edge) for edge in plan.edges],
    }


def to_json(plan: RunPlan[Any]) -> str:
    return json.dumps(as_plain(plan), indent=2, default=str)


def write_plan(plan: RunPlan[Any], run_dir: Path) -> list[str]:
    """Write the plan into the run folder, beside those before it; returns what differs."""
    first = RunPaths(root=run_dir).plan
    earlier = len([*run_dir.glob(f"{first.stem}*.json")])
    path = first.with_stem(f"{first.stem}-{earlier + 1}") if earlier else first
    atomic_write(path, to_json(plan))
    if not earlier:
        return []
    last = first if earlier == 1 else first.with_stem(f"{first.stem}-{earlier}")
    try:
        before = json.loads(last.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"unknown, as {last} cannot be read: {first_line(error)}"]
    return differences(before, json.loads(to_json(plan)))


def to_mermaid(plan: RunPlan[Any]) -> str:
    lines = ["flowchart LR"]
    for node in plan.nodes:
        gpus = f", {node.num_gpus:g} GPU" if node.num_gpus else ""
        place = f"{node.placement}{gpus}" if node.actor else "in the driver"
        lines.append(f'  {node.name}["{node.name} ×{node.number} ({place})"]')
    lines += [f"  {edge.source} -->|{edge.carries}| {edge.target}" for edge in plan.edges]
    return "\n".join(lines)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Lines on what differs between two plans."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    return [
        f"{key}: {old.get(key, 'nothing')} before, {new.get(key, 'nothing')} now"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


def _leaves(tree: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, inside in tree.items():
            whole = f"{at}.{key}" if at else str(key)
            # Keys of ``config`` are written as in config.yaml, so they have no prefix.
            yield from _leaves(inside, "" if key == "config" else whole)
    elif isinstance(tree, list) and tree and isinstance(tree[0], Mapping) and "name" in tree[0]:
        # Parts are compared by name, because their order may change.
        for one in tree:
            yield from _leaves(one, str(one["name"]))
    else:
        yield at, tree
