"""What came of decisions: each gets a ticket, and each ticket is settled exactly once."""

from __future__ import annotations

from rlforge.market.accounts import Agent
from rlforge.market.money import dollars
from rlforge.types import value


@value
class Receipt:
    """The answer to a decision.

    ticket: names the decision in the ``Settled`` that follows. accepted: False when the action
    was invalid and changed nothing; ``problem`` then says why.
    """

    ticket: int
    agent_id: str
    accepted: bool
    problem: str = ""


@value
class Settled:
    """What came of one decision, in dollars and minutes of the market's clock.

    Buying shares and opening a position settle when all of it is sold, closed, liquidated or
    resolved, with the profit made. Selling and closing settle later, with what was received less
    what the same would have been worth if it had been kept: until the market resolved, or for
    ``market.hindsight_ticks``. Whatever stakes no money settles at once, with 0 and 0.
    win_rate: share of the agent's settled decisions with money at stake that made a profit, this
    one included. invalid: the action was not accepted.
    """

    ticket: int
    agent_id: str
    pnl: float
    investment: float
    hold_time_minutes: float
    win_rate: float
    invalid: bool = False


class Settlements:
    """Collects what has settled until the world's next tick hands it out."""

    def __init__(self, tick_minutes: float) -> None:
        self._tick_minutes = tick_minutes
        self._settled: list[Settled] = []

    def staked(self, agent: Agent, ticket: int, profit: int, investment: int, ticks: int) -> None:
        """A decision with money at stake; profit and investment in cents."""
        self._settled.append(
            Settled(
                ticket=ticket,
                agent_id=agent.id,
                pnl=dollars(profit),
                investment=dollars(investment),
                hold_time_minutes=ticks * self._tick_minutes,
                win_rate=agent.settle(profit),
            )
        )

    def unstaked(self, agent: Agent, ticket: int, invalid: bool) -> None:
        """A decision that stakes no money, or one that was not accepted."""
        self._settled.append(
            Settled(
                ticket=ticket,
                agent_id=agent.id,
                pnl=0.0,
                investment=0.0,
                hold_time_minutes=0.0,
                win_rate=agent.win_rate,
                invalid=invalid,
            )
        )

    def take(self) -> list[Settled]:
        """All since the last call."""
        taken, self._settled = self._settled, []
        return taken
