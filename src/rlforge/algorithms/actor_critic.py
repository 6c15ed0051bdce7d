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
from rlforge.algorithms.losses import TokenLoss, clipped_loss, score_function_loss, value_loss
from rlforge.algorithms.policy_gradient import PolicyGradient
from rlforge.config.schema import A2cConfig, PpoConfig
from rlforge.types import Step


class ActorCritic(PolicyGradient):
    """GAE over a player's turns, and value_coef * (V - R)^2 beside the policy loss.

    A turn is one decision: all answer tokens of a turn share its advantage. The return of turn t is
    R_t = A_t + V_t (TD(lambda)). Discounting is gamma's work here; the step transform ``discount``
    belongs to algorithms without a critic.
    """

    needs_values = True

    def __init__(self, config: A2cConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._critic = config

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

    @property
    def _value_clip(self) -> float | None:
        return None


class A2c(ActorCritic):
    """Advantage actor-critic (Mnih et al. 2016): the score-function loss on GAE advantages."""

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self._critic.importance_cap)


class Ppo(ActorCritic):
    """Proximal policy optimisation (Schulman et al. 2017): the clipped loss on GAE advantages."""

    def __init__(self, config: PpoConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._ppo = config

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return clipped_loss(
            inputs,
            self._ppo.importance_cap,
            self._ppo.clip_low,
            self._ppo.clip_high,
            self._ppo.dual_clip,
        )

    @property
    def _value_clip(self) -> float | None:
        return self._ppo.value_clip
