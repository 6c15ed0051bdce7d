"""Confidence intervals: of a rate, and whether two differ."""

from __future__ import annotations

import math


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % confidence interval of a success probability (Wilson 1927); (0, 1) without trials."""
    if trials == 0:
        return (0.0, 1.0)
    rate, z = successes / trials, 1.959963984540054
    weight = z * z / trials
    centre = (rate + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(rate * (1 - rate) / trials + weight / (4 * trials))
    # At 0 and at all successes the bound is exact; rounding must not move it past the rate.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return (low, high)


def significant(first: tuple[float, float], second: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Whether two confidence intervals do not overlap; of one, whether it excludes 0.

    Example:
        >>> significant((0.2, 0.4), (0.3, 0.5)), significant((0.01, 0.2))
        (False, True)
    """
    return first[1] < second[0] or second[1] < first[0]
