"""Transforms of the rewards of a batch, applied when it is drawn.

They map ``reward`` and ``outcome_reward`` alike, so the feedback on a turn, their difference, is
scaled and never shifted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rlforge.rewards.final import Bounds
from rlforge.samples import Sample


class SamplingTransform(Protocol):
    """Maps the rewards of one batch; keeps number and order of samples.

    Example: see ``Normalize``.
    """

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]: ...


@dataclass
class Normalize:
    """Subtract the mean reward of the batch; with ``z_score`` divide by the standard deviation too.

    The deviation is the population's. Equal rewards become exactly 0.

    Example:
        >>> samples = [
        ...     Sample(
        ...         origin="g", turn_index=0, last_turn=True, prompt_token_ids=(), token_ids=(),
        ...         logprobs=(), raw_reward=0.0, reward=reward, policy_uid="step-0",
        ...         policy_version=0,
        ...     )
        ...     for reward in (1.0, 0.0)
        ... ]
        >>> [sample.reward for sample in Normalize()(samples)]
        [0.5, -0.5]
    """

    z_score: bool = False

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        if not samples:
            return []
        centre = _centring([sample.reward for sample in samples], self.z_score)
        return [_mapped(sample, centre) for sample in samples]


@dataclass
class NormalizeByEnv:
    """``Normalize`` among the samples of the same environment.

    Example: see ``Normalize``.
    """

    z_score: bool = True

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        rewards: dict[str, list[float]] = {}
        for sample in samples:
            rewards.setdefault(sample.env_id, []).append(sample.reward)
        centre = {env_id: _centring(of_env, self.z_score) for env_id, of_env in rewards.items()}
        return [_mapped(sample, centre[sample.env_id]) for sample in samples]


@dataclass
class Scale:
    """Multiply by ``alpha``. Example: see ``Normalize``."""

    alpha: float = 0.1

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        return [_mapped(sample, lambda reward: self.alpha * reward) for sample in samples]


@dataclass
class Clamp(Bounds):
    """Clip into [``min_r``, ``max_r``]. Example: see ``Normalize``."""

    def __call__(self, samples: Sequence[Sample]) -> list[Sample]:
        return [_mapped(sample, self.clip) for sample in samples]


def is_constant(rewards: Sequence[float]) -> bool:
    """Whether all are equal up to rounding (0.1 + 0.2 and 0.3), which division would magnify."""
    low, high = min(rewards), max(rewards)
    return high - low <= 1e-9 * max(1.0, abs(low), abs(high))


def _centring(rewards: Sequence[float], z_score: bool) -> Callable[[float], float]:
    """Map from reward to (reward - mean) / std; to 0 where all are equal."""
    # The deviation of equal rewards is a rounding error, and division by it gives noise.
    if is_constant(rewards):
        return lambda reward: 0.0
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    std = math.sqrt(variance) if z_score else 1.0
    return lambda reward: (reward - mean) / std


def _mapped(sample: Sample, change: Callable[[float], float]) -> Sample:
    return dataclasses.replace(
        sample, reward=change(sample.reward), outcome_reward=change(sample.outcome_reward)
    )
