"""The accounts of a market, and the settlement of decisions.

All money lies in balances, margins of positions, pools of prediction markets, the vault, the fees
and the house, which issues it: its balance is the amount issued, as a negative number. The accounts
always sum to 0. Each decision has a ticket, which is settled exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.accounts import Agent, Position, dollars
from rlforge.continuous.market.actions import ActionError
from rlforge.continuous.market.perpetuals import Perpetual
from rlforge.continuous.market.predictions import PredictionMarket
from rlforge.types import value

Held = TypeVar("Held", bound=Position)


@value
class Receipt:
    """The answer to a decision. problem: why it was not accepted, and changed nothing."""

    ticket: int
    agent_id: str
    accepted: bool
    problem: str = ""


@value
class Settled:
    """The outcome of one decision, in dollars and minutes of the market's clock.

    Buying and opening settle with the profit once all of it has ended. Selling and closing settle
    with the amount received less the value of keeping, until the market resolved or for
    ``HINDSIGHT_TICKS``. Decisions without money at stake settle at once, with 0.

    win_rate: ``Agent.win_rate``, this decision included. invalid: the action was not accepted.
    """

    ticket: int
    agent_id: str
    win_rate: float
    pnl: float = 0.0
    investment: float = 0.0
    hold_time_minutes: float = 0.0
    invalid: bool = False


@value
class Exit(Generic[Held]):
    """A decision to sell or close at tick ``left``, which is compared with keeping ``held``."""

    agent: Agent
    ticket: int
    held: Held
    received: int
    left: int


class Books:
    """The accounts, the open markets and the clock of a market, ``tick``."""

    def __init__(self, config: MarketConfig) -> None:
        self.config = config
        self.predictions: dict[str, PredictionMarket] = {}
        self.perpetuals: dict[str, Perpetual] = {}
        self.agents: dict[str, Agent] = {}
        self.vault = self.fees = self.house = 0
        self.tick = 0
        self._positions = 0
        self._settled: list[Settled] = []

    @property
    def minute(self) -> float:
        return self.tick * self.config.tick_minutes

    def accounts(self) -> dict[str, int]:
        """Cents by kind of account; they sum to 0."""
        agents = self.agents.values()
        return {
            "agents": sum(agent.balance for agent in agents),
            "margins": sum(perp.margin for agent in agents for perp in agent.perps.values()),
            "pools": sum(market.pool for market in self.predictions.values()),
            "vault": self.vault,
            "fees": self.fees,
            "house": self.house,
        }

    def endow(self, agent: Agent, balance: int) -> None:
        self.house -= balance - agent.balance
        agent.balance = balance

    def fill_vault(self, amount: int) -> None:
        self.house -= amount - self.vault
        self.vault = amount

    def new_position(self) -> str:
        self._positions += 1
        return f"position-{self._positions}"

    def end(self, agent: Agent, position: Position, returned: int, what: str) -> None:
        """Settle the decision that bought or opened a position, and note it."""
        profit, invested = returned - position.cost, position.cost
        agent.lifetime += profit
        self.settle(agent, position.ticket, profit, invested, position.opened)
        agent.notes.append(
            {
                "kind": "trade",
                "text": f"{what}, profit {profit / 100:+.2f} on {invested / 100:.2f}",
                "pnl": dollars(profit),
                "minute": self.minute,
            }
        )

    def settle(self, agent: Agent, ticket: int, profit: int, invested: int, opened: int) -> None:
        """Settle a decision about money that was at stake since tick ``opened``; in cents."""
        agent.trades += 1
        agent.wins += profit > 0
        self._settled.append(
            Settled(
                ticket=ticket,
                agent_id=agent.id,
                win_rate=agent.win_rate,
                pnl=dollars(profit),
                # An investment of 0 would say that no money was at stake.
                investment=dollars(max(1, invested)),
                hold_time_minutes=(self.tick - opened) * self.config.tick_minutes,
            )
        )

    def settle_unstaked(self, agent: Agent, ticket: int, invalid: bool) -> None:
        """Settle a decision without money at stake, or one that was not accepted."""
        rate = agent.win_rate
        self._settled.append(
            Settled(ticket=ticket, agent_id=agent.id, win_rate=rate, invalid=invalid)
        )

    def take_settled(self) -> list[Settled]:
        taken, self._settled = self._settled, []
        return taken


def check_funds(agent: Agent, amount: int, what: str) -> None:
    """Raise ``ActionError`` when the balance is below ``amount`` cents."""
    if amount > agent.balance:
        raise ActionError(
            f"{what} of {amount / 100:.2f} is more than your balance of {agent.balance / 100:.2f}"
        )


def known(names: Mapping[str, object]) -> str:
    """``; there are a, b`` for an error about an unknown name."""
    some = list(names)[:12]
    return f"; there are {', '.join(some)}" if some else "; there are none"
