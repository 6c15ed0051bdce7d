"""One prediction market: a question, what was sold on either answer, and the pool that pays."""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from rlforge.market import lmsr, money

Answer = Literal["YES", "NO"]
OTHER: dict[str, Answer] = {"YES": "NO", "NO": "YES"}

#: A price change is counted over so many ticks.
CHANGE_TICKS = 3


class PredictionMarket:
    """Shares are counted in units that pay one cent each; a share has a hundred.

    pool: cents that back the shares. It starts with the subsidy of the scoring rule, grows by at
    least what the rule says on every purchase and shrinks by at most that on every sale, so it
    always holds C(q), which is no less than either answer would be paid.
    truth: the answer that will turn out right. views: what each news account believes;
    unreported: those that it has not posted.
    """

    def __init__(
        self,
        market_id: str,
        question: str,
        truth: Answer,
        views: dict[str, Answer],
        liquidity: int,
        closes: int,
    ) -> None:
        self.id, self.question, self.truth, self.views = market_id, question, truth, views
        self.unreported = dict(views)
        self.closes = closes
        self.sold: dict[str, int] = {"YES": 0, "NO": 0}
        self.pool = money.charged(lmsr.subsidy(liquidity))
        self.volume = 0
        self._liquidity = liquidity
        self._prices: deque[float] = deque([0.5], maxlen=CHANGE_TICKS + 1)
        self._json: dict[str, Any] | None = None

    def price(self, outcome: str) -> float:
        """Price of a share in dollars, between 0 and 1."""
        return lmsr.price(self._liquidity, self.sold[outcome], self.sold[OTHER[outcome]])

    def units_for(self, outcome: str, amount: int) -> int:
        """Units that ``amount`` cents buy, fees apart."""
        sold, other = self.sold[outcome], self.sold[OTHER[outcome]]
        return money.granted(lmsr.shares_for(self._liquidity, sold, other, amount))

    def proceeds(self, outcome: str, units: int) -> int:
        """Cents that selling ``units`` brings, fees apart."""
        sold, other = self.sold[outcome], self.sold[OTHER[outcome]]
        before = lmsr.cost(self._liquidity, sold, other)
        return money.granted(before - lmsr.cost(self._liquidity, sold - units, other))

    def trade(self, outcome: str, units: int, amount: int) -> None:
        """Hand out ``units`` for ``amount`` cents; both negative when they come back."""
        self.sold[outcome] += units
        self.pool += amount
        self.volume += abs(amount)
        self._json = None

    def tick(self) -> None:
        """Remember the price for the change shown."""
        self._prices.append(self.price("YES"))
        self._json = None

    def to_json(self, tick: int, tick_minutes: float) -> dict[str, Any]:
        """As agents see it; the same object until something changes."""
        if self._json is None:
            yes = self.price("YES")
            self._json = {
                "id": self.id,
                "question": self.question,
                "yesPrice": round(yes, 4),
                "noPrice": round(1 - yes, 4),
                "change": round(yes - self._prices[0], 4),
                "volume": money.dollars(self.volume),
                "minutesLeft": (self.closes - tick) * tick_minutes,
            }
        return self._json
