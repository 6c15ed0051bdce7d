"""The logarithmic market scoring rule for two outcomes (Hanson 2003).

A market maker who has sold q₁ and q₂ shares has been paid C(q) = b ln(e^(q₁/b) + e^(q₂/b)) in all,
counted from C(0) = b ln 2, which is also the most that it can lose. The price of an outcome is
the derivative e^(qᵢ/b) / (e^(q₁/b) + e^(q₂/b)). ``own`` is the number sold of the outcome in
question, ``other`` of the other one. All amounts in one unit (here cents, and shares that pay one).
"""

from __future__ import annotations

import math


def cost(liquidity: float, own: float, other: float) -> float:
    """C(q), without overflow: the larger exponent is taken out."""
    most = max(own, other)
    return most + liquidity * math.log1p(math.exp((min(own, other) - most) / liquidity))


def price(liquidity: float, own: float, other: float) -> float:
    """The price of the outcome, between 0 and 1: a logistic function of own minus other."""
    gap = (other - own) / liquidity
    if gap > 0:
        tail = math.exp(-gap)
        return tail / (1 + tail)
    return 1 / (1 + math.exp(gap))


def shares_for(liquidity: float, own: float, other: float, amount: float) -> float:
    """How many shares ``amount`` buys: the x with C(own + x, other) = C(own, other) + amount.

    With z = amount / b and d = (other − own) / b this is b ln(e^z + e^d (e^z − 1)).
    """
    z, d = amount / liquidity, (other - own) / liquidity
    # ln(e^z - 1) without overflow for large and without loss for small z.
    first, second = z, d + z + math.log(-math.expm1(-z))
    most = max(first, second)
    return liquidity * (most + math.log1p(math.exp(min(first, second) - most)))


def subsidy(liquidity: float) -> float:
    """C(0) = b ln 2: with it the market maker can pay whatever happens."""
    return liquidity * math.log(2)
