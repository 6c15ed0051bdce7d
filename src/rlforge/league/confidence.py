"""Confidence sequences of a mean: intervals that hold at all times at once.

An ordinary 95 % interval that is looked at after every game misses the truth at some time far more
often than in 5 % of cases. A confidence sequence misses it at any time with probability at most
``alpha``, so that games may stop when it says enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Candidates for the mean, equally spaced in [0, 1].
_CANDIDATES = np.linspace(0.0, 1.0, 501)
#: Largest share of its capital that a bet may lose.
_TRUNCATION = 0.5


def confidence_sequence(
    scores: Sequence[float] | NDArray[np.float64], alpha: float = 0.05
) -> NDArray[np.float64]:
    """Intervals of the mean of independent scores in [0, 1], after 0, 1, …, n of them.

    Returns an array (n + 1, 2) of lower and upper bounds; the probability that any of the intervals
    misses the mean is at most ``alpha``, whatever the distribution. The hedged capital process of
    Waudby-Smith and Ramdas (2024, "Estimating means of bounded random variables by betting",
    theorem 3) with its predictable plug-in bets; a candidate for the mean is refused once a gambler
    who bets against it has 1 / alpha times the capital. Bounds are exact to 0.002, outwards.

    Example:
        >>> bounds = confidence_sequence([1.0] * 20)
        >>> bounds[0].tolist(), bool(bounds[20, 0] > 0.5)
        ([0.0, 1.0], True)
    """
    x = np.asarray(scores, float)
    count = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (count + 1)
    known = np.concatenate([[0.25], variance[:-1]])  # before the score that is bet on
    bet = np.sqrt(2 * np.log(2 / alpha) / (known * count * np.log(count + 1)))[:, None]
    with np.errstate(divide="ignore"):
        above = np.minimum(bet, _TRUNCATION / _CANDIDATES)
        below = np.minimum(bet, _TRUNCATION / (1 - _CANDIDATES))
    gain = x[:, None] - _CANDIDATES
    capital = np.maximum(
        np.cumsum(np.log1p(above * gain), axis=0), np.cumsum(np.log1p(-below * gain), axis=0)
    )
    kept = np.logical_and.accumulate(capital + np.log(0.5) < np.log(1 / alpha), axis=0)
    step, last = _CANDIDATES[1], len(_CANDIDATES) - 1
    bounds = np.empty((len(x) + 1, 2))
    bounds[0] = 0.0, 1.0
    bounds[1:, 0] = _CANDIDATES[kept.argmax(axis=1)] - step
    bounds[1:, 1] = _CANDIDATES[last - kept[:, ::-1].argmax(axis=1)] + step
    # Where every candidate is refused, at most as often as alpha says, the last interval stays.
    known_until = 1 + int(kept.any(axis=1).sum())
    bounds[known_until:] = bounds[known_until - 1]
    return np.clip(bounds, 0.0, 1.0)
