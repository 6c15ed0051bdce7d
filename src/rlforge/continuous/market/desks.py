"""Trading: of shares, with the pool of their market as counterparty, and of perpetual positions."""

from __future__ import annotations

import dataclasses

from rlforge.continuous.config.market import MAINTENANCE_MARGIN
from rlforge.continuous.market.accounts import Agent, Perp, Shares, granted, portion
from rlforge.continuous.market.actions import ActionError
from rlforge.continuous.market.books import Books, Exit, check_funds, known
from rlforge.continuous.market.perpetuals import MAX_LEVERAGE
from rlforge.continuous.market.predictions import PredictionMarket

#: Fee on buying and selling shares, of the amount.
PREDICTION_FEE = 0.01
#: Fee on opening and closing perpetual positions, of their size.
PERPETUAL_FEE = 0.001
#: Fee of a liquidation, of the size, as far as the margin covers it.
LIQUIDATION_FEE = 0.01
#: Ticks after which closing a perpetual position is compared with having kept it.
HINDSIGHT_TICKS = 6


class ShareDesk:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._sales: dict[str, list[Exit[Shares]]] = {}

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
        sold = dataclasses.replace(lot, units=units, basis=basis)
        sale = Exit(agent=agent, ticket=ticket, held=sold, received=received, left=self._books.tick)
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
            sold = sale.held
            profit = sale.received - (sold.units if sold.outcome == market.truth else 0)
            self._books.settle(sale.agent, sale.ticket, profit, sold.basis, sold.opened)
        # The house paid the subsidy, so it gets what traders have left of the pool.
        self._books.house += market.pool
        del self._books.predictions[market.id]

    def _end(self, agent: Agent, lot: Shares, how: str) -> None:
        del agent.shares[lot.id]
        self._books.end(agent, lot, lot.returned, f"{lot.outcome} on {lot.market_id}: {how}")


class PerpDesk:
    """The counterparty is the vault."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._exits: list[Exit[Perp]] = []

    def worth(self, perp: Perp) -> int:
        """Margin and profit if closed now, before fees; at least 0."""
        return max(0, perp.margin + perp.profit(self._exit(perp)))

    def open(
        self, agent: Agent, ticket: int, ticker: str, side: str, size: int, leverage: float
    ) -> None:
        """Open a position of ``size`` with margin size / leverage. Raises ``ActionError``."""
        books = self._books
        perpetual = books.perpetuals.get(ticker)
        if perpetual is None:
            raise ActionError(f"no ticker {ticker!r}{known(books.perpetuals)}")
        if not 1 <= leverage <= MAX_LEVERAGE:
            raise ActionError(f"leverage must be 1 to {MAX_LEVERAGE:g}, not {leverage:g}")
        if not size:
            raise ActionError("a size of 0.00 opens nothing")
        sign = 1 if side == "long" else -1
        margin, fee = portion(size, 1 / leverage), portion(size, PERPETUAL_FEE)
        check_funds(agent, margin + fee, "margin and fee")
        perp = Perp(
            # A position that is refused must take no id.
            id="",
            ticket=ticket,
            ticker=ticker,
            sign=sign,
            size=size,
            leverage=leverage,
            entry=perpetual.mark(perpetual.skew + sign * size),
            margin=margin,
            cost=margin + fee,
            opened=books.tick,
        )
        if margin + perp.profit(perpetual.mark()) < portion(perp.size, MAINTENANCE_MARGIN):
            raise ActionError(
                f"a size of {size / 100:.2f} moves the price so far that it would be liquidated "
                "at once; take a smaller size or less leverage"
            )
        agent.balance -= margin + fee
        books.fees += fee
        perpetual.trade(size, sign, opening=True)
        perp.id = books.new_position()
        agent.perps[perp.id] = perp

    def close(self, agent: Agent, ticket: int, position_id: str) -> None:
        """Close a position whole. Raises ``ActionError``."""
        perp = agent.perps.get(position_id)
        if perp is None:
            mend = "; shares are sold with SELL_SHARES" if position_id in agent.shares else ""
            raise ActionError(
                f"you have no perpetual position {position_id!r}{known(agent.perps)}{mend}"
            )
        received = self._close(agent, perp, "closed")
        self._exits.append(
            Exit(agent=agent, ticket=ticket, held=perp, received=received, left=self._books.tick)
        )

    def fund(self) -> None:
        """Let the crowded side pay the other: longs, if the mark is above the index."""
        for ticker, perpetual in self._books.perpetuals.items():
            rate = perpetual.funding_rate()
            held = [perp for _, perp in self._all() if perp.ticker == ticker]
            collected = 0
            for perp in held:
                if perp.sign * rate > 0:
                    # A position pays its margin at most, and is liquidated next.
                    paid = min(perp.margin, portion(perp.size, abs(rate)))
                    perp.margin -= paid
                    collected += paid
            due = {perp.id: granted(perp.size * abs(rate)) for perp in held if perp.sign * rate < 0}
            total = sum(due.values())
            # Each gets its part of what is left of both, so that roundings leave nothing over.
            for perp in held:
                if perp.id in due:
                    part = due[perp.id] * min(collected, total) // total if total else 0
                    perp.margin += part
                    collected -= part
                    total -= due[perp.id]
            # The vault holds the opposite of the net open interest, so it gets the rest.
            self._books.vault += collected

    def liquidate(self) -> None:
        """Close positions below their maintenance margin, then those that the vault cannot pay."""
        while fallen := [held for held in self._all() if self._has_fallen(held[1])]:
            for agent, perp in fallen:
                # Closing one moves the price, which may lift opposite positions above their margin.
                if self._has_fallen(perp):
                    self._close(agent, perp, "liquidated", LIQUIDATION_FEE)
        while True:
            profits = [
                (profit, agent, perp)
                for agent, perp in self._all()
                if (profit := perp.profit(self._exit(perp))) > 0
            ]
            if sum(profit for profit, _, _ in profits) <= self._books.vault:
                return
            # Auto-deleveraging: the most profitable one is closed while there is something to pay.
            _, agent, perp = max(profits, key=lambda found: found[0])
            self._close(agent, perp, "closed, as the vault ran short")

    def close_all(self) -> None:
        for agent, perp in self._all():
            self._close(agent, perp, "closed at the end of the episode")

    def review(self, everything: bool) -> None:
        """Settle the closing of positions that are due (or all) against keeping them."""
        later = []
        for closed in self._exits:
            if not everything and closed.left + HINDSIGHT_TICKS > self._books.tick:
                later.append(closed)
                continue
            perp = closed.held
            kept = max(0, perp.margin + perp.profit(self._books.perpetuals[perp.ticker].mark()))
            profit = closed.received - kept
            self._books.settle(closed.agent, closed.ticket, profit, perp.cost, perp.opened)
        self._exits = later

    def _close(self, agent: Agent, perp: Perp, how: str, extra_fee: float = 0.0) -> int:
        """Pay out a position; returns the amount that the agent gets, at least 0."""
        price = self._exit(perp)
        # A loss is at most the margin and a profit at most the vault: no account falls below 0.
        profit = max(-perp.margin, min(self._books.vault, perp.profit(price)))
        left = perp.margin + profit
        fee = min(left, portion(perp.size, PERPETUAL_FEE + extra_fee))
        self._books.vault -= profit
        self._books.fees += fee
        agent.balance += left - fee
        self._books.perpetuals[perp.ticker].trade(perp.size, perp.sign, opening=False)
        del agent.perps[perp.id]
        received = left - fee
        what = f"{perp.side} {perp.ticker}: {how} at {price / 100:.2f}"
        self._books.end(agent, perp, received, what)
        return received

    def _exit(self, perp: Perp) -> int:
        """The mark price that closing a position leads to."""
        perpetual = self._books.perpetuals[perp.ticker]
        return perpetual.mark(perpetual.skew - perp.sign * perp.size)

    def _all(self) -> list[tuple[Agent, Perp]]:
        agents = self._books.agents.values()
        return [(agent, perp) for agent in agents for perp in agent.perps.values()]

    def _has_fallen(self, perp: Perp) -> bool:
        least = portion(perp.size, MAINTENANCE_MARGIN)
        return perp.margin + perp.profit(self._exit(perp)) < least
