"""Advantage actor-critic and PPO: a value head reads the last prompt token of every turn."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.algorithms.advantages import (
    episodes_of,
    explained_variance,
    generalized_advantages,
    standardize,
    turn_rewards,
)
from rlforge.algorithms.base import LossInputs, LossOutput, Targets
from rlforge.algorithms.losses import TokenLoss, score_function_loss, value_loss
from rlforge.algorithms.policy_gradient import PolicyGradient, clipped_policy_loss
from rlforge.config.schema import A2cConfig, PpoConfig
from rlforge.types import Step


class ActorCritic(PolicyGradient):
    """GAE over a player's turns; the loss is policy loss + value_coef * (V - R)^2.

    All answer tokens of a turn share its advantage. The return of turn t is R_t = A_t + V_t
    (TD(lambda)). Discount with ``gamma``; the step transform ``discount`` is for algorithms without
    a critic.
    """

    needs_values = True

    def __init__(self, config: A2cConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._critic = config
        self._value_clip: float | None = None

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        """Raises ValueError without values, RunError where an episode is not whole."""
        if values is None or len(values) != len(steps):
            raise ValueError("an actor-critic needs one value per step")
        advantages: list[float] = []
        for where in episodes_of(steps):
            advantages += generalized_advantages(
                turn_rewards(steps[where]),
                values[where],
                self._critic.gamma,
                self._critic.gae_lambda,
            )
        returns = tuple(a + v for a, v in zip(advantages, values, strict=True))
        if self._critic.normalize_advantages:
            advantages = standardize(advantages)
        return Targets(
            advantages=tuple(advantages),
            returns=returns,
            metrics={"explained_variance": explained_variance(values, returns)},
        )

    def loss(self, inputs: LossInputs) -> LossOutput:
        output = super().loss(inputs)
        critic = value_loss(inputs, self._value_clip)
        return LossOutput(
            loss=output.loss + self._critic.value_coef * critic,
            metrics={**output.metrics, "value_loss": critic.detach()},
        )


class A2c(ActorCritic):
    """Advantage actor-critic (Mnih et al. 2016): the score-function loss on GAE advantages."""

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self._critic.importance_cap)


class Ppo(ActorCritic):
    """Proximal policy optimisation (Schulman et al. 2017): the clipped loss on GAE advantages."""

    def __init__(self, config: PpoConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._ppo = config
        self._value_clip = config.value_clip

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return clipped_policy_loss(inputs, self._ppo)
