"""Reward transforms: of a finished game, of each turn, and of each training batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rlforge import NotNegative, Positive, Sample, Share, Trajectory


@dataclass
class Centre:
    """Subtract ``share`` of the players' mean reward: with 1.0 every game is a zero-sum game."""

    share: Share = 1.0

    def __call__(self, rewards: Mapping[int, float], env_id: str) -> dict[int, float]:
        mean = sum(rewards.values()) / len(rewards)
        return {player: reward - self.share * mean for player, reward in rewards.items()}


@dataclass
class TurnCost:
    """Subtract ``cost`` from every turn, so that shorter games pay more."""

    adds_feedback: ClassVar[bool] = True  # a judgement of the turn, not of the outcome
    cost: NotNegative = 0.01

    def __call__(self, trajectory: Trajectory, step_index: int, base_reward: float) -> float:
        return base_reward - self.cost

    def notes(self, trajectory: Trajectory, step_index: int) -> dict[str, float]:
        """Kept in ``Sample.info``; the mean over each batch is the metric ``info/turns_left``."""
        return {"turns_left": len(trajectory.turns) - 1 - step_index}


@dataclass
class Squash:
    """``tanh(reward / scale)``: large rewards count less."""

    scale: Positive = 1.0

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        return [
            replace(
                sample,
                reward=math.tanh(sample.reward / self.scale),
                outcome_reward=math.tanh(sample.outcome_reward / self.scale),
            )
            for sample in samples
        ]
