"""Who has what: the accounts of a market, and how a trade that ended is written down.

All money is in whole cents in one of these accounts: the agents' balances, the margins of
positions, the pools of prediction markets, the vault, the fees and the house, from which all money
comes and whose balance is what it has issued, as a negative number. They always sum to 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlforge.config.market import MarketConfig
from rlforge.market.accounts import Agent
from rlforge.market.actions import ActionError
from rlforge.market.money import dollars
from rlforge.market.perpetuals import Perpetual
from rlforge.market.predictions import PredictionMarket
from rlforge.market.settlement import Settlements


class Books:
    """The accounts and what is traded. ``tick`` is the market's clock."""

    def __init__(self, config: MarketConfig) -> None:
        self.config = config
        self.settlements = Settlements(config.tick_minutes)
        self.predictions: dict[str, PredictionMarket] = {}
        self.perpetuals: dict[str, Perpetual] = {}
        self.agents: dict[str, Agent] = {}
        self.vault = self.fees = self.house = 0
        self.tick = 0
        self._positions = 0

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
        """Set a balance, with the house giving or taking the difference."""
        self.house -= balance - agent.balance
        agent.balance = balance

    def fill_vault(self, amount: int) -> None:
        """Set the vault, with the house giving or taking the difference."""
        self.house -= amount - self.vault
        self.vault = amount

    def new_position(self) -> str:
        """An id for a position, the same over all agents."""
        self._positions += 1
        return f"position-{self._positions}"

    def end(
        self, agent: Agent, ticket: int, profit: int, invested: int, opened: int, what: str
    ) -> None:
        """Something that was bought or opened at tick ``opened`` has come to its end."""
        agent.lifetime += profit
        self.settlements.staked(agent, ticket, profit, invested, self.tick - opened)
        agent.notes.append(
            {
                "kind": "trade",
                "text": f"{what}, profit {profit / 100:+.2f} on {invested / 100:.2f}",
                "pnl": dollars(profit),
                "minute": self.tick * self.config.tick_minutes,
            }
        )

    def judge(
        self, agent: Agent, ticket: int, received: int, kept: int, basis: int, opened: int
    ) -> None:
        """Something that was sold for ``received`` would be worth ``kept`` by now.

        basis: what had been paid for it.
        """
        held = self.tick - opened
        self.settlements.staked(agent, ticket, received - kept, max(1, basis), held)


def check_funds(agent: Agent, amount: int, what: str) -> None:
    """Raises ``ActionError`` when the balance is below ``amount`` cents."""
    if amount > agent.balance:
        raise ActionError(
            f"{what} of {amount / 100:.2f} is more than your balance of {agent.balance / 100:.2f}"
        )


def known(names: Mapping[str, object]) -> str:
    """``; there are a, b`` for an error about a name that is not there."""
    some = list(names)[:12]
    return f"; there are {', '.join(some)}" if some else "; there are none"
