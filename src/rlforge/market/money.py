"""Money is a whole number of cents, so that sums are exact; dollars are for reading and writing.

What does not come out even is rounded against the trader. ``_SLACK`` is far above the rounding
error of the floating-point formulas and far below a cent, so that no trader gains from them.
"""

from __future__ import annotations

import math

_SLACK = 1e-6


def cents(amount: float) -> int:
    """Dollars to the nearest cent."""
    return round(amount * 100)


def dollars(amount: int) -> float:
    """Cents to dollars."""
    return amount / 100


def charged(amount: float) -> int:
    """What a trader pays for something worth ``amount`` cents."""
    return math.ceil(amount + _SLACK)


def granted(amount: float) -> int:
    """What a trader gets for something worth ``amount`` cents or units; at least 0."""
    return max(0, math.floor(amount - _SLACK))


def part(amount: int, rate: float) -> int:
    """The share ``rate`` of an amount, rounded up."""
    return math.ceil(amount * rate - _SLACK)
