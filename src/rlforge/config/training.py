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
    LeftOut,
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
    train: Annotated[
        Literal["lora", "full"],
        LeftOut(
            "qlora", "be lora or full: log-probs of quantised weights differ from the engine's"
        ),
    ] = "lora"
    #: Most turns per forward pass; null: only ``micro_batch_tokens`` limits it.
    mini_batch_size: Count | None = None
    #: Most tokens per forward pass, padding included; a longer turn is a pass of its own.
    micro_batch_tokens: Count = 4096
    #: Compute common beginnings of the turns of a pass once; where sequences are padded, only whole
    #: turns.
    share_prefixes: bool = True
    #: Concatenate sequences instead of padding them. ``auto``: on GPUs with a variable-length
    #: attention kernel; elsewhere if turns average 64 tokens or more. Models without plain causal
    #: attention, or with other log-probs for packed rows, are always padded.
    packing: Literal["auto", "on", "off"] = "auto"
    #: Compute logits in float32 where the model computes in bfloat16.
    fp32_head: bool = False
    #: Optimizer steps per pass over a batch.
    optimizer_steps: Count = 1
    #: Micro-batches of ``mini_batch_size`` samples per optimizer step, whose number then follows
    #: from the batch's size; null: use ``optimizer_steps``.
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
    #: Average of the trained weights over updates, in the folder ``average`` of every version:
    #: ``moving``, or ``uniform``, the mean of all so far.
    average: Literal["off", "moving", "uniform"] = "off"
    #: Weight of the past in the ``moving`` average.
    average_decay: Beta = 0.95
    #: The version that the run is for, and that commands take where none is named: the ``latest``,
    #: the ``best`` by win rate in evaluations, or the ``average`` of the weights until the latest.
    result: Literal["latest", "best", "average"] = "latest"
    #: Most tokens of prompt and answer that the loss sees; null: all.
    max_train_len: Count | None = None
    #: Recompute each decoder layer for the gradient, and keep its input only.
    gradient_checkpointing: bool = False
    #: The same for every module.
    activation_checkpointing: bool = False
    #: Compile the decoder layers (torch.compile): a minute or more at the start; needs a C++
    #: compiler, or Triton on GPUs; not with ``shard_weights``.
    compile: bool = False
    #: Keep the KV cache in training passes.
    use_trainer_cache: bool = False
    #: Adapter directory, or run, to start from: plain LoRA as of ``model.lora``. Of a run, as of
    #: ``rlforge sft``, it is the newest version.
    initial_adapter: Text | None = None
    #: Saved versions to keep, besides those that may be needed; null: all.
    keep_checkpoints: Whole | None = None
    #: Learner ranks: processes that share the samples of every update by tokens.
    num_learners: Count = 1
    #: Shard the weights over the ranks (FSDP2) instead of keeping a copy on each.
    shard_weights: bool = False

    def clashes(self) -> Iterator[Problem]:
        passes = self.gradient_accumulation_steps
        if self.result == "average" and self.average == "off":
            yield "result", "average needs one; set learner.average=moving"
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
    """How, and how often, the policy is updated (group ``learner``) in a run that plays games."""

    #: Updates until the run is done.
    total_updates: Count = 200
    #: Samples per update: turns, or episodes with ``buffer.kind: episode``.
    batch_size: Count = 384
    #: The learner waits for ``batch_size`` times this many samples.
    batch_delay_buffer: Annotated[float, Range(1)] = 1.0
    #: Updates between versions that are saved and join the pool.
    save_every: Count = 1
    #: Updates between saved states (optimizer, RNG, pool, buffer) for --resume.
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
    #: Weight at the last update relative to the first; linear in between.
    final_ratio: NotNegative = 1.0
    #: Estimator (Schulman 2020, "Approximating KL divergence").
    estimator: Annotated[
        Literal["k1", "k2", "k3"],
        LeftOut("kl mse low_var_kl abs", "be k1 (kl elsewhere), k2 (mse) or k3 (low_var_kl)"),
    ] = "k3"
    #: Reference policy: ``base`` (before training), ``previous`` (at the start of the update,
    #: without a forward pass of its own), ``snapshot`` (of at most ``refresh_every`` updates ago)
    #: or ``average`` (of ``learner.average``).
    to: Literal["base", "previous", "snapshot", "average"] = "base"
    #: Updates between refreshes of the ``snapshot``.
    refresh_every: Count = 40
    #: The divergence is over the sampled ``tokens``, estimated, or over the ``legal`` actions,
    #: renormalised and summed. Without a list of legal actions, and of answers that are more than
    #: an action, it is over the tokens.
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

    # The reason why it learns from whole games only; empty where single turns do.
    whole_games: ClassVar[str] = ""

    #: Algorithm: ``reinforce``, ``grpo``, ``window_grpo``, ``a2c``, ``ppo``, ``supervised``
    #: (of ``rlforge sft``) or one of your own.
    name: str = "reinforce"
    #: Correction per token for the engine's other distribution, with w = pi_learner / pi_engine:
    #: the weight min(w, ``importance_cap``) (``truncate``); or w, and no policy loss and KL of
    #: tokens outside [``importance_floor``, ``importance_cap``] (``mask``, as IcePop).
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
    #: Weight of KL(pi || pi_old), with the policy at the start of the update, estimated as ``kl``:
    #: 1 / step size of mirror descent.
    proximal_coef: NotNegative = 0.0
    #: Weight of the entropy bonus.
    entropy_coef: NotNegative = 0.0
    #: Weight of the entropy bonus at the last update relative to the first.
    entropy_final_ratio: NotNegative = 1.0
    #: Entropy of the next token over the ``vocabulary``, or of the ``legal`` actions, as in
    #: ``kl.over``.
    entropy_over: Literal["vocabulary", "legal"] = "vocabulary"

    @classmethod
    def variant(cls, value: Any) -> type[AlgorithmConfig]:
        # An unknown name is refused by ``clashes``, with a mend.
        name = value.get("name") if isinstance(value, Mapping) else None
        if isinstance(name, str) and ALGORITHMS.problem(name) is None:
            return algorithm_config(name)
        return super().variant(value)

    @property
    def over_legal(self) -> bool:
        """Whether the loss needs the tokens that lead to legal actions."""
        # Legal tokens cost time to find: terms without weight do not ask for them.
        penalised = self.kl.coef > 0 or self.proximal_coef > 0
        return (self.kl.over == "legal" and penalised) or (
            self.entropy_over == "legal" and self.entropy_coef > 0
        )

    @property
    def replaced_batches(self) -> float:
        """Most episodes without advantage that an update replaces, in batches."""
        return 0.0

    @property
    def masked_below(self) -> float | None:
        """Importance weight below which tokens are masked; None where weights are truncated."""
        if self.importance == "truncate" or self.importance_cap is None:
            return None
        # By default a token may be as much less likely as it may be more likely.
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
        # A name alone leaves the settings of another algorithm.
        elif set(hints(algorithm_config(self.name))) != set(hints(type(self))):
            yield "name", f"needs settings of its own; choose them with algorithm={self.name}"


@dataclass
class ReinforceConfig(AlgorithmConfig):
    """REINFORCE (Williams 1992): the shaped reward is the advantage."""

    name: str = "reinforce"


@dataclass
class SupervisedConfig(AlgorithmConfig):
    """Cross-entropy of given answers, for ``rlforge sft``."""

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
    #: same with the geometric mean of r over an answer (GSPO); ``cispo``, clip(r) A log pi without
    #: gradient through clip(r); ``score_function``, A log pi.
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
    #: Advantage of a game with score R, the mean reward of the seat's turns: ``group_relative``, R
    #: minus the group's mean; ``leave_one_out``, R minus the mean of the others (RLOO); ``max_rl``,
    #: (R - mean) / mean, for scores of 0 or more (MaxRL).
    advantage: Literal["group_relative", "leave_one_out", "max_rl"] = "group_relative"
    #: Divide ``group_relative`` by the group's standard deviation (Dr. GRPO: false).
    normalize_std: bool = True
    #: Replace groups of equal scores, which have no advantage (DAPO, Yu et al. 2025).
    dynamic_sampling: bool = False
    #: Most episodes that are replaced for one batch, in multiples of ``learner.batch_size``; such
    #: groups are kept beyond it.
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

    Of a decision with reward r, the advantage ``group_relative`` is ``r - r_agent``, its agent's
    mean in the batch; ``documented`` is ``r - r_agent + (r_agent - r_all)``, which equals
    ``r - r_all``: the whole batch is the group.
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
"""Settings by algorithm, here because the algorithms themselves import torch."""


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """The class of an algorithm's settings; ConfigError for no algorithm and no settings."""
    if name in ALGORITHM_CONFIGS:
        return ALGORITHM_CONFIGS[name]
    found: Any = ALGORITHMS.find(name).config_class
    if not (isinstance(found, type) and issubclass(found, AlgorithmConfig)):
        raise ConfigError(f"algorithm {name!r}: its config_class is no AlgorithmConfig: {found!r}")
    # ``is_dataclass`` is true without the decorator, too: fields would be lost.
    if "__dataclass_fields__" not in vars(found):
        raise ConfigError(f"algorithm {name!r}: its config_class {found.__name__} is no @dataclass")
    return found
