"""Supervised learning of given answers, as an algorithm of the learner."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.algorithms.base import LossInputs, Targets
from rlforge.algorithms.losses import TokenLoss, score_function_loss
from rlforge.algorithms.policy_gradient import PolicyGradient
from rlforge.config.training import SupervisedConfig
from rlforge.types import Step


class Supervised(PolicyGradient[SupervisedConfig]):
    """-log pi(a_t | s_t) per answer token: the score-function loss at advantage 1, unweighted.

    Its mean is the cross-entropy of the answers. Prompts have no loss. Rewards and the log-probs of
    an engine are not read.

    Example:
        >>> Supervised(SupervisedConfig(), max_tokens=64).targets((), None).advantages
        ()
    """

    config_class = SupervisedConfig

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        return Targets(advantages=(1.0,) * len(steps), metrics={})

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, None)
