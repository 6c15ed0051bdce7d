"""How well scores agree with rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import kendalltau

from rlforge.continuous.ruler.pairs import generate_pairs
from rlforge.types import value

# Most pairs compared, drawn by a fixed seed: a window of 10,000 decisions has 50 million.
_MOST_PAIRS = 200_000


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
    pairs = generate_pairs(true.tolist(), margin=0.0, max_pairs=_MOST_PAIRS, seed=0)
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
