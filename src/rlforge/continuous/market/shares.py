"""Trading of shares of prediction markets, with each market's pool as counterparty."""

from __future__ import annotations

from rlforge.continuous.market.accounts import Agent, Shares, portion
from rlforge.continuous.market.actions import ActionError
from rlforge.continuous.market.books import Books, check_funds, known
from rlforge.continuous.market.predictions import PredictionMarket
from rlforge.types import value

#: Fee on buying and selling shares, of the amount.
PREDICTION_FEE = 0.01


@value
class _Sale:
    """Sold shares, to be compared with keeping them until the market resolves."""

    agent: Agent
    ticket: int
    outcome: str
    units: int
    received: int
    basis: int
    opened: int


class ShareDesk:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._sales: dict[str, list[_Sale]] = {}

    def open_market(self, market: PredictionMarket) -> None:
        """Open a market, whose subsidy the house pays."""
        self._books.house -= market.pool
        self._books.predictions[market.id] = market

    def worth(self, lot: Shares) -> int:
        """The value at the current price, rounded down."""
        return int(lot.units * self._books.predictions[lot.market_id].price(lot.outcome))

    def buy(self, agent: Agent, ticket: int, market_id: str, outcome: str, amount: int) -> None:
        """Spend ``amount``, fee included. Raises ``ActionError``."""
        books = self._books
        market = books.predictions.get(market_id)
        if market is None:
            raise ActionError(f"no open prediction market {market_id!r}{known(books.predictions)}")
        check_funds(agent, amount, "an amount")
        fee = portion(amount, PREDICTION_FEE)
        # A fee of a cent may leave nothing, for which the scoring rule has no logarithm.
        units = market.units_for(outcome, amount - fee) if amount > fee else 0
        if not units:
            raise ActionError(f"an amount of {amount / 100:.2f} buys nothing")
        agent.balance -= amount
        books.fees += fee
        market.trade(outcome, units, amount - fee)
        position = books.new_position()
        agent.shares[position] = Shares(
            id=position,
            ticket=ticket,
            market_id=market_id,
            outcome=outcome,
            units=units,
            cost=amount,
            basis=amount,
            opened=books.tick,
        )

    def sell(self, agent: Agent, ticket: int, position_id: str, shares: float) -> None:
        """Sell some or all shares of a position. Raises ``ActionError``."""
        lot = agent.shares.get(position_id)
        if lot is None:
            raise ActionError(f"you have no shares {position_id!r}{known(agent.shares)}")
        units = round(shares * 100)
        if not 0 < units <= lot.units:
            raise ActionError(
                f"{position_id} holds {lot.units / 100:.2f} shares; {shares:g} cannot be sold"
            )
        market = self._books.predictions[lot.market_id]
        gross = market.proceeds(lot.outcome, units)
        received = gross - portion(gross, PREDICTION_FEE)
        if received <= 0:
            raise ActionError(f"{shares:g} shares of {position_id} would bring nothing")
        market.trade(lot.outcome, -units, -gross)
        # The fee goes from what the pool pays, so that the pool stays at the scoring rule.
        self._books.fees += gross - received
        agent.balance += received
        basis = lot.basis * units // lot.units
        sale = _Sale(
            agent=agent,
            ticket=ticket,
            outcome=lot.outcome,
            units=units,
            received=received,
            basis=basis,
            opened=lot.opened,
        )
        self._sales.setdefault(market.id, []).append(sale)
        lot.units -= units
        lot.basis -= basis
        lot.returned += received
        if not lot.units:
            self._end(agent, lot, "sold")

    def resolve(self, market: PredictionMarket) -> None:
        """End a market, and pay 1.00 a share of the right answer."""
        for agent in self._books.agents.values():
            for lot in [lot for lot in agent.shares.values() if lot.market_id == market.id]:
                if lot.outcome == market.truth:
                    market.trade(lot.outcome, -lot.units, -lot.units)
                    agent.balance += lot.units
                    lot.returned += lot.units
                self._end(agent, lot, f"{market.id} ended {market.truth}")
        for sale in self._sales.pop(market.id, []):
            kept = sale.units if sale.outcome == market.truth else 0
            # At least 1: an investment of 0 would say that no money was at stake.
            profit, basis = sale.received - kept, max(1, sale.basis)
            self._books.settle(sale.agent, sale.ticket, profit, basis, sale.opened)
        # The house paid the subsidy, so it gets what traders have left of the pool.
        self._books.house += market.pool
        del self._books.predictions[market.id]

    def _end(self, agent: Agent, lot: Shares, how: str) -> None:
        del agent.shares[lot.id]
        what = f"{lot.outcome} on {lot.market_id}: {how}"
        self._books.end(agent, lot.ticket, lot.returned - lot.cost, lot.cost, lot.opened, what)
