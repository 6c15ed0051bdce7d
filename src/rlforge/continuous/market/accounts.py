"""The account of an agent: balance, positions and memory; and arithmetic with money.

Money is a whole number of cents, so that sums are exact; dollars are for input and output. Amounts
that are not whole are rounded against the trader.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import deque
from typing import Any, Literal

#: Far above the rounding error of floating-point formulas and far below a cent, so that no trader
#: gains from either.
_SLACK = 1e-6


def cents(amount: float) -> int:
    """Dollars to the nearest cent."""
    return round(amount * 100)


def dollars(amount: int) -> float:
    """Cents to dollars."""
    return amount / 100


def charged(amount: float) -> int:
    """The price in whole cents that a trader pays for something worth ``amount`` cents."""
    return math.ceil(amount + _SLACK)


def granted(amount: float) -> int:
    """The whole cents or units that a trader gets for a worth of ``amount``; at least 0."""
    return max(0, math.floor(amount - _SLACK))


def portion(amount: int, rate: float) -> int:
    """``amount`` times ``rate``, rounded up."""
    return math.ceil(amount * rate - _SLACK)


@dataclasses.dataclass(slots=True)
class Shares:
    """Shares of one purchase. ``ticket``: of the decision that bought them.

    cost: paid for the whole purchase, fee included. basis: the part of it for ``units``, which are
    still held. returned: proceeds of sales so far.
    """

    id: str
    ticket: int
    market_id: str
    outcome: str
    units: int
    cost: int
    basis: int
    opened: int
    returned: int = 0


@dataclasses.dataclass(slots=True)
class Perp:
    """A perpetual position. ``sign`` is 1 for longs, -1 for shorts.

    size: in cents, at the price ``entry``. margin: what is left after funding. paid: margin and
    fee.
    """

    id: str
    ticket: int
    ticker: str
    sign: int
    size: int
    leverage: float
    entry: int
    margin: int
    paid: int
    opened: int

    @property
    def side(self) -> Literal["long", "short"]:
        """The side as actions name it."""
        return "long" if self.sign > 0 else "short"

    def profit(self, price: int) -> int:
        """Profit at ``price``, rounded down."""
        return self.sign * self.size * (price - self.entry) // self.entry


class Agent:
    """One account in the market. kind: of a scripted trader; None for models and people.

    balance: free cents. lifetime: profit of all finished trades. trades, wins: of the episode, with
    money at stake, and those with a profit. episode_profits: change of the balance over each.
    """

    def __init__(
        self, agent_id: str, kind: str | None, rng: random.Random, lengths: Lengths
    ) -> None:
        self.id, self.kind, self.rng = agent_id, kind, rng
        self.balance = self.lifetime = 0
        self.trades = self.wins = 0
        self.episode_profits: list[int] = []
        self.shares: dict[str, Shares] = {}
        self.perps: dict[str, Perp] = {}
        self.follows: set[str] = set()
        self.feed: deque[dict[str, Any]] = deque(maxlen=lengths.feed)
        self.unread = 0
        self.notes: deque[dict[str, Any]] = deque(maxlen=lengths.memory)
        self.tips: dict[str, dict[str, Any]] = {}
        self.recent: deque[dict[str, Any]] = deque(maxlen=lengths.recent)

    def settle(self, profit: int) -> float:
        """Count a decision with money at stake; returns the win rate."""
        self.trades += 1
        self.wins += profit > 0
        return self.win_rate

    @property
    def win_rate(self) -> float:
        """Share of the episode's settled trades that made a profit; 0 before the first."""
        return self.wins / self.trades if self.trades else 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Lengths:
    """Most posts, notes (on trades, and the agent's own), and own actions that an agent sees."""

    feed: int
    memory: int
    recent: int
