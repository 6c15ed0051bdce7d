"""The run graph of a configuration: its actors and parts, their resources and what they send.

It is made and checked without Ray, so that a wrong placement is found before anything starts.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.kinds import kind_of
from rlforge.specs import ActorSpec, RunGraph
from rlforge.system.hardware import Machine, resolve_hardware


def build_graph(config: PolicyConfig, machine: Machine) -> RunGraph:
    """The graph of ``config`` on ``machine``; ConfigError when its GPUs do not fit.

    Example:
        >>> from rlforge.config.schema import RunConfig
        >>> graph = build_graph(RunConfig(), Machine(cpus=2, gpus=0))
        >>> graph.actor_names
        ('tracker', 'pool', 'buffer', 'learner', 'engine-0', 'collector-0')
        >>> [edge.target for edge in graph.edges if edge.carries == "TrainBatch"]
        ['learner']
    """
    hardware = resolve_hardware(
        config.hardware, machine, config.engine.num_engines, config.learner.num_learners
    )
    return RunGraph(nodes=kind_of(config).nodes(config, hardware))


def tracker_node(
    config: PolicyConfig, actor: str = "rlforge.actors.state:TrackerActor"
) -> ActorSpec:
    """The tracker; actor: where its class is."""
    return ActorSpec(
        name="tracker", actor=actor, config=groups(config, "tracker"), on_driver_node=True
    )


def learner_node(
    config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]
) -> ActorSpec:
    """The ranks of the learner. sends: target, and what is handed over."""
    return ActorSpec(
        name="learner",
        actor="rlforge.actors.learner:LearnerActor",
        config=groups(config, "learner", "algorithm", "model"),
        num_cpus=1.0,
        num_gpus=hardware.learner_gpus,
        replicas=config.learner.num_learners,
        replicas_key="learner.num_learners",
        placement=hardware.device,
        placement_group="learner",
        loads_alone=_shared(hardware),
        sends=sends,
    )


def engine_node(
    config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]
) -> ActorSpec:
    """The engines. sends: as of ``learner_node``."""
    return ActorSpec(
        name="engine",
        actor="rlforge.actors.engine:EngineActor",
        config=groups(config, "engine", "model"),
        num_cpus=1.0,
        num_gpus=hardware.engine_gpus,
        replicas=config.engine.num_engines,
        least=(config.engine.min_engines or 1) if hardware.elastic else None,
        replicas_key="engine.num_engines",
        placement=hardware.device,
        restarts=config.engine.max_restarts,
        concurrency=1000,
        placement_group="rollout",
        loads_alone=_shared(hardware),
        sends=sends,
    )


def _shared(hardware: HardwareConfig) -> bool:
    """Whether an engine shares its card, with the learner or with other engines."""
    return hardware.alternate or 0 < hardware.engine_gpus < 1


def groups(config: PolicyConfig, *names: str) -> dict[str, Any]:
    """Groups of the configuration, as plain values."""
    return {name: dataclasses.asdict(getattr(config, name)) for name in names}


def to_json(graph: RunGraph) -> str:
    """The graph as JSON, as ``graph.json`` in the run directory holds it."""
    nodes = []
    for spec in graph.nodes:
        node = {"name": spec.name, "kind": spec.name, "actor_names": spec.actor_names}
        node |= dataclasses.asdict(spec)
        del node["sends"]  # the edges
        nodes.append(node)
    edges = [dataclasses.asdict(edge) for edge in graph.edges]
    return json.dumps({"nodes": nodes, "edges": edges}, indent=2, default=str)


def to_mermaid(graph: RunGraph) -> str:
    """The graph as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    for node in graph.nodes:
        gpus = f", {node.num_gpus:g} GPU" if node.num_gpus else ""
        place = f"{node.placement}{gpus}" if node.actor else "in the driver"
        lines.append(f'  {node.name}["{node.name} ×{node.number} ({place})"]')
    lines += [f"  {edge.source} -->|{edge.carries}| {edge.target}" for edge in graph.edges]
    return "\n".join(lines)
