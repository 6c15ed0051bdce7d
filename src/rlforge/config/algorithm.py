"""Settings of the algorithms: what all share, and a class for each option of the group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rlforge.config.rules import (
    Count,
    Group,
    NotNegative,
    Positive,
    Problem,
    Range,
    Share,
    hints,
    no_such_choice,
)

ClipLow = Annotated[float, Range(0, 1, open="(")]
DualClip = Annotated[float, Range(1, open="(")]


@dataclass
class KlConfig(Group):
    """Penalty on the KL divergence from a reference policy."""

    #: Weight of the penalty; 0 switches it, and the reference pass, off.
    coef: NotNegative = 0.0
    #: Estimator (Schulman 2020, "Approximating KL divergence").
    estimator: Literal["k1", "k2", "k3"] = "k3"
    #: Reference policy: ``base`` (the model before training) or ``previous`` (the policy at the
    #: start of the update, which needs no forward pass of its own).
    to: Literal["base", "previous"] = "base"


@dataclass
class AlgorithmConfig(Group):
    """Settings of every algorithm (group ``algorithm``)."""

    #: Algorithm: ``reinforce``, ``grpo``, ``window_grpo``, ``a2c`` or ``ppo``.
    name: str = "reinforce"
    #: Cap of the truncated importance weight pi_learner / pi_engine per token; null: no correction.
    importance_cap: Positive | None = 2.0
    #: Mean over tokens, over sequences' means, or the sum over sequences times
    #: ``max_generation_len`` (``constant``, Dr. GRPO).
    loss_aggregation: Literal["token_mean", "sequence_mean", "constant"] = "token_mean"
    #: Divisor of ``constant``; null takes ``engine.max_tokens``.
    max_generation_len: Count | None = None
    #: Penalty on the distance from an earlier policy.
    kl: KlConfig = field(default_factory=KlConfig)
    #: Weight of the entropy bonus (over the whole vocabulary).
    entropy_coef: NotNegative = 0.0

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[AlgorithmConfig]:
        """The class with the keys of ``values``: of the algorithm that they name, if it fits."""
        fitting = [kind for kind in ALGORITHMS.values() if set(hints(kind)) == set(values)]
        named = ALGORITHMS.get(str(values.get("name")))
        return named if named in fitting else next(iter(fitting), cls)

    def clashes(self) -> Iterator[Problem]:
        if self.name not in ALGORITHMS:
            yield "name", no_such_choice(self.name, ALGORITHMS)
        elif set(hints(ALGORITHMS[self.name])) != set(hints(type(self))):
            yield "name", f"needs settings of its own; choose them with algorithm={self.name}"


@dataclass
class ReinforceConfig(AlgorithmConfig):
    """REINFORCE (Williams 1992): the shaped reward is the advantage."""

    name: str = "reinforce"


@dataclass
class GrpoConfig(AlgorithmConfig):
    """GRPO (Shao et al. 2024) over groups of games from the same start."""

    name: str = "grpo"
    #: Games per group.
    group_size: Annotated[int, Range(2)] = 8
    #: Divide by the group's standard deviation (Dr. GRPO: false).
    normalize_std: bool = True
    #: Ratio clip below 1 - clip_low.
    clip_low: ClipLow = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: Positive = 0.2
    #: Dual clip: bound of the ratio times a negative advantage; null: off.
    dual_clip: DualClip | None = None


@dataclass
class WindowGrpoConfig(AlgorithmConfig):
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
    #: Ratio clip below 1 - clip_low.
    clip_low: ClipLow = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: Positive = 0.2
    #: Dual clip: bound of the ratio times a negative advantage; null: off.
    dual_clip: DualClip | None = None


@dataclass
class A2cConfig(AlgorithmConfig):
    """Advantage actor-critic: a value head on the last prompt token, GAE over a player's turns."""

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
class PpoConfig(A2cConfig):
    """PPO (Schulman et al. 2017) on the same critic."""

    name: str = "ppo"
    #: Ratio clip below 1 - clip_low.
    clip_low: ClipLow = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: Positive = 0.2
    #: Dual clip bound; null: off.
    dual_clip: DualClip | None = None
    #: Clip of the value change; null: off.
    value_clip: Positive | None = None


ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "reinforce": ReinforceConfig,
    "grpo": GrpoConfig,
    "window_grpo": WindowGrpoConfig,
    "a2c": A2cConfig,
    "ppo": PpoConfig,
}
"""The class of each algorithm's settings, by the name that picks it."""
