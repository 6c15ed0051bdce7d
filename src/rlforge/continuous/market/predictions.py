"""A prediction market: a question, the shares sold of either answer, and the pool that pays.

Prices follow the logarithmic market scoring rule for two outcomes (Hanson 2003). A market maker
that has sold q₁ and q₂ shares was paid C(q) = b ln(e^(q₁/b) + e^(q₂/b)), counted from b ln 2, the
most that it can lose. The price of an outcome is e^(qᵢ/b) / (e^(q₁/b) + e^(q₂/b)). ``own`` is the
number sold of the outcome in question, ``other`` of the other one, ``liquidity`` is b. Amounts are
in cents, shares in units that pay a cent.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any, Literal

from rlforge.continuous.market.accounts import charged, dollars, granted


def lmsr_cost(liquidity: float, own: float, other: float) -> float:
    """C(q), which the market maker was paid."""
    # The larger exponent is factored out against overflow.
    most = max(own, other)
    return most + liquidity * math.log1p(math.exp((min(own, other) - most) / liquidity))


def lmsr_price(liquidity: float, own: float, other: float) -> float:
    """The price of the outcome, between 0 and 1."""
    gap = (other - own) / liquidity
    if gap > 0:
        # Here e^gap may overflow.
        tail = math.exp(-gap)
        return tail / (1 + tail)
    return 1 / (1 + math.exp(gap))


def lmsr_shares(liquidity: float, own: float, other: float, amount: float) -> float:
    """The shares that ``amount`` buys: the x with C(own + x, other) = C(own, other) + amount.

    With z = amount / b and d = (other − own) / b this is b ln(e^z + e^d (e^z − 1)).
    """
    z, d = amount / liquidity, (other - own) / liquidity
    # ln(e^z - 1) without overflow for large z and without loss of precision for small z; likewise
    # the sum, whose larger exponent is factored out.
    first, second = z, d + z + math.log(-math.expm1(-z))
    most = max(first, second)
    return liquidity * (most + math.log1p(math.exp(min(first, second) - most)))


_WHO = ("Orla Venn", "Team Basalt", "the Quill party", "Mayor Idris", "Lumen Labs", "Cape Harrow")
_WHAT = (
    "win the vote on the harbour",
    "finish the bridge on time",
    "take the northern cup",
    "announce a merger",
    "beat last year's harvest",
    "launch the new ferry",
    "publish the audit",
)


def invented_question(rng: random.Random) -> str:
    # Invented, so that no model knows the answer.
    return f"Will {rng.choice(_WHO)} {rng.choice(_WHAT)}?"


YesNo = Literal["YES", "NO"]
OTHER: dict[str, YesNo] = {"YES": "NO", "NO": "YES"}

#: Ticks over which a price change is shown.
CHANGE_TICKS = 3


class PredictionMarket:
    """A market whose shares are counted in units that pay one cent; a share is a hundred of them.

    pool: cents that back the shares. truth: the right answer. views: views of news accounts; the
    last ``unreported`` are not posted yet.
    """

    def __init__(
        self,
        market_id: str,
        question: str,
        truth: YesNo,
        views: dict[str, YesNo],
        liquidity: int,
        closes: int,
    ) -> None:
        self.id, self.question, self.truth, self.views = market_id, question, truth, views
        self.unreported = dict(views)
        self.closes = closes
        self.sold: dict[str, int] = {"YES": 0, "NO": 0}
        # C(0), so that the pool is at least C(q) and pays either answer.
        self.pool = charged(liquidity * math.log(2))
        self.volume = 0
        self._liquidity = liquidity
        self._prices: deque[float] = deque([0.5], maxlen=CHANGE_TICKS + 1)
        self._json: dict[str, Any] | None = None

    def price(self, outcome: str) -> float:
        return lmsr_price(self._liquidity, self.sold[outcome], self.sold[OTHER[outcome]])

    def units_for(self, outcome: str, amount: int) -> int:
        """Units that ``amount`` cents buy, before fees."""
        sold, other = self.sold[outcome], self.sold[OTHER[outcome]]
        return granted(lmsr_shares(self._liquidity, sold, other, amount))

    def proceeds(self, outcome: str, units: int) -> int:
        """Cents that selling ``units`` brings, before fees."""
        sold, other = self.sold[outcome], self.sold[OTHER[outcome]]
        before = lmsr_cost(self._liquidity, sold, other)
        return granted(before - lmsr_cost(self._liquidity, sold - units, other))

    def trade(self, outcome: str, units: int, amount: int) -> None:
        """Sell ``units`` for ``amount`` cents; both are negative when units are bought back."""
        self.sold[outcome] += units
        self.pool += amount
        self.volume += abs(amount)
        self._json = None

    def tick(self) -> None:
        """Record the price for the change that agents see."""
        self._prices.append(self.price("YES"))
        self._json = None

    def to_json(self, tick: int, tick_minutes: float) -> dict[str, Any]:
        """The JSON that agents see; the same object until something changes."""
        if self._json is None:
            yes = self.price("YES")
            self._json = {
                "id": self.id,
                "question": self.question,
                "yesPrice": round(yes, 4),
                "noPrice": round(1 - yes, 4),
                "change": round(yes - self._prices[0], 4),
                "volume": dollars(self.volume),
                "minutesLeft": (self.closes - tick) * tick_minutes,
            }
        return self._json
