"""Pairs of decisions by reward, and how well scores agree with rewards."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from rlforge.types import value

Indices = NDArray[np.intp]
Floats = NDArray[np.float64]

#: Most pairs that one window gives; drawn by seed where there are more.
MAX_PAIRS = 4000
#: Most pairs compared, by a fixed seed: a window of 10,000 decisions has 50 million.
_MOST_COMPARED = 200_000


@value
class Pairs:
    """Positions of decisions: ``better[k]`` was preferred to ``worse[k]``."""

    better: Indices
    worse: Indices

    def __len__(self) -> int:
        return len(self.better)


def generate_pairs(
    rewards: Sequence[float | None], *, margin: float, max_pairs: int, seed: int
) -> Pairs:
    """Pairs of positions whose rewards are finite and differ by more than ``margin``.

    Where there are more than ``max_pairs``, these are drawn uniformly without repeats.
    """
    known = np.array(
        [i for i, r in enumerate(rewards) if r is not None and np.isfinite(r)], dtype=np.intp
    )
    found = np.array([rewards[i] for i in known], dtype=np.float64)
    ascending = np.argsort(found, kind="stable")
    known, found = known[ascending], found[ascending]
    # In ascending order a decision beats exactly the first ``beaten`` ones.
    beaten = np.searchsorted(found, found - margin, side="left")
    last = np.cumsum(beaten)
    total = int(last[-1]) if len(last) else 0
    if total <= max_pairs:
        numbers = np.arange(total, dtype=np.intp)
    else:
        # Numbers of pairs are drawn, not pairs: a window may have millions.
        drawn = random.Random(seed).sample(range(total), max_pairs)
        numbers = np.array(drawn, dtype=np.intp)
    winner = np.searchsorted(last, numbers, side="right")
    loser = numbers - (last[winner] - beaten[winner])
    return Pairs(better=known[winner], worse=known[loser])


@value
class Agreement:
    """Scores against a truth; None if there is nothing to compare.

    kendall_tau: τ-b, which corrects for ties on either side (Kendall 1945), -1 to 1.
    pairwise_accuracy: share of the ``pairs`` with different truths that the scores order alike; a
    pair with equal scores counts as half.
    """

    kendall_tau: float | None
    pairwise_accuracy: float | None
    pairs: int

    def metrics(self, prefix: str) -> dict[str, float]:
        found = {"kendall_tau": self.kendall_tau, "pairwise_accuracy": self.pairwise_accuracy}
        return {f"{prefix}{name}": one for name, one in found.items() if one is not None}


def agreement(scores: Sequence[float | None], truths: Sequence[float | None]) -> Agreement:
    """The agreement over the items with a score and a truth."""
    known = [
        (score, truth)
        for score, truth in zip(scores, truths, strict=True)
        if score is not None and truth is not None and math.isfinite(truth)
    ]
    given, true = np.array(known, dtype=np.float64).reshape(-1, 2).T
    pairs = generate_pairs(true.tolist(), margin=0.0, max_pairs=_MOST_COMPARED, seed=0)
    if not len(pairs):
        return Agreement(kendall_tau=None, pairwise_accuracy=None, pairs=0)
    ahead = given[pairs.better] - given[pairs.worse]
    tau = float(kendalltau(given, true).statistic)
    return Agreement(
        # τ is nan where all scores are equal.
        kendall_tau=tau if math.isfinite(tau) else None,
        pairwise_accuracy=float(np.mean((ahead > 0) + 0.5 * (ahead == 0))),
        pairs=len(pairs),
    )


def pooled(found: Sequence[Agreement]) -> Agreement:
    """The mean over windows, each weighted by its pairs."""

    def mean(figures: Sequence[float | None]) -> float | None:
        known = [(f, one.pairs) for f, one in zip(figures, found, strict=True) if f is not None]
        weights = sum(weight for _, weight in known)
        return sum(figure * weight for figure, weight in known) / weights if weights else None

    return Agreement(
        kendall_tau=mean([one.kendall_tau for one in found]),
        pairwise_accuracy=mean([one.pairwise_accuracy for one in found]),
        pairs=sum(one.pairs for one in found),
    )
