"""The accounts of a market, and the settlement of decisions.

All money is in whole cents in one of these accounts: the agents' balances, the margins of
positions, the pools of prediction markets, the vault, the fees and the house. The house issues all
money: its balance is the amount issued, as a negative number. The accounts always sum to 0.

Each decision gets a ticket, and each ticket is settled exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.accounts import Agent, dollars
from rlforge.continuous.market.actions import ActionError
from rlforge.continuous.market.perpetuals import Perpetual
from rlforge.continuous.market.predictions import PredictionMarket
from rlforge.types import value


@value
class Receipt:
    """The answer to a decision. ticket: names it in the ``Settled`` that follows.

    problem: why it was not accepted, and changed nothing.
    """

    ticket: int
    agent_id: str
    accepted: bool
    problem: str = ""


@value
class Settled:
    """The outcome of one decision, in dollars and minutes of the market's clock.

    Buying shares and opening a position settle when all of it is sold, closed, liquidated or
    resolved, with the profit made. Selling and closing settle later, with the amount received less
    the value of keeping: until the market resolved, or for ``HINDSIGHT_TICKS``. Decisions
    without money at stake settle at once, with 0 and 0.
    win_rate: share of the agent's settled decisions with money at stake that made a profit, this
    one included. invalid: the action was not accepted.
    """

    ticket: int
    agent_id: str
    win_rate: float
    pnl: float = 0.0
    investment: float = 0.0
    hold_time_minutes: float = 0.0
    invalid: bool = False


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
        """Set a balance; the house pays or takes the difference."""
        self.house -= balance - agent.balance
        agent.balance = balance

    def fill_vault(self, amount: int) -> None:
        """Set the vault; the house pays or takes the difference."""
        self.house -= amount - self.vault
        self.vault = amount

    def new_position(self) -> str:
        """A new id of a position, unique over all agents."""
        self._positions += 1
        return f"position-{self._positions}"

    def end(
        self, agent: Agent, ticket: int, profit: int, invested: int, opened: int, what: str
    ) -> None:
        """Settle the decision that bought or opened, at tick ``opened``, what has now ended."""
        agent.lifetime += profit
        self.settle(agent, ticket, profit, invested, opened)
        agent.notes.append(
            {
                "kind": "trade",
                "text": f"{what}, profit {profit / 100:+.2f} on {invested / 100:.2f}",
                "pnl": dollars(profit),
                "minute": self.tick * self.config.tick_minutes,
            }
        )

    def settle(self, agent: Agent, ticket: int, profit: int, invested: int, opened: int) -> None:
        """Settle a decision about money that was at stake since tick ``opened``; in cents."""
        self._settled.append(
            Settled(
                ticket=ticket,
                agent_id=agent.id,
                win_rate=agent.settle(profit),
                pnl=dollars(profit),
                investment=dollars(invested),
                hold_time_minutes=(self.tick - opened) * self.config.tick_minutes,
            )
        )

    def settle_unstaked(self, agent: Agent, ticket: int, invalid: bool) -> None:
        """Settle a decision without money at stake, or one that was not accepted."""
        settled = Settled(
            ticket=ticket, agent_id=agent.id, win_rate=agent.win_rate, invalid=invalid
        )
        self._settled.append(settled)

    def take_settled(self) -> list[Settled]:
        """The decisions settled since the last call."""
        taken, self._settled = self._settled, []
        return taken


def check_funds(agent: Agent, amount: int, what: str) -> None:
    """Raises ``ActionError`` when the balance is below ``amount`` cents."""
    if amount > agent.balance:
        raise ActionError(
            f"{what} of {amount / 100:.2f} is more than your balance of {agent.balance / 100:.2f}"
        )


def known(names: Mapping[str, object]) -> str:
    """``; there are a, b`` for an error about an unknown name."""
    some = list(names)[:12]
    return f"; there are {', '.join(some)}" if some else "; there are none"
