"""Configurations of whole runs, and groups that all share.

Field comments (``#:``) become ``docs/config.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from rlforge.config.engine import EngineConfig
from rlforge.config.games import BufferConfig, CollectorConfig, EnvConfig, EvalConfig, RewardsConfig
from rlforge.config.model import ModelConfig
from rlforge.config.plugins import SIGNALS
from rlforge.config.policies import Policies, policy_clashes
from rlforge.config.pool import ApiSettings, HfSettings, PoolConfig
from rlforge.config.prompts import Prompts
from rlforge.config.rules import (
    Count,
    FolderName,
    Group,
    LeftOut,
    NotNegative,
    Number,
    Positive,
    Problem,
    Range,
    Text,
    Whole,
)
from rlforge.config.sentinel import SentinelConfig
from rlforge.config.training import AlgorithmConfig, GameLearnerConfig, LearnerConfig


@dataclass
class HardwareConfig(Group):
    """The machine (group ``hardware``)."""

    #: Name of the profile.
    name: str = "auto"
    #: Device of engines and learner; ``auto``: CUDA where there is a GPU.
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        LeftOut("mps xpu tpu", "be cpu or cuda (ROCm counts as cuda): others are not tried"),
    ] = "auto"
    #: CPU cores for Ray; null: all.
    num_cpus: Count | None = None
    #: GPUs for Ray; null: all.
    num_gpus: Whole | None = None
    #: GPUs of each learner rank; a single rank may share a card.
    learner_gpus: NotNegative = 0.0
    #: GPUs of each engine: a share of a card, or several, among which vLLM divides the model.
    engine_gpus: NotNegative = 0.0
    #: Engines and one learner rank use one GPU in turns. On a CPU they keep their memory.
    alternate: bool = False
    #: With ``alternate``: move the learner's weights and optimizer state to the host meanwhile.
    offload_learner: bool = True
    #: Use only GPUs that no other run of rlforge uses, and reserve them until the run ends.
    exclusive: bool = True
    #: GiB of memory to use on each GPU; null: all.
    memory_gb: Positive | None = None
    #: OpenMP threads in each engine and learner rank; null lets torch choose.
    threads: Count | None = None
    #: Address of an existing Ray cluster (``auto`` finds a local one); null starts one.
    ray_address: str | None = None
    #: Use nodes of a cluster that join during the run, and go on without those that leave.
    #: `engine.num_engines` and `collector.num_collectors` are the most that run.
    elastic: bool = False
    #: Signal by which a scheduler says that the time of a job is nearly over, such as Slurm's
    #: `--signal=B:USR1@120`: the run saves its state and ends, as at SIGTERM. null: none.
    warning_signal: Literal["USR1", "USR2"] | None = "USR1"

    def clashes(self) -> Iterator[Problem]:
        if self.elastic and self.ray_address is None:
            yield "elastic", "is for a cluster, whose nodes come and go; set hardware.ray_address"
        if self.elastic and self.alternate:
            yield (
                "elastic",
                "would have each update wait for absent engines to sleep; set "
                "hardware.alternate=false",
            )
        if self.device != "cpu" and self.engine_gpus > 1 and self.engine_gpus % 1:
            yield "engine_gpus", "an engine takes a share of one GPU, or several whole ones"


@dataclass
class TrackerConfig(Group):
    """Metrics and progress (group ``tracker``); JSONL files are always written."""

    #: Write TensorBoard events.
    tensorboard: bool = False
    #: Weights & Biases project; null: off.
    wandb_project: Text | None = None
    #: W&B mode.
    wandb_mode: Annotated[
        Literal["online", "offline"],
        LeftOut("disabled", "be online or offline; without tracker.wandb_project W&B is off"),
    ] = "offline"
    #: Group of the run in W&B; null: the folder of its sweep.
    group: Text | None = None
    #: Tags of the run in W&B.
    tags: list[Text] = field(default_factory=list)
    #: Versions that W&B and further sinks with a method `adapter` get at the end: none, the newest,
    #: or all in `checkpoints/`.
    adapters: Literal["off", "last", "all"] = "off"
    #: Further sinks of metrics: mappings with ``name`` and parameters.
    sinks: list[dict[str, Any]] = field(default_factory=list)
    #: Seconds between points without an update of their own, such as the load of engines.
    flush_every_s: Positive = 64.0
    #: Values per key in a rolling mean.
    window: Count = 512
    #: Progress display; ``auto``: ``rich`` in a terminal, one frame in a notebook, else ``plain``.
    progress: Literal["auto", "rich", "plain", "off"] = "auto"
    #: Write report.html when the run ends.
    report: bool = True

    def clashes(self) -> Iterator[Problem]:
        if self.adapters != "off" and not (self.wandb_project or self.sinks):
            yield (
                "adapters",
                f"{self.adapters} needs a sink that takes them; set tracker.wandb_project or "
                "tracker.sinks",
            )


@dataclass
class PolicyConfig(Group):
    """The common part of runs and services: a policy, its training, and the machine."""

    # Name of its RunKind, file in ``conf/``, command, and description.
    kind: ClassVar[str]
    primary: ClassVar[str]
    command: ClassVar[str]
    about: ClassVar[str]
    # Group with the settings of other models that the run meets, ``api`` and ``hf``.
    others: ClassVar[str] = "pool"
    # Whether versions are evaluated, so that one of them is the best.
    evaluates: ClassVar[bool] = False

    #: Name of the experiment, and of its folder under runs/.
    name: FolderName = "run"
    #: Seed of everything.
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    #: Run directory; null is runs/NAME/TIMESTAMP.
    run_dir: str | None = None
    #: Prompt templates, by the names that choose them.
    prompts: Prompts = field(default_factory=dict)
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    def clashes(self) -> Iterator[Problem]:
        kl = self.algorithm.kl
        if kl.to == "average" and kl.coef > 0 and self.learner.average == "off":
            yield "algorithm.kl.to", "average needs one; set learner.average=moving"
        if self.learner.result == "best" and not self.evaluates:
            yield ("learner.result", f"best needs evaluations, and {self.about} has none")
        hardware, learner, ranks = self.hardware, self.learner, self.learner.num_learners
        single = learner.gradient_accumulation_steps is None
        single = single and learner.epochs * learner.optimizer_steps == 1
        if kl.to == "previous" and kl.coef > 0 and single:
            yield (
                "algorithm.kl.to",
                "an update of a single optimizer step has not moved from the previous policy when "
                "its penalty is taken; raise learner.epochs, or use algorithm.kl.to=base",
            )
        if learner.train == "lora" and not self.model.lora.target_modules:
            yield "model.lora.target_modules", "names no layer to adapt"
        if hardware.engine_gpus > 1 and self.engine.name != "vllm":
            yield "hardware.engine_gpus", "only engine=vllm divides a model among several GPUs"
        divided = hardware.learner_gpus or hardware.engine_gpus or hardware.ray_address is not None
        if hardware.device != "cpu" and ranks == 1 and hardware.learner_gpus > 1:
            yield (
                "hardware.learner_gpus",
                "a rank of the learner uses one GPU; for more, learner.num_learners="
                f"{hardware.learner_gpus:g} and hardware.learner_gpus=1",
            )
        if hardware.device != "cpu" and ranks > 1 and divided and hardware.learner_gpus != 1:
            yield (
                "hardware.learner_gpus",
                "each of several learner ranks takes one GPU; set it to 1, or "
                "learner.num_learners=1",
            )

    @property
    def total_updates(self) -> int | None:
        """Updates until the run is done; None without an end."""
        return None

    @property
    def games(self) -> GamesConfig | None:
        """The configuration, where it names games; else None."""
        return None

    @property
    def other_api(self) -> ApiSettings:
        """How models behind APIs are asked; of runs that may meet some."""
        settings: ApiSettings = getattr(self, self.others).api
        return settings

    @property
    def other_hf(self) -> HfSettings:
        """How other local models are asked; of runs that may meet some."""
        settings: HfSettings = getattr(self, self.others).hf
        return settings

    @property
    def max_staleness(self) -> int | None:
        """Most updates from the version that sampled to the one that is trained; None: any."""
        return 0

    @property
    def eval_temperature(self) -> float:
        return self.engine.temperature

    @property
    def batch_invariant(self) -> bool:
        # Answers that depend on their batch would not be the same in another run.
        return self.engine.batch_invariant or self.strict

    @property
    def strict(self) -> bool:
        """Whether the run, made again, gives the same to the last bit."""
        return False


@dataclass
class GamesConfig(PolicyConfig):
    """A policy, and the games it plays."""

    kind = "games"
    about = "a run that plays games"

    env: EnvConfig = field(default_factory=EnvConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    #: Thresholds of signals by name, in place of their own; null: never. A signal says that the run
    #: learns little or nothing, and why; see docs/signals.md. ``package.module:Thing`` adds one.
    signals: dict[str, Number | None] = field(default_factory=dict)
    #: ``stop``: end the run, with exit code 1, once two batches, or as many games without one, say
    #: that it learns nothing and that this cannot change.
    on_no_signal: Literal["warn", "stop"] = "warn"

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        for name in self.signals:
            if problem := SIGNALS.problem(name):
                yield f"signals.{name}", problem
        env, engine = self.env, self.engine
        drops = env.context == "conversation" and env.overflow == "drop_oldest"
        if drops and engine.prompt_room < 1:
            yield (
                "engine.max_tokens",
                "leaves no room for a prompt, to which env.overflow=drop_oldest would shorten "
                f"conversations: engine.max_model_len={engine.max_model_len} holds both; lower the "
                "one or raise the other",
            )
        large = [entry for entry in env.train if entry.num_players > 2]
        if large and self.pool.mode in ("nash", "alpha_rank"):
            yield (
                "pool.mode",
                f"takes all games for zero-sum games of two, and {large[0].id} has "
                f"{large[0].num_players} players; set pool.mode=prioritized, or another mode",
            )

    @property
    def games(self) -> GamesConfig | None:
        return self

    @property
    def eval_temperature(self) -> float:
        # Not ``or``: at 0 evaluations take the likeliest token.
        own = self.eval.temperature
        return self.engine.temperature if own is None else own


@dataclass
class RunConfig(GamesConfig):
    """A run that learns from games."""

    primary = "config"
    command = "train"
    evaluates = True

    #: ``strict``: the same configuration and seed on one machine give the same games and weights to
    #: the last bit, also when killed and resumed; games are played in rounds. ``fast``: games are
    #: played where there is room, and timing decides which.
    determinism: Literal["fast", "strict"] = "fast"
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    learner: GameLearnerConfig = field(default_factory=GameLearnerConfig)
    sentinel: SentinelConfig = field(default_factory=SentinelConfig)
    #: Several policies by name: adapters of one base model that take turns in the learner. The
    #: first is evaluated, and played where none is named.
    policies: Policies = field(default_factory=dict)

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.policies:
            yield from self._policy_clashes()
        if self.strict:
            yield from self._strict_clashes()
        actions, kl = self.sentinel.actions, self.algorithm.kl
        if "rollback" in actions and self.learner.train == "full":
            yield (
                "sentinel.actions",
                "rollback loads an adapter, and learner.train=full has none; leave it out",
            )
        if "magnet" in actions and (kl.to != "snapshot" or kl.coef == 0):
            yield "sentinel.actions", "magnet needs algorithm.kl.to=snapshot, as algorithm=nash_pg"
        if "opponents" in actions and self.pool.max_active_lora < 2:
            yield (
                "sentinel.actions",
                "opponents from the past need versions to be kept; raise pool.max_active_lora",
            )

    @property
    def max_staleness(self) -> int:
        return self.buffer.max_staleness

    @property
    def strict(self) -> bool:
        return self.determinism == "strict"

    def _strict_clashes(self) -> Iterator[Problem]:
        fast = "or set determinism=fast"
        if self.engine.name not in ("auto", "transformers"):
            yield (
                "engine.name",
                f"{self.engine.name}: answers may depend on what is generated beside them, which "
                f"determinism=strict excludes; set engine=transformers, {fast}",
            )
        if self.hardware.elastic:
            yield (
                "hardware.elastic",
                "lets the coming and going of nodes decide which games are played; set it to "
                f"false, {fast}",
            )
        if self.eval.continuous:
            yield (
                "eval.continuous",
                f"plays as many games as time allows; set it to false and eval.every, {fast}",
            )
        if self.learner.shard_weights:
            yield (
                "learner.shard_weights",
                f"sums the parts of several processes as they come; set it to false, {fast}",
            )

    def _policy_clashes(self) -> Iterator[Problem]:
        # Exploitability is measured of the first policy.
        first, *_ = self.policies.values()
        if self.learner.train == "full":
            yield "learner.train", "policies are adapters of one model; set learner.train=lora"
        if self.learner.save_every > 1:
            yield (
                "learner.save_every",
                "counts the updates of all policies, and each publishes its own; set it to 1",
            )
        if self.eval.exploitability and first.seats is not None:
            yield (
                "eval.exploitability",
                "is that of one policy at every seat, and the first of policies does not take "
                "each; leave it out",
            )
        players = {env.id: env.num_players for env in self.env.train}
        yield from policy_clashes(self.policies, players, self.pool.fixed_opponents)

    @property
    def total_updates(self) -> int:
        return self.learner.total_updates
