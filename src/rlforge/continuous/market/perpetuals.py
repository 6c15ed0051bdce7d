"""A perpetual future: an index that follows hidden trends, and a mark price that trades move.

mark = index · e^(skew / depth), with skew the sizes of all longs minus those of all shorts.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any, Literal

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.accounts import cents, dollars
from rlforge.continuous.market.predictions import CHANGE_TICKS

Trend = Literal["UP", "DOWN"]

#: Price that every ticker starts from.
INITIAL_PRICE = 100.0
#: Mean length of a trend in ticks.
TREND_TICKS = 8
#: Largest leverage; its inverse is the initial margin.
MAX_LEVERAGE = 10.0
#: Funding rate per payment, relative to how far the mark price is from the index.
FUNDING_FACTOR = 0.5
#: Largest funding rate per payment.
MAX_FUNDING_RATE = 0.01

# Prices stay in this range, in cents, so that a long walk neither reaches 0 nor overflows.
_LOWEST, _HIGHEST = 100, 100_000_000


class Perpetual:
    """An index and its mark price, in cents.

    trend: the hidden direction of the index. views, unreported: about it, as of a prediction
    market.
    """

    def __init__(self, ticker: str, config: MarketConfig, rng: random.Random) -> None:
        self.ticker = ticker
        self.index = cents(INITIAL_PRICE)
        self.skew = self.interest = 0
        self.trend: Trend = "UP"
        self.views: dict[str, Trend] = {}
        self.unreported: dict[str, Trend] = {}
        self._config, self._rng = config, rng
        self._prices: deque[int] = deque([self.index], maxlen=CHANGE_TICKS + 1)
        self._json: dict[str, Any] | None = None
        self._turn()

    def mark(self, skew: int | None = None) -> int:
        """The mark price now, or at another skew."""
        skew = self.skew if skew is None else skew
        # Traders pass the skew after their trade: at the price before it, one could open a
        # position, move the mark by that, and close with a profit.
        exponent = skew / cents(self._config.depth)
        # Clipped against overflow: e^20 is out of the range of prices in any case.
        moved = self.index * math.exp(max(-20.0, min(20.0, exponent)))
        return round(max(_LOWEST, min(_HIGHEST, moved)))

    def trade(self, size: int, sign: int, opening: bool) -> None:
        """Add or remove a position of ``size`` cents; ``sign`` is 1 for longs, -1 for shorts."""
        change = size if opening else -size
        self.skew += sign * change
        self.interest += change
        self._json = None

    def funding_rate(self) -> float:
        """The payment from longs to shorts, relative to size; negative when shorts pay."""
        premium = (self.mark() - self.index) / self.index
        return max(-MAX_FUNDING_RATE, min(MAX_FUNDING_RATE, FUNDING_FACTOR * premium))

    def move(self) -> bool:
        """Move the index by one tick; returns whether a new trend has begun."""
        turned = self._rng.random() < 1 / TREND_TICKS
        if turned:
            self._turn()
        drift = self._config.drift if self.trend == "UP" else -self._config.drift
        noise = self._rng.gauss(0.0, self._config.volatility)
        self.index = round(max(_LOWEST, min(_HIGHEST, self.index * math.exp(drift + noise))))
        self._prices.append(self.mark())
        self._json = None
        return turned

    def to_json(self, ticks_to_funding: int) -> dict[str, Any]:
        """The JSON that agents see; the same object until something changes."""
        # One object serves all states of a tick, which are kept by thousands.
        if self._json is None:
            mark = self.mark()
            self._json = {
                "ticker": self.ticker,
                "markPrice": dollars(mark),
                "indexPrice": dollars(self.index),
                "change": round(mark / self._prices[0] - 1, 5),
                "fundingRate": round(self.funding_rate(), 6),
                "minutesToFunding": ticks_to_funding * self._config.tick_minutes,
                "openInterest": dollars(self.interest),
                "maxLeverage": MAX_LEVERAGE,
            }
        return self._json

    def _turn(self) -> None:
        self.trend = "UP" if self._rng.random() < 0.5 else "DOWN"
        other: Trend = "DOWN" if self.trend == "UP" else "UP"
        # Views are drawn with the trend, so that they do not depend on when they are posted.
        self.views = {
            account: self.trend if self._rng.random() < right else other
            for account, right in self._config.accounts.items()
        }
        self.unreported = dict(self.views)
