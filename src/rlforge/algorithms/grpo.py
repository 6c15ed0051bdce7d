"""Group relative policy optimisation."""

from __future__ import annotations

from collections.abc import Sequence

from rlforge.algorithms.advantages import group_relative
from rlforge.algorithms.base import LossInputs, Targets
from rlforge.algorithms.losses import TokenLoss, clipped_loss
from rlforge.algorithms.policy_gradient import PolicyGradient
from rlforge.config.schema import GrpoConfig
from rlforge.types import Step


class Grpo(PolicyGradient):
    """The clipped objective on advantages relative to a group of games from the same start.

    Shao et al. 2024 (DeepSeekMath), eq. 3, with the mean and deviation of the group as baseline and
    scale. The published aggregation is ``sequence_mean``, its KL estimator k3; Dr. GRPO (Liu et al.
    2025) is ``normalize_std: false`` with ``loss_aggregation: constant``.
    """

    def __init__(self, config: GrpoConfig, max_tokens: int) -> None:
        super().__init__(config, max_tokens)
        self._grpo = config

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        relative = group_relative(steps, self._grpo.normalize_std)
        return Targets(
            advantages=relative.advantages,
            metrics={
                "groups": float(relative.groups),
                "constant_groups": float(relative.constant),
            },
        )

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return clipped_loss(
            inputs,
            self._grpo.importance_cap,
            self._grpo.clip_low,
            self._grpo.clip_high,
            self._grpo.dual_clip,
        )
