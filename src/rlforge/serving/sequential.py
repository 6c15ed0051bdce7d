"""Which of two versions is better, decided while outcomes come in, and however often one looks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Arm = Literal["current", "new"]
Verdict = Literal["new_is_better", "new_is_worse"]


@dataclass(slots=True)
class Moments:
    """Number, mean and sum of squared deviations of a stream of numbers (Welford 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, number: float) -> None:
        """Takes the next number."""
        self.count += 1
        delta = number - self.mean
        self.mean += delta / self.count
        self.squares += delta * (number - self.mean)

    @property
    def variance_of_mean(self) -> float:
        """Estimated variance of ``mean``; needs two numbers."""
        return self.squares / (self.count - 1) / self.count


class MixtureSprt:
    """A two-sided mixture sequential probability ratio test of equal mean rewards.

    The likelihood ratio of the difference of means d, whose sampling variance is v, is averaged
    over differences drawn from N(0, effect²) (Robbins 1970; Johari et al. 2022, "Always valid
    inference", equation 8, with v for V/n so that the arms may have different sizes):

        ratio = sqrt(v / (v + effect²)) exp(effect² d² / (2 v (v + effect²)))

    Its running maximum exceeds 1/alpha with probability at most alpha where there is no
    difference, so ``p_value`` may be looked at after every outcome. v is estimated, which makes
    the bound an approximation; it needs ``min_outcomes`` of each arm to be a good one.
    Outcomes count as independent of each other, and how users are shared out must not depend on
    outcomes other than by their number.
    """

    def __init__(self, *, alpha: float, effect: float, min_outcomes: int) -> None:
        self._alpha, self._effect, self._min_outcomes = alpha, effect, min_outcomes
        self.arms: dict[Arm, Moments] = {"current": Moments(), "new": Moments()}
        self.p_value = 1.0
        self.verdict: Verdict | None = None

    @property
    def difference(self) -> float:
        """Mean reward of the new version minus that of the current one."""
        return self.arms["new"].mean - self.arms["current"].mean

    def add(self, arm: Arm, reward: float) -> None:
        """Takes an outcome; the first verdict is the last. Raises ValueError unless finite."""
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be a finite number, not {reward}")
        self.arms[arm].add(reward)
        if min(m.count for m in self.arms.values()) < max(2, self._min_outcomes):
            return
        variance = sum(moments.variance_of_mean for moments in self.arms.values())
        self.p_value = min(self.p_value, p_value(self.difference, variance, self._effect))
        if self.verdict is None and self.p_value <= self._alpha:
            self.verdict = "new_is_better" if self.difference > 0 else "new_is_worse"


def p_value(difference: float, variance: float, effect: float) -> float:
    """1 / ratio of ``MixtureSprt``, at most 1: how surprising ``difference`` is without a reason.

    variance: of the difference of means. Without any spread in the outcomes, a difference is
    certain and so is its absence.
    """
    if variance <= 0:
        return 0.0 if difference else 1.0
    total = variance + effect**2
    exponent = effect**2 * difference**2 / (2 * variance * total)
    log_ratio = 0.5 * math.log(variance / total) + exponent
    return math.exp(-max(0.0, log_ratio))
