"""The configuration, typed: one dataclass per config group option.

Hydra composes YAML onto these classes and OmegaConf checks keys and types; below ``launch.py``
only these plain objects are seen. Field comments (``#:``) become ``docs/config.md``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, ClassVar, Literal

from rlforge.config.policies import Policies, policy_clashes
from rlforge.config.policies import PolicyEntry as PolicyEntry
from rlforge.config.policies import ResetConfig as ResetConfig
from rlforge.config.pool import ApiConfig as ApiConfig
from rlforge.config.pool import HfConfig as HfConfig
from rlforge.config.pool import PoolConfig as PoolConfig
from rlforge.config.prompts import PromptConfig as PromptConfig
from rlforge.config.prompts import Prompts, template_args_problem
from rlforge.config.rules import (
    Count,
    Distinct,
    FolderName,
    Group,
    Length,
    NotNegative,
    Pattern,
    Positive,
    Problem,
    Range,
    Text,
    Whole,
)
from rlforge.config.sentinel import SentinelConfig as SentinelConfig
from rlforge.config.training import A2cConfig as A2cConfig
from rlforge.config.training import AlgorithmConfig as AlgorithmConfig
from rlforge.config.training import GameLearnerConfig as GameLearnerConfig
from rlforge.config.training import GrpoConfig as GrpoConfig
from rlforge.config.training import KlConfig as KlConfig
from rlforge.config.training import LearnerConfig as LearnerConfig
from rlforge.config.training import PpoConfig as PpoConfig
from rlforge.config.training import RatioConfig as RatioConfig
from rlforge.config.training import ReinforceConfig as ReinforceConfig
from rlforge.config.training import WindowGrpoConfig as WindowGrpoConfig
from rlforge.types import Actions, SamplingParams, Winners

# ---------------------------------------------------------------- env


@dataclass
class EnvEntry(Group):
    """One environment to train or evaluate in."""

    #: TextArena id (``SimpleTak-v0-train``), OpenSpiel name (``kuhn_poker``) or market preset
    #: (``market-small``).
    id: Text = "SimpleTak-v0-train"
    #: Source of the game: ``textarena``, ``openspiel``, ``market`` or one of your own.
    source: str = "textarena"
    #: Number of seats.
    num_players: Count = 2
    #: Share of training games, relative to the other environments.
    weight: Positive = 1.0
    #: Turns after which a game is cut and scored as a draw; null: it is played to its end, for
    #: games that are over at some time whatever is played.
    max_turns: Count | None = 200
    #: Seconds after which a game is cut and scored as a draw; without a turn by then it failed.
    #: null: it is not cut, as games slow down where more of them are under way than engines have
    #: room for.
    timeout_s: Positive | None = 600.0
    #: Invalid moves in a row that a player may take back.
    error_allowance: Whole = 1
    #: Least score that is a win in a game of one player or one team, in rewards
    #: (``win_draw_loss``), metrics and evaluations. TextArena pays 1 for a solution and less for a
    #: part of it.
    win_score: float = 1.0
    #: Which of several players win: ``one``, the highest reward, and a shared one is a draw;
    #: ``team``, those who share it; ``all``, as one team, by ``win_score``. Null takes what is
    #: known of the games of TextArena and OpenSpiel, and ``one`` for any other.
    winners: Winners | None = None
    #: How the actions of OpenSpiel games are written: in ``words``, or as OpenSpiel's ``numbers``,
    #: ``[0]``, ``[1]`` …, which a model without ``[raise]`` among its tokens learns sooner.
    #: connect_four has its columns either way.
    actions: Actions = "words"
    #: Prompt template; null takes ``model.prompt_template``.
    prompt_template: str | None = None
    #: Action extraction; null takes ``model.action_extraction``.
    action_extraction: str | None = None


@dataclass
class EvalEnvEntry(EnvEntry):
    """One environment to evaluate in."""

    #: Opponents in this environment; null or empty takes ``eval.opponents``, or those of ``env``.
    opponents: list[Text] | None = None


@dataclass
class EnvConfig(Group):
    """Which games are played (group ``env``)."""

    #: Environments that training games are drawn from, by weight.
    train: Annotated[list[EnvEntry], Length(1, inf)] = field(default_factory=lambda: [EnvEntry()])
    #: Environments of the evaluations; empty means those of ``env.train``.
    eval: list[EvalEnvEntry] = field(default_factory=list)
    #: Opponents of evaluations, each in the games that it can play, unless ``eval.opponents`` names
    #: others.
    opponents: list[Text] = field(default_factory=list)
    #: What a prompt holds: the current observation (``turn``), or all turns of the player in the
    #: game, with its own answers (``conversation``).
    context: Literal["turn", "conversation"] = "turn"
    #: Where a conversation outgrows ``engine.max_model_len`` or the model's positions: ``end`` the
    #: game (reason ``context_limit``), or ``drop_oldest`` turns but the first, which has the rules,
    #: as soon as less than ``engine.max_tokens`` are left for an answer.
    overflow: Literal["end", "drop_oldest"] = "end"


# ---------------------------------------------------------------- model


ALL_LINEAR = "all-linear"
"""The ``model.lora.target_modules`` of every linear layer but the output layer."""


@dataclass
class LoraConfig(Group):
    """The low-rank adapter that is trained."""

    #: Rank of the adapter matrices.
    rank: Count = 32
    #: Scale: the update is alpha / rank times B A.
    alpha: Count = 32
    #: Rank-stabilised scale (Kalajdzievski 2023): alpha / sqrt(rank) instead.
    use_rslora: bool = False
    #: Dropout in front of A, in the passes that a gradient is taken of. The model's own dropout is
    #: always off, as in the engine.
    dropout: Annotated[float, Range(0, 1, open=")")] = 0.0
    #: The linear layers that get an adapter: ``all-linear``, all but the output layer; a list of
    #: names, or of the ends of names; or a pattern, a regular expression for whole names.
    target_modules: Text | list[Text] = ALL_LINEAR
    #: Adapt only this many of the last decoder layers; null: all. The backward pass ends there:
    #: with half of the layers an update takes about two thirds of the time. An output layer that is
    #: named in ``target_modules`` is adapted in any case.
    last_layers: Count | None = None

    def adapts(self, name: str, *, head: bool = False) -> bool:
        """Whether ``target_modules`` covers a linear layer; head: it is the output layer.

        Example:
            >>> LoraConfig().adapts("model.layers.0.mlp.up_proj")
            True
            >>> LoraConfig(target_modules=["up_proj"]).adapts("lm_head", head=True)
            False
        """
        targets = self.target_modules
        if targets == ALL_LINEAR:
            return not head
        if isinstance(targets, str):
            return re.fullmatch(targets, name) is not None
        return any(f".{name}".endswith(f".{target}") for target in targets)

    def adapted_layers(self, layers: int) -> int:
        """How many of a model's decoder layers get an adapter."""
        return layers if self.last_layers is None else min(self.last_layers, layers)

    def clashes(self) -> Iterator[Problem]:
        if isinstance(self.target_modules, str):
            try:
                re.compile(self.target_modules)
            except re.error as error:
                yield "target_modules", f"is no pattern: {error}; a list of names is in brackets"


_NO_FLOAT16 = Pattern(
    r"(?!(float16|fp16|half)$).*",
    "be bfloat16, or float32 where the hardware has none (auto chooses): small gradients vanish in "
    "float16 unless losses are scaled, which the learner does not do; an export can have it "
    "(rlforge export --dtype float16)",
)


@dataclass
class ModelConfig(Group):
    """The language model that plays (group ``model``)."""

    #: ``tiny`` (for games) and ``tiny_market``, trained on this machine at first use,
    #: ``smollm2_135m`` (from a package), ``hf``, or one of your own.
    kind: str = "hf"
    #: Hugging Face id or local directory; only for ``kind: hf``.
    name: Text | None = None
    #: Default prompt template of the environments: one of ``prompts``, or of those that
    #: ``rlforge plugins`` lists. A model without a chat template gets ``default`` in place of
    #: ``chat`` unless you choose that yourself.
    prompt_template: str = "chat"
    #: Arguments of the tokenizer's chat template, as ``{enable_thinking: false}``.
    chat_template_args: dict[str, Any] = field(default_factory=dict)
    #: Default action extraction of the environments; ``rlforge plugins`` lists them.
    action_extraction: str = "boxed"
    #: Data type of the weights; ``auto``: bfloat16 where the hardware computes in it.
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], _NO_FLOAT16] = "auto"
    #: The adapter; unused with ``learner.train: full``.
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def label(self) -> str:
        """What messages and records call it."""
        return self.name or self.kind

    @property
    def place(self) -> str:
        """The key that chose it and its value, for messages."""
        return f"model.name={self.name}" if self.name else f"model.kind={self.kind}"

    def clashes(self) -> Iterator[Problem]:
        if self.kind == "hf" and not self.name:
            yield "name", "model.kind=hf needs a name; add model.name=ORG/MODEL"
        if self.kind != "hf" and self.name:
            yield "name", f"only for model.kind=hf, not {self.kind}"
        if problem := template_args_problem(self.chat_template_args):
            yield "chat_template_args", problem


# ---------------------------------------------------------------- engine


@dataclass
class VllmConfig(Group):
    """Settings of ``engine.name: vllm``, with vLLM's own meanings."""

    #: Share of the GPU's memory for weights and KV cache. null: the memory plan gives it what the
    #: learner leaves; on a card without a learner 0.9 of the engine's share.
    gpu_memory_utilization: Annotated[float, Range(0, 1, open="(")] | None = None
    #: GiB of the KV cache; null: what the GPU's share leaves, 1 on a CPU.
    kv_cache_gb: Positive | None = None
    #: Run without CUDA graphs and compilation: a faster start, slower tokens.
    enforce_eager: bool = False
    #: Reuse the KV cache of prompts for later prompts with the same prefix.
    enable_prefix_caching: bool = True
    #: Most tokens per engine step, over all sequences; null: vLLM's choice.
    max_num_batched_tokens: Count | None = None


@dataclass
class EngineConfig(Group):
    """The engines that generate (group ``engine``)."""

    #: Engine kind: ``transformers``, ``vllm``, or ``auto``: vLLM on GPUs where it is installed, can
    #: run what is configured, and passes a trial at the start; else ``transformers``.
    name: str = "auto"
    #: Number of engine actors (``num_actors`` of UnstableBaselines).
    num_engines: Count = 1
    #: Engines without which nothing starts. The others join with nodes of a cluster
    #: (`hardware.elastic=true`), or start if a GPU is left for each, where `hardware.learner_gpus`
    #: and `hardware.engine_gpus` are 0. null: all, and 1 with `hardware.elastic=true`.
    min_engines: Count | None = None
    #: Sequences generated at the same time in one engine.
    max_parallel_seq: Count = 128
    #: Most tokens in one answer.
    max_tokens: Count = 4096
    #: Most tokens of prompt and answer together, at most what the model has positions for. A game
    #: ends as a draw (``context_limit``) where they do not hold an answer of ``max_tokens`` and the
    #: answer is cut without a legal action.
    max_model_len: Count = 8192
    #: Policy versions resident at once (current and opponents).
    max_loras: Count = 5
    #: Sampling temperature, which the learner uses too. 0 (greedy) would leave nothing to learn.
    temperature: Positive = 1.0
    #: Nucleus sampling: smallest set of tokens with this probability mass, of those that ``min_p``
    #: and ``top_k`` leave. The learner's log-probs are over all tokens.
    top_p: Annotated[float, Range(0, 1, open="(")] = 1.0
    #: Draw from this many likeliest tokens only; 0: all. As with ``top_p``, the learner's log-probs
    #: are over all tokens.
    top_k: Whole = 0
    #: Draw only tokens with at least this share of the likeliest one's probability; 0: all. As with
    #: ``top_p``, the learner's log-probs are over all tokens.
    min_p: Annotated[float, Range(0, 1, open=")")] = 0.0
    #: Tokens whose keys and values are kept between requests, at most: of the turns of
    #: conversations, and of what many prompts begin with. null: the room that running sequences
    #: leave of ``max_parallel_seq`` times ``max_model_len``, 0: none. Only for ``transformers``;
    #: vLLM has ``vllm.enable_prefix_caching``.
    cache_tokens: Whole | None = None
    #: Compute each answer as if it were alone in its batch: the same to the last bit, whatever is
    #: generated beside it. `determinism=strict` sets it. Only for ``transformers``.
    batch_invariant: bool = False
    #: Seconds after which a request without answer counts as failed.
    request_timeout_s: Positive = 600.0
    #: How often a dead engine is restarted before the run ends; the loss of its node counts too.
    max_restarts: Whole = 3
    #: Settings of vLLM.
    vllm: VllmConfig = field(default_factory=VllmConfig)

    def clashes(self) -> Iterator[Problem]:
        if self.min_engines is not None and self.min_engines > self.num_engines:
            yield "min_engines", f"must be engine.num_engines={self.num_engines} or less"
        if self.batch_invariant and self.name not in ("auto", "transformers"):
            yield "batch_invariant", f"{self.name} has no such mode; set engine=transformers"

    @property
    def prompt_room(self) -> int:
        """Tokens of the longest prompt that an answer of ``max_tokens`` can follow."""
        return self.max_model_len - self.max_tokens

    def sampling(
        self,
        stop_token_ids: Sequence[int],
        *,
        temperature: float | None = None,
        seed: int | None = None,
        conversation: int | None = None,
    ) -> SamplingParams:
        """How answers are drawn; temperature: None takes the configured one."""
        return SamplingParams(
            temperature=self.temperature if temperature is None else temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(stop_token_ids),
            seed=seed,
            conversation=conversation,
        )


# ---------------------------------------------------------------- rewards


@dataclass
class RewardsConfig(Group):
    """Reward transforms in order of application (group ``rewards``).

    Each entry is a mapping with ``name`` and that transform's parameters.
    """

    #: On the vector of final rewards of a game.
    final: list[dict[str, Any]] = field(default_factory=list)
    #: On each turn of an episode.
    step: list[dict[str, Any]] = field(default_factory=list)
    #: On each batch drawn from the buffer.
    sampling: list[dict[str, Any]] = field(default_factory=list)


# ---------------------------------------------------------------- hardware, buffer, learner …


@dataclass
class HardwareConfig(Group):
    """The machine (group ``hardware``)."""

    #: Name of the profile.
    name: str = "auto"
    #: Device of engines and learner; ``auto``: CUDA where there is a GPU.
    device: Literal["auto", "cpu", "cuda"] = "auto"
    #: CPU cores for Ray; null: all.
    num_cpus: Count | None = None
    #: GPUs for Ray; null: all.
    num_gpus: Whole | None = None
    #: GPUs of each learner rank; a single rank may take a fraction of a shared card.
    learner_gpus: NotNegative = 0.0
    #: GPUs of each engine; fractions share a card, and among several vLLM divides the model.
    engine_gpus: NotNegative = 0.0
    #: Engines and one learner rank use one GPU in turns: engines sleep while the learner updates.
    #: On a CPU they also take turns, but keep their memory.
    alternate: bool = False
    #: With ``alternate``: move weights and optimizer state of the learner to the host while the
    #: engines generate.
    offload_learner: bool = True
    #: Use only GPUs that no other run of rlforge uses, and reserve them until the run ends.
    exclusive: bool = True
    #: GiB of memory to use on each GPU, at most what it has (24 for a 24 GB card); null: all.
    memory_gb: Positive | None = None
    #: OpenMP threads in each engine and learner rank; null lets torch choose.
    threads: Count | None = None
    #: Address of an existing Ray cluster (``auto`` finds a local one); null starts one.
    ray_address: str | None = None
    #: Use nodes of a cluster that join while the run lasts, and go on without those that leave.
    #: `engine.num_engines` and `collector.num_collectors` are the most that run.
    elastic: bool = False

    def clashes(self) -> Iterator[Problem]:
        if self.elastic and self.ray_address is None:
            yield "elastic", "is for a cluster, whose nodes come and go; set hardware.ray_address"
        if self.elastic and self.alternate:
            yield (
                "elastic",
                "would have each update wait for absent engines to sleep; set "
                "hardware.alternate=false",
            )


@dataclass
class BufferConfig(Group):
    """Samples between collector and learner (group ``buffer``)."""

    #: Samples of the buffer: single turns (``step``) or whole episodes (``episode``).
    kind: Literal["step", "episode"] = "step"
    #: Most samples kept; beyond it, random ones are evicted.
    max_size: Count = 768
    #: Eviction: ``random``, uniformly among the samples in the buffer, old and new.
    strategy: Literal["random"] = "random"
    #: Most updates between the version that played the newest turn of a game (or group) and the
    #: version that is trained; all of a game or none is dropped beyond. 0 is strictly on-policy: an
    #: update waits for the games in progress, and no turn is older.
    max_staleness: Whole = 2
    #: The same bound for the oldest turn of a game, whose first turns are as much older as it
    #: lasts. ``auto``: half as much again as games last that are as long as all but 2 % of the
    #: samples' (games in progress, times samples of the game, by ``learner.batch_size``).
    max_age: Count | Literal["auto"] = "auto"
    #: Write each batch under the run directory.
    save_batches: bool = True
    #: Formats of those files: ``parquet``, which keeps all types, and ``csv``, where lists are JSON
    #: text.
    save_batches_as: Annotated[list[Literal["parquet", "csv"]], Length(1, inf), Distinct()] = field(
        default_factory=lambda: ["parquet"]
    )


@dataclass
class CollectorConfig(Group):
    """The collectors that play the games (group ``collector``)."""

    #: Most training games in progress in each collector; as many are, unless fewer keep the learner
    #: busy. W games of l samples each give turns a mean age of W · l / (2 · ``learner.batch_size``)
    #: updates. ``auto``: as many as give an age of one update, at most the sequences that the
    #: engines generate at once.
    num_train_workers: Count | Literal["auto"] = "auto"
    #: Evaluation games under way at once.
    num_eval_workers: Count = 16
    #: Collector processes.
    num_collectors: Count = 1
    #: Collectors without which a run does not start, with `hardware.elastic=true`.
    min_collectors: Count = 1
    #: Trained seats of a game that are learned from: ``all``, or ``one``, drawn at random. Where
    #: only one is trained, as against opponents, both are the same; in self-play ``one`` leaves
    #: half of the samples, of which no two groups are of one game.
    learned_seats: Literal["all", "one"] = "all"
    #: Of a game that a player ended by an invalid move, learn from that player's turns only: in
    #: self-play the other seats' are dropped, and the whole game where an opponent forfeited.
    filter_opponent_invalid: bool = False
    #: How often a dead collector is restarted before the run ends; the loss of its node counts too.
    max_restarts: Whole = 3
    #: Write finished games as parquet under the run directory.
    save_games: bool = True

    @property
    def most_games(self) -> int:
        """Most training games that one collector plays at once."""
        return sys.maxsize if self.num_train_workers == "auto" else self.num_train_workers

    def clashes(self) -> Iterator[Problem]:
        if self.min_collectors > self.num_collectors:
            yield (
                "min_collectors",
                f"must be collector.num_collectors={self.num_collectors} or less",
            )


@dataclass
class EvalConfig(Group):
    """Evaluation games (group ``eval``)."""

    #: Updates between evaluations, each of the newest saved version; 0: only at the start and the
    #: end.
    every: Whole = 20
    #: Instead of every ``eval.every`` updates, evaluate all the time:
    #: ``collector.num_eval_workers`` games of the newest version are under way, against the
    #: opponents in turn, up to ``eval.max_games_per_checkpoint``.
    continuous: bool = False
    #: Opponents, of which the untrained model (``base``) is one, see ``base``. null takes
    #: ``env.opponents``, which belong to the games. An entry of ``env.eval`` may have its own.
    opponents: list[Text] | None = None
    #: Meet the untrained model (``base``) beside the opponents that are named.
    base: bool = True
    #: Games per environment and opponent, seats swapped; even for two players. With
    #: ``eval.continuous`` only at the start and the end.
    games: Count = 128
    #: Games at the start and the end of training; null takes ``games``.
    final_games: Count | None = None
    #: Cap of evaluation games per version and environment; null: none, with ``eval.continuous`` 32,
    #: or more where one game per seat against each opponent needs them.
    max_games_per_checkpoint: Count | None = None
    #: Sampling temperature; null takes ``engine.temperature``.
    temperature: NotNegative | None = None
    #: At each evaluation also measure, exactly, how far the version is from an equilibrium of the
    #: evaluation environments: games of OpenSpiel with few states (``rlforge exploit``).
    exploitability: bool = False

    def clashes(self) -> Iterator[Problem]:
        if self.exploitability and self.continuous:
            yield (
                "exploitability",
                "is measured every eval.every updates; set eval.continuous=false",
            )
        if self.exploitability and self.temperature is not None:
            yield (
                "exploitability",
                "is measured at engine.temperature, by the learner; leave eval.temperature null",
            )


@dataclass
class TrackerConfig(Group):
    """Metrics and progress (group ``tracker``); JSONL files are always written."""

    #: Write TensorBoard events.
    tensorboard: bool = False
    #: Weights & Biases project; null: off.
    wandb_project: Text | None = None
    #: W&B mode.
    wandb_mode: Literal["online", "offline"] = "offline"
    #: Group of the run in W&B; null: the folder of its sweep.
    group: Text | None = None
    #: Tags of the run in W&B.
    tags: list[Text] = field(default_factory=list)
    #: Versions of the policy that W&B and further sinks with a method `adapter` get at the end:
    #: none, the newest, or all in `checkpoints/`.
    adapters: Literal["off", "last", "all"] = "off"
    #: Further sinks of metrics, each a mapping with ``name`` and that sink's parameters.
    sinks: list[dict[str, Any]] = field(default_factory=list)
    #: Seconds between points of what has no update of its own, such as the load of the engines.
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
    """What all runs and services have: a policy, what it is trained with, and the machine."""

    # Name of its ``rlforge.kinds.RunKind``, the file in ``conf/`` that it is composed from, the
    # command that takes it, and what it describes.
    kind: ClassVar[str]
    primary: ClassVar[str]
    command: ClassVar[str]
    about: ClassVar[str]

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

    @property
    def total_updates(self) -> int | None:
        """Updates until the run is done; None without an end."""
        return None

    @property
    def games(self) -> GamesConfig | None:
        """The configuration, where it names games; else None."""
        return None

    @property
    def max_staleness(self) -> int | None:
        """Most updates between the version that sampled and the one that is trained.

        None: there is no bound.
        """
        return 0

    @property
    def eval_temperature(self) -> float:
        """The sampling temperature in games that measure."""
        return self.engine.temperature

    @property
    def batch_invariant(self) -> bool:
        """Whether engines compute each answer as if it were alone in its batch."""
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

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
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
        """``eval.temperature``, or the temperature of training games."""
        own = self.eval.temperature
        return self.engine.temperature if own is None else own


@dataclass
class RunConfig(GamesConfig):
    """A run that learns from games."""

    primary = "config"
    command = "train"

    #: ``strict``: two runs of one configuration and seed on one machine give the same games and
    #: weights to the last bit, also when killed and resumed. Games are then played in rounds.
    #: ``fast``: games are played whenever there is room for them, and timing decides which.
    determinism: Literal["fast", "strict"] = "fast"
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    learner: GameLearnerConfig = field(default_factory=GameLearnerConfig)
    sentinel: SentinelConfig = field(default_factory=SentinelConfig)
    #: Several policies instead of one, by name: adapters of one base model that take turns in the
    #: learner. The first is evaluated, and played where none is named.
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
        """What cannot be the same again."""
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
        """Updates until the run is done, of all policies together."""
        return self.learner.total_updates
