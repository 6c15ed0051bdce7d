"""Trading of perpetual positions, with the vault as counterparty."""

from __future__ import annotations

from rlforge.continuous.config.market import MAINTENANCE_MARGIN
from rlforge.continuous.market.accounts import Agent, Perp, granted, portion
from rlforge.continuous.market.actions import ActionError
from rlforge.continuous.market.books import Books, check_funds, known
from rlforge.continuous.market.perpetuals import MAX_LEVERAGE
from rlforge.types import value

#: Fee on opening and closing perpetual positions, of their size.
PERPETUAL_FEE = 0.001
#: Fee of a liquidation, of the size, as far as the margin covers it.
LIQUIDATION_FEE = 0.01
#: Ticks after which closing a perpetual position is compared with having kept it.
HINDSIGHT_TICKS = 6


@value
class _Closed:
    """A closed position, to be compared at tick ``due`` with keeping it. margin: before profit."""

    agent: Agent
    ticket: int
    perp: Perp
    margin: int
    received: int
    due: int


class PerpDesk:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._closed: list[_Closed] = []

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
            paid=margin + fee,
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
        margin, due = perp.margin, self._books.tick + HINDSIGHT_TICKS
        received = self._close(agent, perp, "closed")
        self._closed.append(
            _Closed(
                agent=agent, ticket=ticket, perp=perp, margin=margin, received=received, due=due
            )
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
        for closed in self._closed:
            if not everything and closed.due > self._books.tick:
                later.append(closed)
                continue
            perp = closed.perp
            kept = max(0, closed.margin + perp.profit(self._books.perpetuals[perp.ticker].mark()))
            # At least 1, because 0 would say that no money was at stake.
            profit, basis = closed.received - kept, max(1, perp.paid)
            self._books.settle(closed.agent, closed.ticket, profit, basis, perp.opened)
        self._closed = later

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
        self._books.end(agent, perp.ticket, received - perp.paid, perp.paid, perp.opened, what)
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
