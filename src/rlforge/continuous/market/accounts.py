"""The account of an agent, and arithmetic with money, which is a whole number of cents."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque
from typing import Any, Literal

#: Most notes, on trades and own ones, and most own actions that an agent sees.
_NOTES, _ACTIONS = 6, 5

# Far above the rounding error of floating-point formulas and far below a cent: amounts are rounded
# against the trader, so that none gains from either.
_SLACK = 1e-6


def cents(amount: float) -> int:
    """Dollars to the nearest cent."""
    return round(amount * 100)


def dollars(amount: int) -> float:
    """Cents to dollars."""
    return amount / 100


def charged(amount: float) -> int:
    """The price in whole cents of something worth ``amount`` cents."""
    return math.ceil(amount + _SLACK)


def granted(amount: float) -> int:
    """The whole cents or units given for a worth of ``amount``; at least 0."""
    return max(0, math.floor(amount - _SLACK))


def portion(amount: int, rate: float) -> int:
    """``amount`` times ``rate``, rounded up."""
    # Without the slack a product such as 3.0000000001 would cost 4.
    return math.ceil(amount * rate - _SLACK)


@dataclasses.dataclass(slots=True, kw_only=True)
class Position:
    """Something bought or opened at tick ``opened`` for ``cost``, fee included, by ``ticket``."""

    id: str
    ticket: int
    opened: int
    cost: int


@dataclasses.dataclass(slots=True, kw_only=True)
class Shares(Position):
    """Shares of one purchase. basis: part of its cost for the ``units`` still held.

    returned: proceeds of sales so far.
    """

    market_id: str
    outcome: str
    units: int
    basis: int
    returned: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Perp(Position):
    """A perpetual position of ``size`` at the price ``entry``. sign: 1 for longs, -1 for shorts.

    margin: margin that funding has left.
    """

    ticker: str
    sign: int
    size: int
    leverage: float
    entry: int
    margin: int

    @property
    def side(self) -> Literal["long", "short"]:
        return "long" if self.sign > 0 else "short"

    def profit(self, price: int) -> int:
        """Profit at ``price``, rounded down."""
        return self.sign * self.size * (price - self.entry) // self.entry


class Agent:
    """One account. kind: kind of a scripted trader; None for models and people.

    balance: free cents. lifetime: profit of all finished trades. trades, wins: settled ones of the
    episode, and those with a profit. episode_profits: changes of the balance.
    """

    def __init__(
        self, agent_id: str, kind: str | None, rng: random.Random, feed_length: int
    ) -> None:
        self.id, self.kind, self.rng = agent_id, kind, rng
        self.balance = self.lifetime = 0
        self.trades = self.wins = 0
        self.episode_profits: list[int] = []
        self.shares: dict[str, Shares] = {}
        self.perps: dict[str, Perp] = {}
        self.follows: set[str] = set()
        self.feed: deque[dict[str, Any]] = deque(maxlen=feed_length)
        self.unread = 0
        self.notes: deque[dict[str, Any]] = deque(maxlen=_NOTES)
        self.tips: dict[str, dict[str, Any]] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=_ACTIONS)

    @property
    def win_rate(self) -> float:
        """Share of the episode's settled trades that made a profit; 0 before the first."""
        return self.wins / self.trades if self.trades else 0.0
