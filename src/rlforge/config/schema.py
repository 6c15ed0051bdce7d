"""The configuration, typed: one dataclass per config group option.

Hydra composes YAML onto these classes and OmegaConf checks keys and types; below ``launch.py``
only these plain objects are seen. Field comments (``#:``) become ``docs/config.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlforge.config.algorithm import A2cConfig as A2cConfig
from rlforge.config.algorithm import AlgorithmConfig as AlgorithmConfig
from rlforge.config.algorithm import GrpoConfig as GrpoConfig
from rlforge.config.algorithm import KlConfig as KlConfig
from rlforge.config.algorithm import PpoConfig as PpoConfig
from rlforge.config.algorithm import ReinforceConfig as ReinforceConfig
from rlforge.config.algorithm import WindowGrpoConfig as WindowGrpoConfig
from rlforge.config.learner import GameLearnerConfig as GameLearnerConfig
from rlforge.config.learner import LearnerConfig as LearnerConfig
from rlforge.config.rules import Group

# ---------------------------------------------------------------- env


@dataclass
class EnvEntry(Group):
    """One environment to train or evaluate in."""

    #: TextArena id (``SimpleTak-v0-train``), OpenSpiel name (``kuhn_poker``) or market preset
    #: (``market-small``).
    id: str = "SimpleTak-v0-train"
    #: Where the game comes from: ``textarena``, ``openspiel`` or ``market``.
    source: str = "textarena"
    #: Number of seats.
    num_players: int = 2
    #: Share of training games, relative to the other environments.
    weight: float = 1.0
    #: Turns after which a game is cut and scored as a draw.
    max_turns: int = 200
    #: Seconds after which a game is given up as failed.
    timeout_s: float = 600.0
    #: Invalid moves in a row that a player may take back.
    error_allowance: int = 1
    #: Prompt template; null takes ``model.prompt_template``.
    prompt_template: str | None = None
    #: Action extraction; null takes ``model.action_extraction``.
    action_extraction: str | None = None


@dataclass
class EnvConfig(Group):
    """Which games are played (group ``env``)."""

    #: Environments that training games are drawn from, by weight.
    train: list[EnvEntry] = field(default_factory=lambda: [EnvEntry()])
    #: Environments of the evaluations; empty means those of ``env.train``.
    eval: list[EnvEntry] = field(default_factory=list)


# ---------------------------------------------------------------- model


@dataclass
class LoraConfig(Group):
    """The low-rank adapter that is trained."""

    #: Rank of the adapter matrices.
    rank: int = 32
    #: Scale: the update is alpha / rank times B A.
    alpha: int = 32
    #: Dropout in front of A.
    dropout: float = 0.0
    #: Names of the linear layers that get an adapter.
    target_modules: list[str] = field(
        default_factory=lambda: [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ]
    )


@dataclass
class ModelConfig(Group):
    """The language model that plays (group ``model``)."""

    #: ``tiny`` (for games) and ``tiny_market``, made here on first use, ``smollm2_135m`` (from a
    #: package) or ``hf``.
    kind: str = "hf"
    #: Hugging Face id or local directory; only for ``kind: hf``.
    name: str | None = None
    #: Prompt template of environments that name none.
    prompt_template: str = "chat"
    #: Action extraction of environments that name none.
    action_extraction: str = "boxed"
    #: ``auto`` (bfloat16 where the hardware is good at it), ``float32`` or ``bfloat16``.
    dtype: str = "auto"
    #: The adapter; unused with ``learner.train: full``.
    lora: LoraConfig = field(default_factory=LoraConfig)


# ---------------------------------------------------------------- engine


@dataclass
class VllmConfig(Group):
    """What only ``engine.name: vllm`` reads; the meanings are vLLM's own."""

    #: Share of the GPU's memory for weights and KV cache; null: what the memory plan says that the
    #: learner leaves, or 0.9 of the engine's share of a card where no learner is.
    gpu_memory_utilization: float | None = None
    #: GiB of the KV cache; null: what the GPU's share leaves, 1 on a CPU.
    kv_cache_gb: float | None = None
    #: Run without CUDA graphs and compilation: a faster start, slower tokens.
    enforce_eager: bool = False
    #: Keep the KV cache of prompts for later prompts that begin alike.
    enable_prefix_caching: bool = True
    #: Tokens of one step, over all sequences; null: vLLM's choice.
    max_num_batched_tokens: int | None = None


@dataclass
class EngineConfig(Group):
    """Who generates (group ``engine``)."""

    #: Engine kind: ``transformers`` or ``vllm``.
    name: str = "transformers"
    #: Number of engine actors (``num_actors`` of UnstableBaselines).
    num_engines: int = 1
    #: Sequences generated at the same time in one engine.
    max_parallel_seq: int = 128
    #: Most tokens in one answer.
    max_tokens: int = 4096
    #: Most tokens of prompt and answer together.
    max_model_len: int = 8192
    #: Policy versions resident at once (current and opponents).
    max_loras: int = 5
    #: Sampling temperature; the learner uses the same.
    temperature: float = 1.0
    #: Nucleus sampling: smallest set of tokens with this probability mass. The learner's log-probs
    #: are over all tokens.
    top_p: float = 1.0
    #: Seconds until an unanswered request counts as failed.
    request_timeout_s: float = 600.0
    #: Seconds with requests under way and no new token until the engine counts as dead.
    stuck_after_s: float = 300.0
    #: How often a dead engine is restarted before the run ends.
    max_restarts: int = 3
    #: Settings of vLLM.
    vllm: VllmConfig = field(default_factory=VllmConfig)


@dataclass
class ApiConfig(Group):
    """Opponents behind an OpenAI-compatible HTTP endpoint (``openai:MODEL``, ``openrouter:MODEL``).

    Keys come from the environment only: OPENAI_API_KEY, OPENROUTER_API_KEY.
    """

    #: Base URL for ``openai:MODEL``; null is the library's default.
    openai_base_url: str | None = None
    #: Base URL for ``openrouter:MODEL``.
    openrouter_base_url: str = "https://openrouter.ai/api/v1"
    #: Seconds until a request counts as failed.
    timeout_s: float = 60.0
    #: Tries after the first.
    max_retries: int = 2
    #: Requests under way at once.
    max_concurrency: int = 32
    #: Most tokens in one answer.
    max_tokens: int = 1024
    #: Sampling temperature.
    temperature: float = 0.7


# ---------------------------------------------------------------- pool


@dataclass
class TrueSkillConfig(Group):
    """Rating constants (Herbrich, Minka and Graepel 2006)."""

    #: Mean rating of a newcomer.
    mu: float = 25.0
    #: Uncertainty of a newcomer's rating.
    sigma: float = 8.333333333333334
    #: Skill difference that wins about 76 % of games.
    beta: float = 4.166666666666667
    #: Uncertainty added before each game.
    tau: float = 0.08333333333333333
    #: Expected share of draws.
    draw_probability: float = 0.1


@dataclass
class ExplorationConfig(Group):
    """The n-gram coverage tracker behind pool mode ``exploration`` and the dashboard."""

    #: Length of the action n-grams.
    ngram: int = 3
    #: Recent games per opponent and environment that count.
    window: int = 256


@dataclass
class PoolConfig(Group):
    """Who the learner plays against (group ``pool``)."""

    #: fixed, mirror, lagged, random, match_quality, ts_dist or exploration.
    mode: str = "mirror"
    #: Learner checkpoints kept active as opponents.
    max_active_lora: int = 5
    #: [low, high] versions behind the current one, for mode ``lagged``; 1 is the previous one.
    lag_range: list[int] = field(default_factory=lambda: [1, 4])
    #: Names: a scripted player, ``base``, ``checkpoint:DIR``, ``openai:M`` or ``openrouter:M``.
    fixed_opponents: list[str] = field(default_factory=list)
    #: Softmax temperature of match_quality, ts_dist and exploration.
    temperature: float = 1.0
    #: Rating constants.
    trueskill: TrueSkillConfig = field(default_factory=TrueSkillConfig)
    #: Coverage tracker.
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    #: Endpoints of API opponents, in pool and evaluation.
    api: ApiConfig = field(default_factory=ApiConfig)


# ---------------------------------------------------------------- rewards


@dataclass
class RewardsConfig(Group):
    """Reward transforms in order of application (group ``rewards``).

    Each entry is a mapping with ``name`` and that transform's parameters.
    """

    #: On the vector of final rewards of a game.
    final: list[dict[str, Any]] = field(default_factory=list)
    #: On each step of a trajectory.
    step: list[dict[str, Any]] = field(default_factory=list)
    #: On the batch as it is drawn.
    sampling: list[dict[str, Any]] = field(default_factory=list)


# ---------------------------------------------------------------- hardware, buffer, learner …


@dataclass
class HardwareConfig(Group):
    """The machine (group ``hardware``)."""

    #: Name of the profile.
    name: str = "auto"
    #: ``auto``, ``cpu`` or ``cuda``.
    device: str = "auto"
    #: CPU cores for Ray; null: all.
    num_cpus: int | None = None
    #: GPUs for Ray; null: all.
    num_gpus: int | None = None
    #: GPUs of each learner rank; a single rank may take a fraction of a shared card.
    learner_gpus: float = 0.0
    #: GPUs of each engine; fractions share a card, and among several vLLM divides the model.
    engine_gpus: float = 0.0
    #: Engines and one learner rank share one GPU in turns: engines sleep while the learner updates.
    #: On a CPU they take turns, too, but keep their memory.
    alternate: bool = False
    #: With ``alternate``: the learner's weights and states are on the host while engines play.
    offload_learner: bool = True
    #: Take only GPUs that no other run of rlforge has, and keep them from others until the end.
    exclusive: bool = True
    #: GiB of memory on each GPU, as its name says (24 of a 24 GB card): no more than that is used,
    #: nor more than the machine's cards have. null: what they have.
    memory_gb: float | None = None
    #: OpenMP threads in each engine and learner rank; null lets torch choose.
    threads: int | None = None
    #: Address of an existing Ray cluster (``auto`` finds a local one); null starts one.
    ray_address: str | None = None


@dataclass
class BufferConfig(Group):
    """Between collector and learner (group ``buffer``)."""

    #: ``step`` (batches of single turns) or ``episode`` (batches of whole trajectories).
    kind: str = "step"
    #: Most steps (or episodes) kept; beyond it, random ones are evicted.
    max_size: int = 768
    #: Eviction: ``random`` (uniform reservoir).
    strategy: str = "random"
    #: Most updates a sample may be behind when it is learned from; 0 is strictly on-policy. A step
    #: counts from its version, an episode from its newest turn (with 0: from its oldest).
    max_staleness: int = 1
    #: Write each batch as parquet under the run directory.
    save_batches: bool = True


@dataclass
class CollectorConfig(Group):
    """Who plays (group ``collector``)."""

    #: Training games under way at once.
    num_train_workers: int = 384
    #: Evaluation games under way at once.
    num_eval_workers: int = 16
    #: Collector processes.
    num_collectors: int = 1
    #: Do not learn from games that an opponent ended by an invalid move.
    filter_opponent_invalid: bool = False
    #: Failed games in a row that end the run.
    max_failures: int = 32
    #: How often a dead collector is restarted before the run ends.
    max_restarts: int = 3
    #: Write finished games as parquet under the run directory.
    save_games: bool = True


@dataclass
class EvalConfig(Group):
    """Measuring (group ``eval``)."""

    #: Updates between evaluations; 0: only at the start and the end.
    every: int = 20
    #: Opponents; the untrained model (``base``) is always among them.
    opponents: list[str] = field(default_factory=lambda: ["base"])
    #: Games per environment and opponent, seats swapped; even for two players.
    games: int = 128
    #: Games at the start and the end of training; null takes ``games``.
    final_games: int | None = None
    #: Cap of evaluation games per checkpoint and environment; null: none.
    max_games_per_checkpoint: int | None = None
    #: Sampling temperature; null takes ``engine.temperature``.
    temperature: float | None = None


@dataclass
class TrackerConfig(Group):
    """Where numbers go (group ``tracker``); JSONL files are always written."""

    #: Write TensorBoard events.
    tensorboard: bool = False
    #: Weights & Biases project; null: off.
    wandb_project: str | None = None
    #: W&B mode: ``online`` or ``offline``.
    wandb_mode: str = "offline"
    #: Seconds between flushes of aggregated metrics.
    flush_every_s: float = 64.0
    #: Values per key behind a rolling mean.
    window: int = 512
    #: Progress display: ``auto``, ``rich``, ``plain`` or ``off``.
    progress: str = "auto"
    #: Write report.html when the run ends.
    report: bool = True


@dataclass
class PolicyConfig(Group):
    """What all runs and services have: a policy, what it is trained with, and the machine."""

    # File in ``conf/`` that such a configuration is composed from, the command that takes it, and
    # what it describes.
    primary: ClassVar[str]
    command: ClassVar[str]
    about: ClassVar[str]

    #: Name of the experiment, and of its folder under runs/.
    name: str = "run"
    #: Seed of everything.
    seed: int = 0
    #: Run directory; null is runs/NAME/TIMESTAMP.
    run_dir: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    @property
    def total_updates(self) -> int | None:
        """Updates until the run is done; None without an end."""
        return None


@dataclass
class GamesConfig(PolicyConfig):
    """A policy, and the games it plays."""

    env: EnvConfig = field(default_factory=EnvConfig)
    pool: PoolConfig = field(default_factory=PoolConfig)
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


@dataclass
class RunConfig(GamesConfig):
    """A run that learns from games."""

    primary = "config"
    command = "train"
    about = "a run that plays games"

    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    learner: GameLearnerConfig = field(default_factory=GameLearnerConfig)

    @property
    def total_updates(self) -> int:
        """Updates until the run is done."""
        return self.learner.total_updates
