"""The two tests that decide about a new version, both of mean rewards.

``compare``, before it is served: is it not worse than the current version by more than a margin?
``MixtureSprt``, during a trial: which of two versions is better? It may be looked at at any time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlforge.config.serving import TESTS
from rlforge.errors import ConfigError, nearest
from rlforge.serving.records import PairedOutcomes
from rlforge.types import value

Arm = Literal["current", "new"]
Verdict = Literal["new_is_better", "new_is_worse"]


@value
class NonInferiority:
    """What the held-out items say.

    difference: mean of new minus current. p_value: chance of a difference like this, or a better
    one, if the new version were worse by exactly ``margin``. passed: p_value <= alpha.
    """

    items: int
    difference: float
    margin: float
    p_value: float
    alpha: float

    @property
    def passed(self) -> bool:
        """Whether a loss of ``margin`` or more is ruled out."""
        return self.p_value <= self.alpha

    def __str__(self) -> str:
        return (
            f"mean reward {self.difference:+.3f} on {self.items} items; a loss of "
            f"{self.margin:g} {'is ruled out' if self.passed else 'cannot be ruled out'} "
            f"(p {self.p_value:.3g}, alpha {self.alpha:g})"
        )


def check_test(name: str) -> None:
    """Raises ConfigError for an unknown test."""
    if name not in TESTS:
        raise ConfigError(
            f"deployment.test={name}: no such test{nearest(name, TESTS)}; there are "
            f"{', '.join(TESTS)}"
        )


def compare(outcomes: PairedOutcomes, *, margin: float, alpha: float, test: str) -> NonInferiority:
    """One-sided test of d = new - current against the hypothesis "d is at most -margin".

    The hypothesis is that the new version is worse: what cannot be shown does not pass, so too few
    items never let a version through (non-inferiority as in Wellek 2010, "Testing statistical
    hypotheses of equivalence and noninferiority", chapter 5). ``t``: Student's paired test of
    the mean. ``wilcoxon``: signed ranks, for symmetric differences with heavy tails. ``sign``:
    more items above -margin than below, whatever the distribution. Where all differences are
    equal nothing is left to chance, and they are compared with the margin themselves.
    Raises ConfigError for an unknown test, ValueError for unpaired or non-finite outcomes.
    """
    from scipy import stats

    check_test(test)
    difference = np.asarray(outcomes.candidate, float) - np.asarray(outcomes.current, float)
    if not np.isfinite(difference).all():
        raise ValueError("held-out outcomes must be finite")
    shifted = difference + margin
    if len(difference) == 0:
        p_value = 1.0
    elif np.ptp(difference) < 1e-12:
        p_value = 0.0 if shifted[0] >= 0 else 1.0
    elif test == "t":
        p_value = float(stats.ttest_1samp(shifted, 0.0, alternative="greater").pvalue)
    elif test == "wilcoxon":
        p_value = float(stats.wilcoxon(shifted, alternative="greater").pvalue)
    else:
        above, below = int((shifted > 0).sum()), int((shifted < 0).sum())
        p_value = float(stats.binomtest(above, max(1, above + below), alternative="greater").pvalue)
    mean = float(difference.mean()) if len(difference) else math.nan
    return NonInferiority(
        items=len(difference), difference=mean, margin=margin, p_value=p_value, alpha=alpha
    )


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
