"""REINFORCE."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.algorithms.base import LossInputs, Targets
from rlforge.algorithms.losses import TokenLoss, score_function_loss
from rlforge.algorithms.policy_gradient import PolicyGradient
from rlforge.types import Step


class Reinforce(PolicyGradient):
    """grad J = E[A grad log pi(a | s)] (Williams 1992), with the shaped reward as A.

    Baselines are reward transforms (``role_advantage_by_env``, ``normalize_by_env``); what is left
    of the importance weight's truncation is the only bias.
    """

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        return Targets(advantages=tuple(step.reward for step in steps), metrics={})

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self._config.importance_cap)
