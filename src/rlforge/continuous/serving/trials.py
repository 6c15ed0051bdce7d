"""Comparisons of a new version with the current one, by mean rewards.

``compare``, before it is served: is it not worse by more than a margin? ``Trial``, on the requests
of users: which of two versions is better?
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving.records import Arm, Deployment, PairedOutcomes
from rlforge.types import value

Verdict = Literal["new_is_better", "new_is_worse"]


@value
class NonInferiority:
    """The result of ``compare``. difference: mean of new minus current.

    p_value: chance of this difference or a larger one were the new version worse by just
    ``margin``.
    """

    items: int
    difference: float
    margin: float
    p_value: float
    alpha: float

    @property
    def passed(self) -> bool:
        return self.p_value <= self.alpha

    def __str__(self) -> str:
        return (
            f"mean reward {self.difference:+.3f} on {self.items} items; a loss of "
            f"{self.margin:g} {'is ruled out' if self.passed else 'cannot be ruled out'} "
            f"(p {self.p_value:.3g}, alpha {self.alpha:g})"
        )


def compare(outcomes: PairedOutcomes, *, margin: float, alpha: float, test: str) -> NonInferiority:
    """One-sided test of d = new - current against the hypothesis "d is at most -margin".

    Non-inferiority as in Wellek 2010, "Testing statistical hypotheses of equivalence and
    noninferiority", chapter 5. test: ``t``, Student's paired test of the mean; ``wilcoxon``, signed
    ranks, for symmetric differences with heavy tails; ``sign``, more items above -margin than
    below, for any distribution. Raises ValueError for an unknown test, and for unpaired or non-
    finite outcomes.

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
    # The null hypothesis is that the new version is worse: without items it stands.
    if len(difference) == 0:
        p_value = 1.0
    # The tests divide by the spread, which is 0 here.
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


#: Effective clusters below which their variance cannot be estimated.
_FEWEST_CLUSTERS = 10


@dataclass(slots=True)
class Sum:
    count: int = 0
    total: float = 0.0

    def add(self, number: float) -> None:
        self.count += 1
        self.total += number

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan


class MixtureSprt:
    """A two-sided mixture sequential probability ratio test of equal mean rewards.

    Versions are compared within stages, stretches of time in which rewards have one level, by the
    means of clusters, such as users: however many outcomes a cluster has of a version in a stage,
    their mean counts once. The difference d is the mean of the stages' differences, weighted by
    g_new g_current / (g_new + g_current) for g clusters of a stage and version. Its variance v is
    the sum of the squared influences of clusters (Liang and Zeger 1986), each part scaled by sqrt(g
    / (g - 1)), and by f / (f - 2) for f = (sum u^2)^2 / sum u^4 effective clusters of influences u.

    The likelihood ratio of d is averaged over differences drawn from N(0, effect^2) (Robbins 1970;
    Johari et al. 2022, "Always valid inference", equation 8):

        ratio = sqrt(v / (v + effect²)) exp(effect² d² / (2 v (v + effect²)))

    Without a difference its running maximum exceeds 1/alpha with probability at most alpha, up to
    the estimate of v: ``benchmarks/trials.py`` measures how often. It is looked at when a stage
    ends, from ``min_outcomes`` of each version and ten effective clusters on.
    """

    def __init__(self, *, alpha: float, effect: float, min_outcomes: int) -> None:
        self._alpha, self._effect, self._min_outcomes = alpha, effect, min_outcomes
        self._stages: dict[str, dict[Arm, dict[str, Sum]]] = {}
        self._stage: str | None = None
        self.arms: dict[Arm, Sum] = {"current": Sum(), "new": Sum()}
        #: Outcomes of both versions.
        self.outcomes = 0
        self.difference = math.nan
        self.p_value = 1.0
        self.verdict: Verdict | None = None

    def add(self, arm: Arm, reward: float, *, stage: str, cluster: str | None = None) -> None:
        """Include an outcome; the first one of another stage is also a ``look`` at those before.

        cluster: outcomes with the same one count as one in a stage; None: this one depends on no
        other. Raises ValueError unless the reward is finite.
        """
        if not math.isfinite(reward):
            raise ValueError(f"a reward must be a finite number, not {reward}")
        if stage != self._stage:
            self.look()
            self._stage = stage
        self.outcomes += 1
        self.arms[arm].add(reward)
        # An outcome's own name: no user's begins with a null character.
        name = f"\0{self.outcomes}" if cluster is None else cluster
        cells = self._stages.setdefault(stage, {"current": {}, "new": {}})
        cells[arm].setdefault(name, Sum()).add(reward)

    def look(self) -> None:
        """Update difference, p-value and verdict; the first verdict is final."""
        if min(arm.count for arm in self.arms.values()) < max(1, self._min_outcomes):
            return
        weight, weighted = 0.0, 0.0
        influences: dict[str, float] = {}
        for cells in self._stages.values():
            # A side with one cluster has no variance.
            if min(map(len, cells.values())) < 2:
                continue
            new, current = cells["new"], cells["current"]
            # So weighted, neither a level that drifts nor a share that grows moves the difference.
            share = len(new) * len(current) / (len(new) + len(current))
            weight += share
            for sign, side in ((1, new), (-1, current)):
                mean = math.fsum(own.mean for own in side.values()) / len(side)
                weighted += sign * share * mean
                scale = sign * share / math.sqrt(len(side) * (len(side) - 1))
                for name, own in side.items():
                    moved = scale * (own.mean - mean)
                    influences[name] = influences.get(name, 0.0) + moved
        squares = math.fsum(moved**2 for moved in influences.values())
        if weight == 0.0:
            return
        self.difference = weighted / weight
        fourth = math.fsum(moved**4 for moved in influences.values())
        effective = squares**2 / fourth if fourth else math.inf
        # The variance of a few clusters is too uncertain for a verdict.
        if effective < _FEWEST_CLUSTERS:
            return
        inflated = squares * (effective / (effective - 2) if fourth else 1.0)
        variance = inflated / weight**2
        # The least p-value so far is valid at every look.
        self.p_value = min(self.p_value, mixture_p_value(self.difference, variance, self._effect))
        if self.verdict is None and self.p_value <= self._alpha:
            self.verdict = "new_is_better" if self.difference > 0 else "new_is_worse"


def mixture_p_value(difference: float, variance: float, effect: float) -> float:
    """1 / ratio of ``MixtureSprt``, at most 1. variance: variance of the difference of means."""
    if variance <= 0:
        return 0.0 if difference else 1.0
    total = variance + effect**2
    exponent = effect**2 * difference**2 / (2 * variance * total)
    log_ratio = 0.5 * math.log(variance / total) + exponent
    return math.exp(-max(0.0, log_ratio))


#: Difference of mean rewards for which a trial is most powerful (sd of the normal mixture).
EFFECT = 0.03
#: Outcomes of each version before a trial may give a verdict.
MIN_OUTCOMES = 50


def place(user: str, salt: str) -> float:
    """The place of ``user`` in [0, 1): uniform over users, fixed for each ``salt``."""
    digest = hashlib.blake2b(f"{salt}/{user}".encode(), digest_size=8).digest()
    # A float keeps 53 bits: all 64 could be rounded up to 1.
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


class Trial:
    """A comparison of a new version with the current one on the requests of users.

    Each user has a fixed place in [0, 1); those below ``share`` get the new version.
    """

    def __init__(self, deployment: Deployment, config: AbTestConfig) -> None:
        self.deployment = deployment
        self._config = config
        self.test = MixtureSprt(alpha=config.alpha, effect=EFFECT, min_outcomes=MIN_OUTCOMES)

    @property
    def share(self) -> float:
        """Share of users with the new version, which grows with the number of outcomes."""
        step = self.test.outcomes // self._config.step_outcomes
        return self._config.shares[min(step, len(self._config.shares) - 1)]

    def arm(self, user: str | None) -> Arm:
        """The version of ``user``; None: a request without a user."""
        # Random without a user, else all such requests would get the same version.
        name = secrets.token_hex(8) if user is None else user
        return "new" if place(name, self.deployment.uid) < self.share else "current"

    def add(
        self, arm: Arm, reward: float, *, cluster: str | None = None, stage: str | None = None
    ) -> None:
        """Include an outcome. stage: None takes stretches of ``MIN_OUTCOMES`` outcomes."""
        if stage is None:
            stage = str(self.test.outcomes // MIN_OUTCOMES)
        self.test.add(arm, reward, cluster=cluster, stage=stage)
        if self.test.outcomes >= self._config.max_outcomes:
            # No outcome follows that would end the last stage.
            self.test.look()

    @property
    def ending(self) -> str | None:
        """``promote`` or ``roll_back`` once the test or ``max_outcomes`` has decided."""
        if self.test.verdict is not None:
            return "promote" if self.test.verdict == "new_is_better" else "roll_back"
        if self.test.outcomes >= self._config.max_outcomes:
            return "promote" if self._config.undecided == "promote" else "roll_back"
        return None

    def __str__(self) -> str:
        current, new = self.test.arms["current"], self.test.arms["new"]
        return (
            f"mean reward {new.mean:.3f} of {new.count} outcomes against {current.mean:.3f} of "
            f"{current.count}, {self.test.difference:+.3f} within stages (p "
            f"{self.test.p_value:.3g}, alpha {self._config.alpha:g})"
        )
