"""The two tests that decide about a new version, both of mean rewards.

``compare``, before it is served: is it not worse than the current version by more than a margin?
``MixtureSprt``, during a trial: which of two versions is better? Valid after every outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlforge.serving.records import PairedOutcomes
from rlforge.types import value

Arm = Literal["current", "new"]
Verdict = Literal["new_is_better", "new_is_worse"]


@value
class NonInferiority:
    """The result of ``compare``.

    difference: mean of new minus current. p_value: chance of this difference or a larger one if
    the new version were worse by exactly ``margin``.
    """

    items: int
    difference: float
    margin: float
    p_value: float
    alpha: float

    @property
    def passed(self) -> bool:
        """Whether a loss of ``margin`` or more is ruled out: p_value <= alpha."""
        return self.p_value <= self.alpha

    def __str__(self) -> str:
        return (
            f"mean reward {self.difference:+.3f} on {self.items} items; a loss of "
            f"{self.margin:g} {'is ruled out' if self.passed else 'cannot be ruled out'} "
            f"(p {self.p_value:.3g}, alpha {self.alpha:g})"
        )


def compare(outcomes: PairedOutcomes, *, margin: float, alpha: float, test: str) -> NonInferiority:
    """One-sided test of d = new - current against the hypothesis "d is at most -margin".

    The null hypothesis is that the new version is worse, so too few items never let a version pass
    (non-inferiority as in Wellek 2010, "Testing statistical hypotheses of equivalence and
    noninferiority", chapter 5). test: ``t``, Student's paired test of the mean; ``wilcoxon``,
    signed ranks, for symmetric differences with heavy tails; ``sign``, more items above -margin
    than below, for any distribution. Where all differences are equal, p is 0 if they are
    at least -margin, else 1.
    Raises ValueError for an unknown test, and for unpaired or non-finite outcomes.

    Example:
        >>> outcomes = PairedOutcomes(
        ...     candidate=(1.0, 1.0, 0.0, 1.0, 0.0, 1.0), current=(1.0, 0.0, 0.0, 1.0, 1.0, 1.0)
        ... )
        >>> print(compare(outcomes, margin=0.25, alpha=0.05, test="t"))
        mean reward +0.000 on 6 items; a loss of 0.25 cannot be ruled out (p 0.189, alpha 0.05)
    """
    from scipy import stats

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
    elif test == "sign":
        above, below = int((shifted > 0).sum()), int((shifted < 0).sum())
        p_value = float(stats.binomtest(above, max(1, above + below), alternative="greater").pvalue)
    else:
        raise ValueError(f"no test is named {test}; there are t, wilcoxon and sign")
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
        """Include ``number``."""
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

    Without a difference its running maximum exceeds 1/alpha with probability at most alpha, so
    ``p_value`` is valid after every outcome. v is estimated, which makes the bound approximate;
    ``min_outcomes`` of each arm keep the error small. Outcomes must be independent, and the
    assignment of users to arms may depend on the number of outcomes but not on their values.

    Example:
        >>> test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=20)
        >>> for index in range(50):
        ...     test.add("current", float(index % 2 == 0))
        ...     test.add("new", float(index % 10 != 0))
        >>> test.verdict, round(test.difference, 2), round(test.p_value, 3)
        ('new_is_better', 0.4, 0.002)
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
        """Include an outcome; the first verdict is final. Raises ValueError unless it is finite."""
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be a finite number, not {reward}")
        self.arms[arm].add(reward)
        if min(m.count for m in self.arms.values()) < max(2, self._min_outcomes):
            return
        variance = sum(moments.variance_of_mean for moments in self.arms.values())
        self.p_value = min(self.p_value, mixture_p_value(self.difference, variance, self._effect))
        if self.verdict is None and self.p_value <= self._alpha:
            self.verdict = "new_is_better" if self.difference > 0 else "new_is_worse"


def mixture_p_value(difference: float, variance: float, effect: float) -> float:
    """1 / ratio of ``MixtureSprt``, at most 1.

    variance: of the difference of means; at 0, p is 0 for any difference and 1 for none.
    """
    if variance <= 0:
        return 0.0 if difference else 1.0
    total = variance + effect**2
    exponent = effect**2 * difference**2 / (2 * variance * total)
    log_ratio = 0.5 * math.log(variance / total) + exponent
    return math.exp(-max(0.0, log_ratio))
