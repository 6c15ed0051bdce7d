"""Where money changes hands: shares against a market's pool, perpetual positions against the vault.

Every method moves cents from one account to another. The accounts are the agents' balances, the
margins of positions, the pools, the vault, the fees and the house, from which all money comes and
whose balance is what it has issued, as a negative number: they always sum to 0.
"""

from __future__ import annotations

import dataclasses

from rlforge.config.market import MarketConfig
from rlforge.market import money
from rlforge.market.accounts import Agent, Perp, Shares
from rlforge.market.actions import ActionError
from rlforge.market.perpetuals import Perpetual
from rlforge.market.predictions import PredictionMarket
from rlforge.market.settlement import Settlements


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """Something sold or closed, to be compared with having kept it.

    received: cents; basis: what had been paid for it. due: tick at which a closed position is
    judged (shares are judged when their market resolves).
    """

    ticket: int
    agent: Agent
    received: int
    basis: int
    opened: int
    units: int = 0
    outcome: str = ""
    perp: Perp | None = None
    margin: int = 0
    due: int = 0


class Exchange:
    """Markets and the money in them. ``tick`` is the market's clock."""

    def __init__(self, config: MarketConfig, settlements: Settlements) -> None:
        self.predictions: dict[str, PredictionMarket] = {}
        self.perpetuals: dict[str, Perpetual] = {}
        self.agents: dict[str, Agent] = {}
        self.vault = self.fees = self.house = 0
        self.tick = 0
        self._config, self._settlements = config, settlements
        self._positions = 0
        self._sold: dict[str, list[_Given]] = {}
        self._closed: list[_Given] = []

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

    def worth(self, agent: Agent) -> int:
        """Balance, shares at their price and positions as if closed now, in cents."""
        shares = sum(
            int(lot.units * self.predictions[lot.market_id].price(lot.outcome))
            for lot in agent.shares.values()
        )
        return agent.balance + shares + sum(map(self.perp_worth, agent.perps.values()))

    def perp_worth(self, perp: Perp) -> int:
        """Margin and profit of a position if it were closed now, fees apart; at least 0."""
        return max(0, perp.margin + perp.profit(self._exit(perp)))

    # ------------------------------------------------------------ the house

    def endow(self, agent: Agent, balance: int) -> None:
        """Set a balance, with the house giving or taking the difference."""
        self.house -= balance - agent.balance
        agent.balance = balance

    def fill_vault(self, amount: int) -> None:
        """Set the vault, with the house giving or taking the difference."""
        self.house -= amount - self.vault
        self.vault = amount

    def open_market(self, market: PredictionMarket) -> None:
        """Offer a market; the house pays its subsidy."""
        self.house -= market.pool
        self.predictions[market.id] = market

    # ------------------------------------------------------------ shares

    def buy(self, agent: Agent, ticket: int, market_id: str, outcome: str, amount: int) -> None:
        """Spend ``amount``, fee included. Raises ``ActionError``."""
        market = self.predictions.get(market_id)
        if market is None:
            raise ActionError(f"no open prediction market {market_id!r}{_some(self.predictions)}")
        _check_funds(agent, amount)
        fee = money.part(amount, self._config.prediction_fee)
        units = market.units_for(outcome, amount - fee) if amount > fee else 0
        if not units:
            raise ActionError(f"an amount of {amount / 100:.2f} buys nothing")
        agent.balance -= amount
        self.fees += fee
        market.trade(outcome, units, amount - fee)
        position = self._new_position()
        agent.shares[position] = Shares(
            position, ticket, market_id, outcome, units, amount, amount, self.tick
        )

    def sell(self, agent: Agent, ticket: int, position_id: str, shares: float) -> None:
        """Sell some or all shares of a position. Raises ``ActionError``."""
        lot = agent.shares.get(position_id)
        if lot is None:
            raise ActionError(f"you have no shares {position_id!r}{_some(agent.shares)}")
        units = round(shares * 100)
        if not 0 < units <= lot.units:
            raise ActionError(
                f"{position_id} holds {lot.units / 100:.2f} shares; {shares:g} cannot be sold"
            )
        market = self.predictions[lot.market_id]
        gross = market.proceeds(lot.outcome, units)
        received = gross - money.part(gross, self._config.prediction_fee)
        if received <= 0:
            raise ActionError(f"{shares:g} shares of {position_id} would bring nothing")
        market.trade(lot.outcome, -units, -gross)
        self.fees += gross - received
        agent.balance += received
        basis = lot.basis * units // lot.units
        self._sold.setdefault(market.id, []).append(
            _Given(ticket, agent, received, basis, lot.opened, units=units, outcome=lot.outcome)
        )
        lot.units -= units
        lot.basis -= basis
        lot.returned += received
        if not lot.units:
            self._end_shares(agent, lot)

    def resolve(self, market: PredictionMarket) -> None:
        """Pay 1.00 a share of the right answer; what is left of the pool is the house's."""
        for agent in self.agents.values():
            if not agent.shares:
                continue
            for lot in [lot for lot in agent.shares.values() if lot.market_id == market.id]:
                if lot.outcome == market.truth:
                    market.trade(lot.outcome, -lot.units, -lot.units)
                    agent.balance += lot.units
                    lot.returned += lot.units
                self._end_shares(agent, lot, f"{market.id} ended {market.truth}")
        for given in self._sold.pop(market.id, []):
            kept = given.units if given.outcome == market.truth else 0
            self._judge(given, kept)
        self.house += market.pool
        del self.predictions[market.id]

    def _end_shares(self, agent: Agent, lot: Shares, how: str = "") -> None:
        del agent.shares[lot.id]
        what = f"{lot.outcome} on {lot.market_id}: {how or 'sold'}"
        self._end(agent, lot.ticket, lot.returned - lot.cost, lot.cost, lot.opened, what)

    # ------------------------------------------------------------ perpetual positions

    def open(
        self, agent: Agent, ticket: int, ticker: str, side: str, size: int, leverage: float
    ) -> None:
        """Open a position of ``size`` with margin size / leverage. Raises ``ActionError``."""
        perpetual = self.perpetuals.get(ticker)
        if perpetual is None:
            raise ActionError(f"no ticker {ticker!r}{_some(self.perpetuals)}")
        most = self._config.max_leverage
        if not 1 <= leverage <= most:
            raise ActionError(f"leverage must be 1 to {most:g}, not {leverage:g}")
        sign = 1 if side == "long" else -1
        margin, fee = money.part(size, 1 / leverage), money.part(size, self._config.perpetual_fee)
        if not size:
            raise ActionError("a size of 0.00 opens nothing")
        _check_funds(agent, margin + fee, "margin and fee")
        entry = perpetual.mark(perpetual.skew + sign * size)
        position = self._new_position()
        perp = Perp(
            position, ticket, ticker, sign, size, leverage, entry, margin, margin + fee, self.tick
        )
        if margin + perp.profit(perpetual.mark()) < self._maintenance(perp):
            raise ActionError(
                f"a size of {size / 100:.2f} moves the price so far that it would be liquidated "
                "at once; take a smaller size or less leverage"
            )
        agent.balance -= margin + fee
        self.fees += fee
        perpetual.trade(size, sign, opening=True)
        agent.perps[position] = perp

    def close(self, agent: Agent, ticket: int, position_id: str) -> None:
        """Close a position whole. Raises ``ActionError``."""
        perp = agent.perps.get(position_id)
        if perp is None:
            mend = "; shares are sold with SELL_SHARES" if position_id in agent.shares else ""
            raise ActionError(
                f"you have no perpetual position {position_id!r}{_some(agent.perps)}{mend}"
            )
        margin, due = perp.margin, self.tick + self._config.hindsight_ticks
        received = self._close(agent, perp, "closed")
        self._closed.append(
            _Given(
                ticket,
                agent,
                received,
                perp.paid,
                perp.opened,
                perp=perp,
                margin=margin,
                due=due,
            )
        )

    def fund(self) -> None:
        """One funding payment: longs pay shorts where the mark is above the index, and so on.

        A payer pays no more than its margin; receivers share what was collected, and the vault,
        which stands against the side with more open interest, keeps the rest.
        """
        for ticker, perpetual in self.perpetuals.items():
            rate = perpetual.funding_rate()
            held = [p for a in self.agents.values() for p in a.perps.values() if p.ticker == ticker]
            collected = 0
            for perp in held:
                if perp.sign * rate > 0:
                    paid = min(perp.margin, money.part(perp.size, abs(rate)))
                    perp.margin -= paid
                    collected += paid
            due = {
                perp.id: money.granted(perp.size * abs(rate))
                for perp in held
                if perp.sign * rate < 0
            }
            total = sum(due.values())
            for perp in held:
                if perp.id in due:
                    part = due[perp.id] * min(collected, total) // total if total else 0
                    perp.margin += part
                    collected -= part
                    total -= due[perp.id]
            self.vault += collected

    def liquidate(self) -> None:
        """Close what has fallen below its maintenance margin, until nothing more does.

        Then close the most profitable positions as long as the vault could not pay all profits
        (auto-deleveraging).
        """
        while fallen := [
            (agent, perp)
            for agent in self.agents.values()
            for perp in agent.perps.values()
            if perp.margin + perp.profit(self._exit(perp)) < self._maintenance(perp)
        ]:
            for agent, perp in fallen:
                self._close(agent, perp, "liquidated", self._config.liquidation_fee)
        while True:
            winning = [
                (profit, agent.id, perp.id)
                for agent in self.agents.values()
                for perp in agent.perps.values()
                if (profit := perp.profit(self._exit(perp))) > 0
            ]
            if sum(profit for profit, _, _ in winning) <= self.vault:
                return
            _, agent_id, position = max(winning)
            agent = self.agents[agent_id]
            self._close(agent, agent.perps[position], "closed, as the vault ran short")

    def close_all(self) -> None:
        """The end of an episode: every position is closed at its mark price."""
        for agent in self.agents.values():
            for perp in list(agent.perps.values()):
                self._close(agent, perp, "closed at the end of the episode")

    def review(self, everything: bool) -> None:
        """Judge closed positions whose time has come (or all) against having kept them."""
        later = []
        for given in self._closed:
            if not everything and given.due > self.tick:
                later.append(given)
                continue
            assert given.perp is not None
            price = self.perpetuals[given.perp.ticker].mark()
            self._judge(given, max(0, given.margin + given.perp.profit(price)))
        self._closed = later

    def _close(self, agent: Agent, perp: Perp, how: str, extra_fee: float = 0.0) -> int:
        """Pay out a position; returns what the agent gets, at least 0.

        A loss ends with the margin; a profit ends with the vault.
        """
        price = self._exit(perp)
        profit = max(-perp.margin, min(self.vault, perp.profit(price)))
        left = perp.margin + profit
        fee = min(left, money.part(perp.size, self._config.perpetual_fee + extra_fee))
        self.vault -= profit
        self.fees += fee
        agent.balance += left - fee
        self.perpetuals[perp.ticker].trade(perp.size, perp.sign, opening=False)
        del agent.perps[perp.id]
        received = left - fee
        what = f"{perp.side} {perp.ticker}: {how} at {price / 100:.2f}"
        self._end(agent, perp.ticket, received - perp.paid, perp.paid, perp.opened, what)
        return received

    def _exit(self, perp: Perp) -> int:
        """The mark price that closing a position leads to."""
        perpetual = self.perpetuals[perp.ticker]
        return perpetual.mark(perpetual.skew - perp.sign * perp.size)

    def _maintenance(self, perp: Perp) -> int:
        return money.part(perp.size, self._config.maintenance_margin)

    # ------------------------------------------------------------ outcomes

    def _end(
        self, agent: Agent, ticket: int, profit: int, invested: int, opened: int, what: str
    ) -> None:
        agent.lifetime += profit
        self._settlements.staked(agent, ticket, profit, invested, self.tick - opened)
        note = {
            "kind": "trade",
            "text": f"{what}, profit {profit / 100:+.2f} on {invested / 100:.2f}",
            "pnl": money.dollars(profit),
            "minute": self.tick * self._config.tick_minutes,
        }
        agent.notes.append(note)

    def _judge(self, given: _Given, kept: int) -> None:
        held = self.tick - given.opened
        self._settlements.staked(
            given.agent, given.ticket, given.received - kept, max(1, given.basis), held
        )

    def _new_position(self) -> str:
        self._positions += 1
        return f"position-{self._positions}"


def _check_funds(agent: Agent, amount: int, what: str = "an amount") -> None:
    if amount > agent.balance:
        raise ActionError(
            f"{what} of {amount / 100:.2f} is more than your balance of {agent.balance / 100:.2f}"
        )


def _some(names: dict[str, object] | dict[str, PredictionMarket] | dict[str, Perpetual]) -> str:
    known = list(names)[:12]
    return f"; there are {', '.join(known)}" if known else "; there are none"
