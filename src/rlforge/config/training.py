"""How a policy is updated: settings of the learner and of each algorithm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from rlforge.config.plugins import ALGORITHMS
from rlforge.config.rules import (
    Beta,
    Count,
    Group,
    Length,
    NotNegative,
    Part,
    Positive,
    Problem,
    Range,
    Share,
    Text,
    Whole,
    hints,
)
from rlforge.errors import ConfigError


@dataclass
class LearnerConfig(Group):
    """How the policy is updated (group ``learner``)."""

    #: Train a low-rank adapter (``lora``) or all weights (``full``).
    train: Literal["lora", "full"] = "lora"
    #: Most turns per forward pass; gradients accumulate over the batch. null: only
    #: ``micro_batch_tokens`` limits a pass.
    mini_batch_size: Count | None = None
    #: Most tokens per forward pass, padding included; a longer turn is a pass of its own.
    micro_batch_tokens: Count = 4096
    #: Compute what turns of a pass begin with alike only once, up to all of their prompt and
    #: answer; where sequences are padded, only turns that are alike in all the model reads.
    share_prefixes: bool = True
    #: Concatenate sequences instead of padding them. ``auto``: on GPUs with a variable-length
    #: attention kernel; elsewhere if turns average 64 tokens or more. Models with anything but
    #: plain causal attention (soft caps, sinks, sliding windows, position bias), or that compute
    #: other log-probs for a few packed rows when they are loaded, are always padded.
    packing: Literal["auto", "on", "off"] = "auto"
    #: Compute logits in float32 where the model computes in bfloat16.
    fp32_head: bool = False
    #: Optimizer steps per pass over a batch.
    optimizer_steps: Count = 1
    #: Micro-batches of ``mini_batch_size`` samples per optimizer step. The number of optimizer
    #: steps per epoch then follows from the batch's size. null: use ``optimizer_steps``.
    gradient_accumulation_steps: Count | None = None
    #: Passes over each batch.
    epochs: Count = 1
    #: AdamW learning rate.
    learning_rate: Positive = 1e-5
    #: Learning-rate schedule after warm-up.
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    #: Updates of linear warm-up.
    warmup_updates: Whole = 0
    #: Learning rate at the end of linear and cosine, relative to the start.
    final_lr_ratio: NotNegative = 0.0
    #: AdamW weight decay.
    weight_decay: NotNegative = 0.0
    #: AdamW betas.
    betas: Annotated[list[Beta], Length(2)] = field(default_factory=lambda: [0.9, 0.999])
    #: Largest global gradient norm.
    grad_clip: Positive = 0.2
    #: Keep an average of the trained weights w over updates, saved with every version in a folder
    #: ``average``: ``moving``, w_avg <- d w_avg + (1 - d) w with d = ``average_decay``, or
    #: ``uniform``, the mean of all so far.
    average: Literal["off", "moving", "uniform"] = "off"
    #: Weight of the past in the ``moving`` average.
    average_decay: Beta = 0.95
    #: Most tokens of prompt and answer that the loss sees; null: all.
    max_train_len: Count | None = None
    #: Keep the input of each decoder layer only, and recompute the layer for the gradient.
    gradient_checkpointing: bool = False
    #: Checkpoint every module's activations.
    activation_checkpointing: bool = False
    #: Compile the decoder layers (torch.compile). It takes a minute or more at the start, and
    #: needs a C++ compiler, or Triton on GPUs; not with ``shard_weights``.
    compile: bool = False
    #: Keep the KV cache in training passes.
    use_trainer_cache: bool = False
    #: Adapter directory to start from: plain LoRA with the rank, scale and layers of
    #: ``model.lora``. A run, as of ``rlforge sft``, stands for its newest version.
    initial_adapter: Text | None = None
    #: Saved versions to keep, besides those that games, evaluations or --resume may need; null:
    #: all.
    keep_checkpoints: Whole | None = None
    #: Learner ranks: processes that share the samples of every update, divided by tokens.
    num_learners: Count = 1
    #: Shard the weights over the ranks (FSDP2) instead of keeping a copy on each.
    shard_weights: bool = False

    def clashes(self) -> Iterator[Problem]:
        passes = self.gradient_accumulation_steps
        if self.train == "full" and self.initial_adapter is not None:
            yield "initial_adapter", "needs learner.train=lora, not full"
        recomputed = self.gradient_checkpointing or self.activation_checkpointing
        if self.use_trainer_cache and recomputed:
            yield (
                "use_trainer_cache",
                "a KV cache cannot be kept while activations are recomputed; switch it off, or "
                "gradient_checkpointing and activation_checkpointing",
            )
        if self.packing == "on" and self.use_trainer_cache:
            yield "packing", "keeps no cache; set learner.use_trainer_cache=false"
        if passes is not None and self.mini_batch_size is None:
            yield (
                "gradient_accumulation_steps",
                "counts forward passes of learner.mini_batch_size steps; set that, too",
            )
        if passes is not None and self.optimizer_steps != 1:
            yield ("optimizer_steps", "follows from learner.gradient_accumulation_steps; drop one")
        if self.shard_weights and self.num_learners == 1:
            yield (
                "shard_weights",
                "divides the weights over several ranks; raise learner.num_learners, or switch it "
                "off",
            )
        if self.compile and self.use_trainer_cache:
            yield "compile", "compiled layers keep no cache; set learner.use_trainer_cache=false"
        if self.compile and self.shard_weights:
            yield (
                "compile",
                "not together with weights that are divided over ranks; set learner.compile=false "
                "or learner.shard_weights=false",
            )
        if self.compile and self.activation_checkpointing:
            yield (
                "compile",
                "modules of a compiled layer are not recomputed one by one; use "
                "learner.gradient_checkpointing instead of learner.activation_checkpointing",
            )


@dataclass
class GameLearnerConfig(LearnerConfig):
    """How the policy is updated (group ``learner``), and how often, in a run that plays games."""

    #: Updates until the run is done.
    total_updates: Count = 200
    #: Samples per update: turns, or episodes with ``buffer.kind: episode``.
    batch_size: Count = 384
    #: The learner waits for batch_size times this many samples.
    batch_delay_buffer: Annotated[float, Range(1)] = 1.0
    #: Save and register a version every this many updates.
    save_every: Count = 1
    #: Save optimizer, RNG, pool and buffer for --resume every this many updates.
    state_every: Count = 10

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.batch_size % self.optimizer_steps:
            yield "optimizer_steps", f"does not divide learner.batch_size={self.batch_size}"


ClipLow = Part
DualClip = Annotated[float, Range(1, open="(")]


@dataclass
class KlConfig(Group):
    """Penalty on the KL divergence from a reference policy."""

    #: Weight of the penalty; 0 switches it, and the reference pass, off.
    coef: NotNegative = 0.0
    #: Weight at the last update relative to the first; it changes in proportion to the updates.
    final_ratio: NotNegative = 1.0
    #: Estimator (Schulman 2020, "Approximating KL divergence").
    estimator: Literal["k1", "k2", "k3"] = "k3"
    #: Reference policy: ``base`` (the model before training), ``previous`` (the policy at the
    #: start of the update, which needs no forward pass of its own), ``snapshot`` (the policy of
    #: ``refresh_every`` updates ago or less) or ``average`` (that of ``learner.average``).
    to: Literal["base", "previous", "snapshot", "average"] = "base"
    #: Updates between refreshes of the ``snapshot``.
    refresh_every: Count = 40
    #: What the divergence is over: the ``tokens`` that were sampled, by the ``estimator``; or the
    #: ``legal`` actions, renormalised and summed instead of estimated. Of answers that are more
    #: than an action, and of games that do not list their actions, it is over the tokens.
    over: Literal["tokens", "legal"] = "tokens"


@dataclass
class AlgorithmConfig(Group):
    """Settings of every algorithm (group ``algorithm``).

    Example:
        >>> from rlforge import Count
        >>> @dataclass
        ... class BestOfConfig(AlgorithmConfig):
        ...     #: Answers to keep of each group.
        ...     best: Count = 2
        >>> list(BestOfConfig(best=0).problems())
        [('best', 'must be 1 or more')]
    """

    # Why it learns from whole games only (``buffer=episode``); empty where single turns do.
    whole_games: ClassVar[str] = ""

    #: Algorithm: ``reinforce``, ``grpo``, ``window_grpo``, ``a2c``, ``ppo``, ``supervised``
    #: (of ``rlforge sft``) or one of your own.
    name: str = "reinforce"
    #: What corrects, per token, for an engine that samples from another distribution than the
    #: learner's, with w = pi_learner / pi_engine: the weight min(w, ``importance_cap``)
    #: (``truncate``); or the weight w, and tokens with w outside [``importance_floor``,
    #: ``importance_cap``] are left out of policy loss and KL (``mask``, as IcePop).
    importance: Literal["truncate", "mask"] = "truncate"
    #: Largest importance weight; null: no correction.
    importance_cap: Positive | None = 2.0
    #: With ``importance: mask`` the smallest weight; null: 1 / ``importance_cap``.
    importance_floor: Positive | None = None
    #: Loss per token, averaged over all tokens; over each sequence and then over sequences; or
    #: summed and divided by sequences times ``max_generation_len`` (``constant``, Dr. GRPO).
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    #: Divisor of ``constant``; null takes ``engine.max_tokens``.
    max_generation_len: Count | None = None
    #: Penalty on the distance from an earlier policy.
    kl: KlConfig = field(default_factory=KlConfig)
    #: Weight of KL(pi || pi_old), which bounds an update: 1 / eta of mirror descent with the step
    #: size eta. pi_old is the policy at the start of the update; estimated and over what ``kl`` is.
    proximal_coef: NotNegative = 0.0
    #: Weight of the entropy bonus.
    entropy_coef: NotNegative = 0.0
    #: Weight of the entropy bonus at the last update relative to the first.
    entropy_final_ratio: NotNegative = 1.0
    #: What the entropy is of: the next token over the whole ``vocabulary``, or the ``legal``
    #: actions, as in ``kl.over``.
    entropy_over: Literal["vocabulary", "legal"] = "vocabulary"

    @classmethod
    def variant(cls, value: Any) -> type[AlgorithmConfig]:
        """The class of the algorithm that a mapping names; that of a configuration."""
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(name, str) and ALGORITHMS.problem(name) is None:
            return algorithm_config(name)
        return super().variant(value)

    @property
    def over_legal(self) -> bool:
        """Whether the loss reads which tokens lead to legal actions."""
        penalised = self.kl.coef > 0 or self.proximal_coef > 0
        return (self.kl.over == "legal" and penalised) or (
            self.entropy_over == "legal" and self.entropy_coef > 0
        )

    @property
    def replaced_batches(self) -> float:
        """Most episodes without advantage that are replaced for an update, in batches."""
        return 0.0

    @property
    def masked_below(self) -> float | None:
        """Importance weight below which tokens are masked; None where weights are truncated."""
        if self.importance == "truncate" or self.importance_cap is None:
            return None
        return self.importance_floor or 1.0 / self.importance_cap

    def clashes(self) -> Iterator[Problem]:
        cap, floor = self.importance_cap, self.importance_floor
        if self.importance == "truncate" and floor is not None:
            yield "importance_floor", "only masks tokens; set algorithm.importance=mask"
        if self.importance == "mask" and (cap is None or cap <= 1):
            yield "importance_cap", "must be above 1 with algorithm.importance=mask, as 2"
        if floor is not None and floor >= 1:
            yield "importance_floor", "must be below 1, the weight where both agree"
        if (problem := ALGORITHMS.problem(self.name)) is not None:
            yield "name", problem
        elif set(hints(algorithm_config(self.name))) != set(hints(type(self))):
            yield "name", f"needs settings of its own; choose them with algorithm={self.name}"


@dataclass
class ReinforceConfig(AlgorithmConfig):
    """REINFORCE (Williams 1992): the shaped reward is the advantage."""

    name: str = "reinforce"


@dataclass
class SupervisedConfig(AlgorithmConfig):
    """Cross-entropy of given answers: the loss of supervised fine-tuning (``rlforge sft``).

    No engine has sampled the answers, so that there is neither an importance weight nor an estimate
    of a KL divergence.
    """

    name: str = "supervised"
    #: None: no engine has sampled the answers.
    importance_cap: Positive | None = None

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.importance_cap is not None:
            yield "importance_cap", "must be null: no engine has sampled the answers"
        if self.kl.coef > 0:
            yield "kl.coef", "is estimated on sampled answers, and these are given; set it to 0"
        if self.proximal_coef > 0:
            yield (
                "proximal_coef",
                "is of a divergence that is estimated on sampled answers, and these are given; set "
                "it to 0",
            )


@dataclass
class RatioConfig(AlgorithmConfig):
    """Losses of the ratio r = pi / pi_old per token; pi_old is the policy before the update."""

    #: Policy loss with the advantage A: ``clip``, min(r A, clip(r) A) (PPO); ``sequence_clip``, the
    #: same with the geometric mean of r over the tokens of an answer (GSPO); ``cispo``,
    #: clip(r) A log pi without gradient through clip(r); ``score_function``, A log pi.
    loss: Literal["clip", "sequence_clip", "cispo", "score_function"] = "clip"
    #: Ratio clip below 1 - clip_low.
    clip_low: ClipLow = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: Positive = 0.2
    #: Dual clip: bound of the ratio times a negative advantage; null: off.
    dual_clip: DualClip | None = None

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.dual_clip is not None and self.loss in ("cispo", "score_function"):
            yield (
                "dual_clip",
                f"bounds the losses clip and sequence_clip, not {self.loss}; set it to null",
            )


@dataclass
class GrpoConfig(RatioConfig):
    """GRPO (Shao et al. 2024) over groups of games from the same start, and its relatives."""

    whole_games = "compares whole games"

    name: str = "grpo"
    #: Games per group.
    group_size: Annotated[int, Range(2)] = 8
    #: Advantage of a game with score R in its group: ``group_relative``, R minus the group's mean;
    #: ``leave_one_out``, R minus the mean of the others (RLOO); ``max_rl``, (R - mean) / mean, for
    #: scores of 0 or more (MaxRL). The score is the mean reward of the seat's turns.
    advantage: Literal["group_relative", "leave_one_out", "max_rl"] = "group_relative"
    #: Divide ``group_relative`` by the group's standard deviation (Dr. GRPO: false).
    normalize_std: bool = True
    #: Replace groups in which all games have the same score, and so no advantage, by new games
    #: (dynamic sampling of DAPO, Yu et al. 2025).
    dynamic_sampling: bool = False
    #: Most episodes that ``dynamic_sampling`` replaces for one batch, in multiples of
    #: ``learner.batch_size``; beyond it such groups are kept, so that the update comes anyway.
    max_replaced: Positive = 10.0

    @property
    def replaced_batches(self) -> float:
        return self.max_replaced if self.dynamic_sampling else 0.0

    def clashes(self) -> Iterator[Problem]:
        yield from super().clashes()
        if self.normalize_std and self.advantage != "group_relative":
            yield (
                "normalize_std",
                f"divides group_relative advantages only, not {self.advantage}; set it to false",
            )


@dataclass
class WindowGrpoConfig(RatioConfig):
    """GRPO on the decisions of a time window, grouped by agent.

    With r a decision's reward, r_agent the mean over its agent's decisions of the batch and r_all
    that over all of them, ``advantage: documented`` is ``r - r_agent + (r_agent - r_all)``. The
    agent's mean cancels: it equals ``r - r_all``, the whole batch being the group.
    ``group_relative`` is ``r - r_agent``, which compares each agent with itself alone.
    """

    name: str = "window_grpo"
    #: Advantage formula, see above.
    advantage: Literal["documented", "group_relative"] = "documented"
    #: Divide by the standard deviation of the group's rewards.
    normalize_std: bool = False


@dataclass
class A2cConfig(AlgorithmConfig):
    """Advantage actor-critic: a value head on the last prompt token, GAE over a player's turns."""

    whole_games = "credits turns along a game"

    name: str = "a2c"
    #: Discount per turn of the player.
    gamma: Share = 1.0
    #: GAE lambda (Schulman et al. 2016).
    gae_lambda: Share = 0.95
    #: Weight of the value loss.
    value_coef: NotNegative = 0.5
    #: Learning rate of the value head; null takes ``learner.learning_rate``.
    value_learning_rate: Positive | None = None
    #: Standardise advantages over the batch.
    normalize_advantages: bool = True


@dataclass
class PpoConfig(A2cConfig, RatioConfig):
    """PPO (Schulman et al. 2017) on the same critic."""

    name: str = "ppo"
    #: Clip of the value change; null: off.
    value_clip: Positive | None = None


ALGORITHM_CONFIGS: dict[str, type[AlgorithmConfig]] = {
    "reinforce": ReinforceConfig,
    "grpo": GrpoConfig,
    "window_grpo": WindowGrpoConfig,
    "a2c": A2cConfig,
    "ppo": PpoConfig,
    "supervised": SupervisedConfig,
}
"""The settings of rlforge's algorithms: here, because the algorithms themselves import torch."""


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """The class of the settings of an algorithm.

    Raises ConfigError for an unknown algorithm, and for one whose ``config_class`` is not a
    dataclass derived from ``AlgorithmConfig``.
    """
    if name in ALGORITHM_CONFIGS:
        return ALGORITHM_CONFIGS[name]
    found: Any = ALGORITHMS.find(name).config_class
    if not (isinstance(found, type) and issubclass(found, AlgorithmConfig)):
        raise ConfigError(f"algorithm {name!r}: its config_class is no AlgorithmConfig: {found!r}")
    if "__dataclass_fields__" not in vars(found):
        raise ConfigError(f"algorithm {name!r}: its config_class {found.__name__} is no @dataclass")
    return found
