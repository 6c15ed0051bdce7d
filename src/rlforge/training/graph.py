"""The run graph of a configuration: its actors and parts, their resources and what they send.

It is made and checked without Ray, so that a wrong placement is found before anything starts.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from rlforge.actors.specs import ActorSpec, RunGraph
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import HardwareConfig, PolicyConfig, RunConfig
from rlforge.config.serving import ServingConfig
from rlforge.config.sft import SftConfig
from rlforge.system.hardware import Machine, resolve_hardware

#: How often dead engines of a service are restarted before it ends.
SERVICE_RESTARTS = 100


def build_graph(config: PolicyConfig, machine: Machine) -> RunGraph:
    """The graph of ``config`` on ``machine``; ConfigError when its GPUs do not fit.

    Example:
        >>> graph = build_graph(RunConfig(), Machine(cpus=2, gpus=0))
        >>> graph.actor_names
        ('tracker', 'pool', 'buffer', 'learner', 'engine-0', 'collector-0')
        >>> [edge.target for edge in graph.edges if edge.carries == "TrainBatch"]
        ['learner']
    """
    hardware = resolve_hardware(
        config.hardware, machine, config.engine.num_engines, config.learner.num_learners
    )
    if isinstance(config, ContinuousConfig):
        return _continuous_graph(config, hardware)
    if isinstance(config, ServingConfig):
        return _serving_graph(config, hardware)
    if isinstance(config, SftConfig):
        return _sft_graph(config, hardware)
    assert isinstance(config, RunConfig)
    return _game_graph(config, hardware)


def _game_graph(config: RunConfig, hardware: HardwareConfig) -> RunGraph:
    return RunGraph(
        nodes=(
            _tracker(config),
            ActorSpec(
                name="pool",
                actor="rlforge.actors.state:PoolActor",
                config=_groups(config, "pool", "env"),
                on_driver_node=True,
                sends=(("collector", "GameSpec"), ("tracker", "ratings")),
            ),
            ActorSpec(
                name="buffer",
                actor="rlforge.actors.state:BufferActor",
                config=_groups(config, "buffer", "rewards"),
                on_driver_node=True,
                sends=(("learner", "TrainBatch"),),
            ),
            _learner(
                config,
                hardware,
                ("engine", "adapter version"),
                ("pool", "Checkpoint"),
                ("tracker", "UpdateResult"),
            ),
            _engine(config, hardware, ("collector", "Completion"), ("tracker", "throughput")),
            ActorSpec(
                name="collector",
                actor="rlforge.actors.collector:CollectorActor",
                config=_groups(config, "collector", "eval"),
                num_cpus=1.0,
                replicas=config.collector.num_collectors,
                least=config.collector.min_collectors if hardware.elastic else None,
                replicas_key="collector.num_collectors",
                restarts=config.collector.max_restarts,
                concurrency=1000,  # a call for each game of ``eval.continuous``
                placement_group="rollout",
                sends=(
                    ("engine", "prompt ids, sampling parameters, policy"),
                    ("buffer", "GameRecord"),
                    ("pool", "outcomes"),
                    ("tracker", "games"),
                ),
            ),
        )
    )


def _continuous_graph(config: ContinuousConfig, hardware: HardwareConfig) -> RunGraph:
    def part(name: str, groups: tuple[str, ...], *sends: tuple[str, str]) -> ActorSpec:
        return ActorSpec(name=name, actor=None, config=_groups(config, *groups), sends=sends)

    store = part(
        "store",
        ("store", "window", "decision_reward"),
        ("scorer", "TrainingWindow"),
        ("learner", "TrainBatch"),
    )
    deployment = part(
        "deployment",
        ("deployment", "serve"),
        ("engine", "prompt ids, sampling parameters, policy"),
        ("engine", "adapter version"),
    )
    decided = ("store", "Decision, Outcome")
    asking = {
        "market": (
            part("market", ("market", "continuous"), ("deployment", "prompt ids, agent"), decided),
        ),
        "episodes": (
            part(
                "episodes",
                ("episodes", "continuous"),
                ("deployment", "prompt ids, agent"),
                ("store", "Decision"),
            ),
        ),
        "requests": (
            part("clients", ("requests", "serve"), ("deployment", "prompt ids, user"), decided),
        ),
        "store": (),
    }[config.continuous.source]
    return RunGraph(
        nodes=(
            _tracker(config),
            _learner(
                config, hardware, ("deployment", "Checkpoint"), ("tracker", "metrics of the window")
            ),
            _engine(
                config, hardware, *((node.name, "Completion") for node in asking or (deployment,))
            ),
            *asking,
            store,
            part("scorer", ("ruler",), ("learner", "Scores")),
            deployment,
        )
    )


def _sft_graph(config: SftConfig, hardware: HardwareConfig) -> RunGraph:
    samples = ActorSpec(
        name="samples",
        actor=None,
        config=_groups(config, "data", "env"),
        sends=(("learner", "TrainBatch"),),
    )
    learner = _learner(config, hardware, ("tracker", "UpdateResult"))
    return RunGraph(nodes=(_tracker(config), samples, learner))


def _serving_graph(config: ServingConfig, hardware: HardwareConfig) -> RunGraph:
    service = ActorSpec(
        name="service",
        actor=None,
        config=_groups(config, "deployment", "serve"),
        sends=(
            ("engine", "prompt ids, sampling parameters, policy"),
            ("engine", "adapter version"),
        ),
    )
    engine = _engine(config, hardware, ("service", "Completion"))
    return RunGraph(nodes=(dataclasses.replace(engine, restarts=SERVICE_RESTARTS), service))


def _tracker(config: PolicyConfig) -> ActorSpec:
    kind = "WindowTrackerActor" if isinstance(config, ContinuousConfig) else "TrackerActor"
    return ActorSpec(
        name="tracker",
        actor=f"rlforge.actors.state:{kind}",
        config=_groups(config, "tracker"),
        on_driver_node=True,
    )


def _learner(config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]) -> ActorSpec:
    return ActorSpec(
        name="learner",
        actor="rlforge.actors.learner:LearnerActor",
        config=_groups(config, "learner", "algorithm", "model"),
        num_cpus=1.0,
        num_gpus=hardware.learner_gpus,
        replicas=config.learner.num_learners,
        replicas_key="learner.num_learners",
        placement=hardware.device,
        placement_group="learner",
        loads_alone=_shared(hardware),
        sends=sends,
    )


def _engine(config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]) -> ActorSpec:
    return ActorSpec(
        name="engine",
        actor="rlforge.actors.engine:EngineActor",
        config=_groups(config, "engine", "model"),
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


def _groups(config: PolicyConfig, *names: str) -> dict[str, Any]:
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
