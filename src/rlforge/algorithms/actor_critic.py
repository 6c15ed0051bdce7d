"""Advantage actor-critic and PPO: a value head reads the last prompt token of every turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

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

CriticConfig = TypeVar("CriticConfig", bound=A2cConfig)


class ActorCritic(PolicyGradient[CriticConfig]):
    """GAE over a player's turns; the loss is policy loss + value_coef * (V - R)^2.

    All answer tokens of a turn share its advantage. The return of turn t is R_t = A_t + V_t
    (TD(lambda)). Discount with ``gamma``; the step transform ``discount`` is for algorithms without
    a critic.
    """

    needs_values = True

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        """Raises ValueError without values, RunError where an episode is not whole."""
        if values is None or len(values) != len(steps):
            raise ValueError("an actor-critic needs one value per step")
        config = self._config
        advantages: list[float] = []
        for where in episodes_of(steps):
            advantages += generalized_advantages(
                turn_rewards(steps[where]), values[where], config.gamma, config.gae_lambda
            )
        returns = tuple(a + v for a, v in zip(advantages, values, strict=True))
        if config.normalize_advantages:
            advantages = standardize(advantages)
        return Targets(
            advantages=tuple(advantages),
            returns=returns,
            metrics={"explained_variance": explained_variance(values, returns)},
        )

    def loss(self, inputs: LossInputs) -> LossOutput:
        output = super().loss(inputs)
        critic = self.critic_loss(inputs)
        return LossOutput(
            loss=output.loss + self._config.value_coef * critic,
            metrics={**output.metrics, "value_loss": critic.detach()},
        )

    def critic_loss(self, inputs: LossInputs) -> Tensor:
        """The critic's own loss."""
        return value_loss(inputs, value_clip=None)


class A2c(ActorCritic[A2cConfig]):
    """Advantage actor-critic (Mnih et al. 2016): the score-function loss on GAE advantages."""

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self._config.importance_cap)


class Ppo(ActorCritic[PpoConfig]):
    """Proximal policy optimisation (Schulman et al. 2017): the clipped loss on GAE advantages."""

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return clipped_policy_loss(inputs, self._config)

    def critic_loss(self, inputs: LossInputs) -> Tensor:
        return value_loss(inputs, self._config.value_clip)
