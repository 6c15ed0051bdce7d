"""Is a new version not worse than the current one by more than a margin? A paired test says."""

from __future__ import annotations

import math

import numpy as np

from rlforge.config.serving import TESTS
from rlforge.errors import ConfigError, nearest
from rlforge.serving.records import PairedOutcomes
from rlforge.types import value


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
