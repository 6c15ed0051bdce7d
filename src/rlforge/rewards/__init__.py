"""Reward transforms: final (per game), step (per turn) and sampling (per batch).

Names of UnstableBaselines' classes for them are in ``docs/unstable_baselines.md``.
"""

from rlforge.rewards.pipeline import RewardPipeline

__all__ = ["RewardPipeline"]
