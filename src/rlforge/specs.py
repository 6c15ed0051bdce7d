"""The parts of a run as data: what each needs, and what it hands to the others.

A ``RunKind`` lists them, a ``RunPlan`` holds them, and ``rlforge.run.actors.cluster`` starts them.
"""

from __future__ import annotations

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.types import value


@value
class ActorSpec:
    """One part of a run: an actor with its replicas, or a part of the run's own process.

    Attributes:
        actor: ``package.module:Class``; None: a part of the driver, the run's own process.
        reads: Groups of the configuration.
        num_cpus, num_gpus: Resources of each replica.
        placement: Device.
        restarts: How often Ray restarts each replica.
        least: Replicas without which the run does not start; others are placed when a node has
            room. None: all.
        concurrency: Calls that a replica serves at once; None: Ray's default.
        sends: (target, what is handed over).
        placement_group: Parts of one get cores and GPUs together, on as few nodes as possible, and
            keep them over restarts; with ``least`` each replica alone. None: none is reserved.
        on_driver_node: It needs the run directory, which is there.
        replicas_key: The key that sets ``replicas``.
        host: The process that it shares with others; empty: its own.
        loads_alone: It loads its model while none of the others on its card does.
    """

    name: str
    actor: str | None
    reads: tuple[str, ...] = ()
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
    host: str = ""
    loads_alone: bool = False
    sends: tuple[tuple[str, str], ...] = ()

    @property
    def number(self) -> str:
        """Number of replicas, as ``2``, or ``1 to 2`` where others may follow."""
        fixed = self.least in (None, self.replicas)
        return str(self.replicas) if fixed else f"{self.least} to {self.replicas}"

    @property
    def actor_names(self) -> tuple[str, ...]:
        """The names of the replicas among Ray's actors."""
        if self.actor is None:
            return ()
        # Of other parts the first replica has the plain name.
        numbered = self.name in ("engine", "collector")
        return tuple(
            f"{self.name}-{index}" if index or numbered else self.name
            for index in range(self.replicas)
        )


def tracker_node(actor: str = "rlforge.run.actors.state:TrackerActor") -> ActorSpec:
    # It writes into the run directory, which is on the driver's node.
    return ActorSpec(name="tracker", actor=actor, reads=("tracker",), on_driver_node=True)


def learner_node(
    config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]
) -> ActorSpec:
    """The ranks of the learner."""
    return ActorSpec(
        name="learner",
        actor="rlforge.run.actors.learner:LearnerActor",
        reads=("learner", "algorithm", "model"),
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
    """The engines."""
    return ActorSpec(
        name="engine",
        actor="rlforge.run.actors.engine:EngineActor",
        reads=("engine", "model"),
        num_cpus=1.0,
        num_gpus=hardware.engine_gpus,
        replicas=config.engine.num_engines,
        least=(config.engine.min_engines or 1) if hardware.elastic else None,
        replicas_key="engine.num_engines",
        placement=hardware.device,
        restarts=config.engine.max_restarts,
        # Each game that waits for an answer holds one call.
        concurrency=1000,
        placement_group="rollout",
        loads_alone=_shared(hardware),
        sends=sends,
    )


def _shared(hardware: HardwareConfig) -> bool:
    """Whether an engine shares its card, with the learner or with other engines."""
    return hardware.alternate or 0 < hardware.engine_gpus < 1
