"""Reward transforms: final (per game), step (per turn) and sampling (per batch).

Readers of UnstableBaselines find its classes under these names:

=========================================  =====================================================
UnstableBaselines                          here, in the ``rewards`` config group
=========================================  =====================================================
``ComposeFinalRewardTransforms``           the list ``rewards.final``
``WinDrawLossFormatter``                   ``win_draw_loss``
``RoleAdvantageFormatter``                 ``role_advantage``
``RoleAdvantageByEnvFormatter``            ``role_advantage_by_env`` (its order of operations:
                                           ``update_then_subtract``)
``ScaleRewardTransform``                   ``scale``
``ComposeStepRewardTransforms``            the list ``rewards.step``
``RewardForFormat``                        ``format_reward``
``PenaltyForInvalidMove``                  ``invalid_move_penalty``
``DiscountFutureRewards``                  ``discount`` (its exponent: ``distance_from: start``)
``ComposeSamplingRewardTransforms``        the list ``rewards.sampling``
``NormalizeRewards``                       ``normalize``
``NormalizeRewardsByEnv``                  ``normalize_by_env``
``ClampRewards``                           ``clamp``
=========================================  =====================================================
"""

from rlforge.rewards.pipeline import RewardPipeline

__all__ = ["RewardPipeline"]
