"""Settings of the algorithms: what all share, and a class for each option of the group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlforge.config.rules import Group


@dataclass
class KlConfig(Group):
    """Penalty that holds the policy near an earlier one."""

    #: Weight of the penalty; 0 switches it, and the reference pass, off.
    coef: float = 0.0
    #: Estimator: k1, k2 or k3 (Schulman 2020, "Approximating KL divergence").
    estimator: str = "k3"
    #: Near whom: ``base`` (the model before training) or ``previous`` (the policy as it was when
    #: the update began, which costs no pass of its own).
    to: str = "base"


@dataclass
class AlgorithmConfig(Group):
    """What every algorithm has (group ``algorithm``)."""

    #: Algorithm: reinforce, grpo, window_grpo, a2c or ppo.
    name: str = "reinforce"
    #: Cap of the truncated importance weight pi_learner / pi_engine per token; null: no correction.
    importance_cap: float | None = 2.0
    #: token_mean, sequence_mean or constant (Dr. GRPO: divide by ``max_generation_len``).
    loss_aggregation: str = "token_mean"
    #: Divisor of ``constant``; null takes ``engine.max_tokens``.
    max_generation_len: int | None = None
    #: Penalty on the distance from an earlier policy.
    kl: KlConfig = field(default_factory=KlConfig)
    #: Weight of the entropy bonus (over the whole vocabulary).
    entropy_coef: float = 0.0

    @classmethod
    def variant(cls, values: Mapping[str, Any]) -> type[AlgorithmConfig]:
        """The class of the algorithm that ``values`` name."""
        return ALGORITHMS.get(str(values.get("name")), cls)


@dataclass
class ReinforceConfig(AlgorithmConfig):
    """REINFORCE (Williams 1992): the shaped reward is the advantage."""

    name: str = "reinforce"


@dataclass
class GrpoConfig(AlgorithmConfig):
    """GRPO (Shao et al. 2024) over groups of games from the same start."""

    name: str = "grpo"
    #: Games per group.
    group_size: int = 8
    #: Divide by the group's standard deviation (Dr. GRPO: false).
    normalize_std: bool = True
    #: Ratio clip below 1 - clip_low.
    clip_low: float = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: float = 0.2
    #: Dual clip: bound of the ratio times a negative advantage; null: off.
    dual_clip: float | None = None


@dataclass
class WindowGrpoConfig(AlgorithmConfig):
    """GRPO on the decisions of a time window, grouped by agent.

    With r a decision's reward, r_agent the mean over its agent's decisions of the batch and r_all
    that over all of them, ``advantage: documented`` is ``r - r_agent + (r_agent - r_all)``. The
    agent's mean cancels: it equals ``r - r_all``, the whole batch being the group.
    ``group_relative`` is ``r - r_agent``, which compares each agent with itself alone.
    """

    name: str = "window_grpo"
    #: ``documented`` or ``group_relative``.
    advantage: str = "documented"
    #: Divide by the standard deviation of those a reward is compared with.
    normalize_std: bool = False
    #: Ratio clip below 1 - clip_low.
    clip_low: float = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: float = 0.2
    #: Dual clip: bound of the ratio times a negative advantage; null: off.
    dual_clip: float | None = None


@dataclass
class A2cConfig(AlgorithmConfig):
    """Advantage actor-critic: a value head on the last prompt token, GAE over a player's turns."""

    name: str = "a2c"
    #: Discount per turn of the player.
    gamma: float = 1.0
    #: GAE lambda (Schulman et al. 2016).
    gae_lambda: float = 0.95
    #: Weight of the value loss.
    value_coef: float = 0.5
    #: Learning rate of the value head; null takes ``learner.learning_rate``.
    value_learning_rate: float | None = None
    #: Standardise advantages over the batch.
    normalize_advantages: bool = True


@dataclass
class PpoConfig(A2cConfig):
    """PPO (Schulman et al. 2017) on the same critic."""

    name: str = "ppo"
    #: Ratio clip below 1 - clip_low.
    clip_low: float = 0.2
    #: Ratio clip above 1 + clip_high.
    clip_high: float = 0.2
    #: Dual clip bound; null: off.
    dual_clip: float | None = None
    #: Clip of the value change; null: off.
    value_clip: float | None = None


ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "reinforce": ReinforceConfig,
    "grpo": GrpoConfig,
    "window_grpo": WindowGrpoConfig,
    "a2c": A2cConfig,
    "ppo": PpoConfig,
}
"""The class of each algorithm's settings, by the name that picks it."""
