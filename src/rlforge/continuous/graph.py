"""What a continuous run consists of, and who hands what to whom: one process, no actors."""

from __future__ import annotations

import dataclasses

from rlforge.config.continuous import ContinuousConfig
from rlforge.system.hardware import Machine, resolve_hardware
from rlforge.train.graph import Edge, Node, NodeKind, RunGraph

#: Nodes and the groups they are made from.
_NODES: tuple[tuple[NodeKind, tuple[str, ...]], ...] = (
    ("market", ("market", "continuous")),
    ("store", ("store", "window", "decision_reward")),
    ("scorer", ("ruler",)),
    ("learner", ("learner", "algorithm", "model")),
    ("deployment", ("deployment", "serve")),
    ("engine", ("engine", "model")),
    ("tracker", ("tracker",)),
)

_EDGES = (
    ("market", "deployment", "prompt ids, agent"),
    ("deployment", "engine", "prompt ids, sampling parameters, policy"),
    ("engine", "market", "Completion"),
    ("market", "store", "Decision, Outcome"),
    ("store", "scorer", "TrainingWindow"),
    ("scorer", "learner", "Scores"),
    ("store", "learner", "TrainBatch"),
    ("learner", "deployment", "Checkpoint"),
    ("deployment", "engine", "adapter version"),
    ("learner", "tracker", "metrics of the window"),
)


def continuous_graph(config: ContinuousConfig, machine: Machine) -> RunGraph:
    """The graph of ``config`` on ``machine``; ConfigError when its GPUs do not fit."""
    hardware = resolve_hardware(config.hardware, machine, 1)
    plain = dataclasses.asdict(config)
    gpus = {"engine": hardware.engine_gpus, "learner": hardware.learner_gpus}
    return RunGraph(
        nodes=tuple(
            Node(
                name=kind,
                kind=kind,
                config={group: plain[group] for group in groups},
                num_cpus=1.0 if kind in gpus else 0.0,
                num_gpus=gpus.get(kind, 0.0),
                replicas=1,
                placement=hardware.device if kind in gpus else "cpu",
            )
            for kind, groups in _NODES
        ),
        edges=tuple(
            Edge(source=source, target=target, carries=carries)
            for source, target, carries in _EDGES
        ),
    )
