"""The parts of a run as data: what each needs, and what it hands to the others.

A ``rlforge.kinds.RunKind`` lists those of its runs, a ``rlforge.preflight.plan.RunPlan`` holds
them, and ``rlforge.run.actors.cluster`` starts exactly these. Knows neither Ray nor torch.
"""

from __future__ import annotations

from rlforge.config.schema import HardwareConfig, PolicyConfig
from rlforge.types import value


@value
class ActorSpec:
    """One part of a run: an actor with its replicas, or a part of the run's own process.

    Attributes:
        actor: The class, as ``package.module:Class``; None: a part of the run's own process, the
            driver.
        reads: Groups of the configuration.
        num_cpus, num_gpus: CPU cores and GPUs of each replica.
        placement: The device it computes on.
        restarts: How often Ray restarts each replica.
        least: Replicas without which the run does not start; the others are placed when a node has
            room for them. None: all, at once.
        concurrency: Calls that a replica serves at once; None: Ray's default.
        sends: (target, what is handed over).
        placement_group: Parts with the same one get their CPU cores and GPUs together, on as few
            nodes as possible, and keep them while they are restarted; with ``least`` each replica
            gets its own alone. None: nothing is reserved.
        on_driver_node: It reads and writes the run directory, which is there, and is not moved.
        replicas_key: The configuration key that sets ``replicas``.
        host: The process that it shares with others; empty: one of its own.
        loads_alone: It shares a card with others, so it loads its model while none of them does.
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
        """Number of replicas in words: ``2``, or ``1 to 2`` where the run starts with one."""
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


def tracker_node(actor: str = "rlforge.run.actors.state:TrackerActor") -> ActorSpec:
    """The tracker; actor: where its class is."""
    return ActorSpec(name="tracker", actor=actor, reads=("tracker",), on_driver_node=True)


def learner_node(
    config: PolicyConfig, hardware: HardwareConfig, *sends: tuple[str, str]
) -> ActorSpec:
    """The ranks of the learner. sends: target, and what is handed over."""
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
    """The engines. sends: as of ``learner_node``."""
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
        concurrency=1000,
        placement_group="rollout",
        loads_alone=_shared(hardware),
        sends=sends,
    )


def _shared(hardware: HardwareConfig) -> bool:
    """Whether an engine shares its card, with the learner or with other engines."""
    return hardware.alternate or 0 < hardware.engine_gpus < 1
