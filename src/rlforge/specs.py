"""The run graph as data: the parts of a run, what each needs, and what it hands to the others.

``rlforge.training.graph`` makes it from a configuration, ``rlforge graph`` prints it, and
``rlforge.actors.cluster`` starts exactly the actors in it. Knows neither Ray nor torch.
"""

from __future__ import annotations

from typing import Any

from rlforge.types import value


@value
class ActorSpec:
    """One part of a run: an actor with its replicas, or a part of the run's own process.

    actor: the class, as ``package.module:Class``; None: a part of the run's own process, the
    driver. config: the configuration groups it reads. num_cpus, num_gpus: of each replica.
    placement: the device it computes on. restarts: how often Ray restarts each replica.
    least: replicas without which the run does not start; the others are placed when a node has
    room for them. None: all, at once.
    concurrency: calls that a replica serves at once; None: Ray's default.
    sends: (target, what is handed over).

    placement_group: parts with the same one get their CPU cores and GPUs together, on as few nodes
    as possible, and keep them while they are restarted; with ``least`` each replica gets its own
    alone. None: nothing is reserved. on_driver_node:
    it reads and writes the run directory, which is there, and is not moved. replicas_key:
    the configuration key that sets ``replicas``. loads_alone: it shares a card with others, so it
    loads its model while none of them does.
    """

    name: str
    actor: str | None
    config: dict[str, Any]
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    replicas: int = 1
    least: int | None = None
    placement: str = "cpu"
    restarts: int = 0
    concurrency: int | None = None
    placement_group: str | None = None
    on_driver_node: bool = False
    replicas_key: str = ""
    loads_alone: bool = False
    sends: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> str:
        """Of replicas, for people: ``2``, or ``1 to 2`` where the run starts with one."""
        fixed = self.least in (None, self.replicas)
        return str(self.replicas) if fixed else f"{self.least} to {self.replicas}"

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The name of each replica among Ray's actors; none for a part of the driver.

        Engines and collectors have numbers. Of the others the first replica has the plain name.
        """
        if self.actor is None:
            return ()
        numbered = self.name in ("engine", "collector")
        return tuple(
            f"{self.name}-{index}" if index or numbered else self.name
            for index in range(self.replicas)
        )


@value
class Edge:
    """``source`` hands ``carries`` to ``target``."""

    source: str
    target: str
    carries: str


@value
class RunGraph:
    """All parts of a run, in the order in which they start.

    Example:
        >>> engine = ActorSpec(name="engine", actor="a.b:C", config={}, num_cpus=1.0, replicas=2)
        >>> graph = RunGraph(nodes=(engine,))
        >>> graph.actor_names, graph.num_cpus
        (('engine-0', 'engine-1'), 2.0)
    """

    nodes: tuple[ActorSpec, ...]

    def node(self, name: str) -> ActorSpec:
        """The part of this name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def edges(self) -> tuple[Edge, ...]:
        """What the parts hand to each other."""
        return tuple(
            Edge(source=node.name, target=target, carries=carries)
            for node in self.nodes
            for target, carries in node.sends
        )

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The names of all actors."""
        return tuple(name for node in self.nodes for name in node.actor_names)

    @property
    def num_cpus(self) -> float:
        """CPU cores that all replicas ask for."""
        return sum(node.num_cpus * node.replicas for node in self.nodes)

    @property
    def num_gpus(self) -> float:
        """GPUs that all replicas ask for."""
        return sum(node.num_gpus * node.replicas for node in self.nodes)
