"""The run graph: which actors a configuration stands for, what they hold and who talks to whom.

It is made and checked without Ray, so that a wrong placement is found before anything starts.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

from rlforge.config.schema import RunConfig
from rlforge.system.hardware import Machine, resolve_hardware
from rlforge.types import value

NodeKind = Literal[
    "tracker",
    "pool",
    "buffer",
    "engine",
    "collector",
    "learner",
    "market",
    "store",
    "scorer",
    "deployment",
]


@value
class Node:
    """One kind of actor. config: the settings it starts from, as plain values.

    num_cpus and num_gpus are per replica; placement names the device it computes on.
    """

    name: str
    kind: NodeKind
    config: dict[str, Any]
    num_cpus: float
    num_gpus: float
    replicas: int
    placement: str


@value
class Edge:
    """``source`` hands ``carries`` to ``target``."""

    source: str
    target: str
    carries: str


@value
class RunGraph:
    """Everything that will run, with what it needs of the machine."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def node(self, kind: NodeKind) -> Node:
        """The node of this kind; each kind stands once, with replicas."""
        return next(node for node in self.nodes if node.kind == kind)

    @property
    def num_cpus(self) -> float:
        """CPU cores that all replicas ask for."""
        return sum(node.num_cpus * node.replicas for node in self.nodes)

    @property
    def num_gpus(self) -> float:
        """GPUs that all replicas ask for."""
        return sum(node.num_gpus * node.replicas for node in self.nodes)


def build_graph(config: RunConfig, machine: Machine) -> RunGraph:
    """The graph of ``config`` on ``machine``; ConfigError when its GPUs do not fit."""
    hardware = resolve_hardware(
        config.hardware, machine, config.engine.num_engines, config.learner.num_learners
    )
    plain = dataclasses.asdict(config)
    compute = hardware.device

    def node(
        kind: NodeKind,
        settings: tuple[str, ...],
        *,
        cpus: float = 0.0,
        gpus: float = 0.0,
        replicas: int = 1,
    ) -> Node:
        computes = kind in ("engine", "learner")
        return Node(
            name=kind,
            kind=kind,
            config={key: plain[key] for key in settings},
            num_cpus=cpus,
            num_gpus=gpus,
            replicas=replicas,
            placement=compute if computes else "cpu",
        )

    nodes = (
        node("tracker", ("tracker",)),
        node("pool", ("pool", "env")),
        node("buffer", ("buffer", "rewards")),
        node(
            "engine",
            ("engine", "model"),
            cpus=1.0,
            gpus=hardware.engine_gpus,
            replicas=config.engine.num_engines,
        ),
        node(
            "collector",
            ("collector", "eval"),
            cpus=1.0,
            replicas=config.collector.num_collectors,
        ),
        node(
            "learner",
            ("learner", "algorithm", "model"),
            cpus=1.0,
            gpus=hardware.learner_gpus,
            replicas=config.learner.num_learners,
        ),
    )
    edges = tuple(
        Edge(source=source, target=target, carries=carries)
        for source, target, carries in (
            ("pool", "collector", "GameSpec"),
            ("collector", "engine", "prompt ids, sampling parameters, policy"),
            ("engine", "collector", "Completion"),
            ("collector", "buffer", "GameRecord"),
            ("collector", "pool", "outcomes"),
            ("buffer", "learner", "TrainBatch"),
            ("learner", "engine", "adapter version"),
            ("learner", "pool", "Checkpoint"),
            ("collector", "tracker", "games"),
            ("engine", "tracker", "throughput"),
            ("learner", "tracker", "UpdateResult"),
            ("pool", "tracker", "ratings"),
        )
    )
    return RunGraph(nodes=nodes, edges=edges)


def to_json(graph: RunGraph) -> str:
    """The graph as JSON, as ``graph.json`` in the run directory holds it."""
    return json.dumps(dataclasses.asdict(graph), indent=2, default=str)


def to_mermaid(graph: RunGraph) -> str:
    """The graph as a Mermaid flowchart."""
    lines = ["flowchart LR"]
    for node in graph.nodes:
        gpus = f", {node.num_gpus:g} GPU" if node.num_gpus else ""
        lines.append(f'  {node.name}["{node.kind} ×{node.replicas} ({node.placement}{gpus})"]')
    lines += [f"  {edge.source} -->|{edge.carries}| {edge.target}" for edge in graph.edges]
    return "\n".join(lines)
