"""The market as its agents use it: they see a state, decide, and time passes in ticks.

Right answers, views of the news and moves of the indices depend on the seed alone.
"""

from __future__ import annotations

import random
from typing import Any

from rlforge.continuous.config.market import MAINTENANCE_MARGIN, STARTING_BALANCE, MarketConfig
from rlforge.continuous.market.accounts import Agent, Perp, Shares, cents, dollars
from rlforge.continuous.market.actions import CONFIDENCE, NOTE, ActionError, Json, check_form
from rlforge.continuous.market.books import Books, Receipt, Settled
from rlforge.continuous.market.desks import PerpDesk, ShareDesk
from rlforge.continuous.market.feed import Feed
from rlforge.continuous.market.perpetuals import Perpetual
from rlforge.continuous.market.predictions import OTHER, PredictionMarket, YesNo, invented_question
from rlforge.errors import nearest

#: Chance that an insider learns how a market ends or which way a ticker trends.
TIP_CHANCE = 0.8
#: Ticks between two funding payments.
FUNDING_INTERVAL = 4
#: Most characters in a post, comment or note.
MAX_POST_LENGTH = 280


class World:
    """A market, its clock and its agents; it uses neither wall time nor global randomness.

    Example:
        >>> world = World(MarketConfig(), seed=0)
        >>> world.join("agent-1")
        >>> world.state("agent-1")["portfolio"]["balance"]
        1000.0
        >>> receipt = world.decide("agent-1", {"type": "NO_OP"})
        >>> [settled.ticket == receipt.ticket for settled in world.tick()]
        [True]
    """

    def __init__(self, config: MarketConfig, seed: int = 0, tip_chance: float = TIP_CHANCE) -> None:
        self.config, self._tip_chance = config, tip_chance
        self.books = Books(config)
        self._shares, self._perps = ShareDesk(self.books), PerpDesk(self.books)
        self._seed = seed
        # One generator for each thing, so that an agent's actions change no draw of another.
        self._generators: dict[str, random.Random] = {}
        self._truth = self.generator("truth", seed)
        self._feed = Feed(self.books, self.generator("news", seed))
        self._tickets = self._opened = 0
        for ticker in config.tickers:
            rng = self.generator(f"index/{ticker}", seed)
            self.books.perpetuals[ticker] = Perpetual(ticker, config, rng)
        self._begin_episode()

    def generator(self, name: str, seed: int) -> random.Random:
        """A new source of chance for ``name``, which ``reseed`` starts anew."""
        made = self._generators[name] = random.Random(f"{seed}/{name}")
        return made

    def reseed(self, seed: int) -> None:
        """Draw the chance events that are still to come from ``seed``."""
        for name, generator in self._generators.items():
            generator.seed(f"{seed}/{name}")

    # ------------------------------------------------------------ for agents

    def join(self, agent_id: str, kind: str | None = None) -> None:
        """Open an account with the starting balance. Raises ``ValueError`` for a taken id.

        kind: a ``TraderKind``; None for models and people.
        """
        # A post names its author, so that agents and news accounts share one space of names.
        if agent_id in self.books.agents or agent_id in self.config.accounts or not agent_id:
            raise ValueError(f"the name {agent_id!r} is taken")
        rng = self.generator(f"agent/{agent_id}", self._seed)
        agent = Agent(agent_id, kind, rng, self.config.feed_length)
        self.books.agents[agent_id] = agent
        self.books.endow(agent, cents(STARTING_BALANCE))
        for market in self.books.predictions.values():
            self._tip(agent, market.id, market.truth)
        for perpetual in self.books.perpetuals.values():
            self._tip(agent, perpetual.ticker, perpetual.trend)

    def state(self, agent_id: str) -> dict[str, Any]:
        """The agent's ``GameState``, which never changes afterwards."""
        return game_state(self._agent(agent_id), self.books, self._shares, self._perps)

    def decide(self, agent_id: str, action: Any) -> Receipt:
        """Carry out an action; an invalid one changes nothing and the receipt says why."""
        agent = self._agent(agent_id)
        self._tickets += 1
        ticket = self._tickets
        try:
            checked = check_form(action)
            self._check_length(checked.get(NOTE, ""), NOTE)
            staked = self._carry_out(agent, ticket, checked)
        except ActionError as error:
            self.books.settle_unstaked(agent, ticket, invalid=True)
            return Receipt(ticket=ticket, agent_id=agent_id, accepted=False, problem=str(error))
        if not staked:
            self.books.settle_unstaked(agent, ticket, invalid=False)
        if NOTE in checked:
            agent.notes.append({"kind": "own", "text": checked[NOTE], "minute": self.minute})
        agent.recent.append({k: each for k, each in checked.items() if k not in (CONFIDENCE, NOTE)})
        agent.unread = 0
        return Receipt(ticket=ticket, agent_id=agent_id, accepted=True)

    # ------------------------------------------------------------ for the caller that runs it

    def tick(self) -> list[Settled]:
        """Let one tick pass; returns the decisions settled since the last, in order."""
        books, config = self.books, self.config
        books.tick += 1
        for perpetual in books.perpetuals.values():
            if perpetual.move():
                self._tip_all(perpetual.ticker, perpetual.trend)
        if books.tick % FUNDING_INTERVAL == 0:
            self._perps.fund()
        self._perps.liquidate()
        # A copy, because resolving takes a market out.
        for market in list(books.predictions.values()):
            market.tick()
            if market.closes <= books.tick:
                self._shares.resolve(market)
                for agent in books.agents.values():
                    agent.tips.pop(market.id, None)
        ending = books.tick % config.episode_ticks == 0
        if ending:
            self._perps.close_all()
        self._perps.review(everything=ending)
        if ending:
            self._end_episode()
            self._begin_episode()
        else:
            self._open_markets()
        self._feed.report()
        return self.books.take_settled()

    @property
    def agent_ids(self) -> list[str]:
        return list(self.books.agents)

    @property
    def minute(self) -> float:
        return self.books.minute

    @property
    def ticks(self) -> int:
        return self.books.tick

    def worth(self, agent_id: str) -> float:
        """The agent's wealth in dollars: balance, shares at their price, positions."""
        agent = self._agent(agent_id)
        shares = sum(map(self._shares.worth, agent.shares.values()))
        perps = sum(map(self._perps.worth, agent.perps.values()))
        return dollars(agent.balance + shares + perps)

    def episode_profits(self, agent_id: str) -> list[float]:
        """Profits of the agent in finished episodes, in dollars."""
        return [dollars(profit) for profit in self._agent(agent_id).episode_profits]

    # ------------------------------------------------------------ inside

    def _agent(self, agent_id: str) -> Agent:
        try:
            return self.books.agents[agent_id]
        except KeyError:
            raise ValueError(f"no agent {agent_id!r} has joined") from None

    def _carry_out(self, agent: Agent, ticket: int, action: Json) -> bool:
        """Execute an action; returns whether money is at stake."""
        match action["type"]:
            case "BUY_SHARES":
                amount = cents(action["amount"])
                self._shares.buy(agent, ticket, action["marketId"], action["outcome"], amount)
            case "SELL_SHARES":
                self._shares.sell(agent, ticket, action["positionId"], action["shares"])
            case "OPEN_POSITION":
                size, leverage = cents(action["size"]), action["leverage"]
                self._perps.open(agent, ticket, action["ticker"], action["side"], size, leverage)
            case "CLOSE_POSITION":
                self._perps.close(agent, ticket, action["positionId"])
            case "CREATE_POST" | "CREATE_COMMENT":
                self._publish(agent, action)
                return False
            case "FOLLOW_USER":
                self._follow(agent, action["userId"])
                return False
            case _:
                return False
        return True

    def _publish(self, agent: Agent, action: Json) -> None:
        content = action["content"]
        self._check_length(content, "content")
        reply_to = action.get("postId")
        if reply_to is not None and reply_to not in self._feed:
            raise ActionError(f"no post {reply_to!r} to comment on")
        self._feed.post(agent.id, content, reply_to=reply_to)

    def _check_length(self, text: str, field: str) -> None:
        if len(text) > MAX_POST_LENGTH:
            raise ActionError(
                f"{field} has {len(text)} characters; at most {MAX_POST_LENGTH} are allowed"
            )

    def _follow(self, agent: Agent, user: str) -> None:
        if user == agent.id:
            raise ActionError("you cannot follow yourself")
        if user in agent.follows:
            raise ActionError(f"you follow {user} already")
        if user not in self.books.agents and user not in self.config.accounts:
            raise ActionError(f"no user {user!r}{nearest(user, self.config.accounts)}")
        agent.follows.add(user)

    def _begin_episode(self) -> None:
        self.books.fill_vault(cents(self.config.vault))
        for agent in self.books.agents.values():
            self.books.endow(agent, cents(STARTING_BALANCE))
        self._open_markets()

    def _end_episode(self) -> None:
        for agent in self.books.agents.values():
            profit = agent.balance - cents(STARTING_BALANCE)
            agent.episode_profits.append(profit)
            # Else what agents gather once, such as follows, would look like learning.
            agent.follows.clear()
            agent.trades = agent.wins = 0

    def _open_markets(self) -> None:
        books, config = self.books, self.config
        for _ in range(config.predictions - len(books.predictions)):
            self._opened += 1
            truth: YesNo = "YES" if self._truth.random() < 0.5 else "NO"
            lifetime = self._truth.randint(config.min_lifetime, config.max_lifetime)
            # No market outlives its episode, so that every decision is settled with it.
            episode_end = (books.tick // config.episode_ticks + 1) * config.episode_ticks
            market = PredictionMarket(
                f"market-{self._opened}",
                invented_question(self._truth),
                truth,
                {
                    account: truth if self._truth.random() < right else OTHER[truth]
                    for account, right in config.accounts.items()
                },
                cents(config.liquidity),
                min(books.tick + lifetime, episode_end),
            )
            self._shares.open_market(market)
            self._tip_all(market.id, truth)

    def _tip_all(self, about: str, stance: str) -> None:
        for agent in self.books.agents.values():
            self._tip(agent, about, stance)

    def _tip(self, agent: Agent, about: str, stance: str) -> None:
        """Give an insider the truth, with probability ``tip_chance``."""
        if agent.kind != "insider":
            return
        # A tip about a trend that has ended would be wrong.
        agent.tips.pop(about, None)
        if agent.rng.random() < self._tip_chance:
            agent.tips[about] = {
                "kind": "tip",
                "text": f"I was told that {about} is {stance}",
                "about": about,
                "stance": stance,
                "minute": self.minute,
            }


def game_state(agent: Agent, books: Books, shares: ShareDesk, perps: PerpDesk) -> dict[str, Any]:
    """``GameState`` as JSON: all that an agent observes, in dollars, newest last."""
    tick, minutes = books.tick, books.config.tick_minutes
    to_funding = FUNDING_INTERVAL - tick % FUNDING_INTERVAL
    positions = [
        _shares(lot, shares.worth(lot), (tick - lot.opened) * minutes)
        for lot in agent.shares.values()
    ]
    positions += [
        _perp(perp, perps.worth(perp), (tick - perp.opened) * minutes)
        for perp in agent.perps.values()
    ]
    # Parts are shared between states and replaced, never changed, so that a state can be kept.
    return {
        "portfolio": {
            "balance": dollars(agent.balance),
            "positions": positions,
            "lifetimePnL": dollars(agent.lifetime),
        },
        "markets": {
            "predictions": [m.to_json(tick, minutes) for m in books.predictions.values()],
            "perpetuals": [p.to_json(to_funding) for p in books.perpetuals.values()],
        },
        "social": {"feed": list(agent.feed), "unreadMessages": agent.unread},
        "agent": {
            "recentActions": list(agent.recent),
            "memory": [*agent.tips.values(), *agent.notes],
            "following": sorted(agent.follows),
            "minute": books.minute,
        },
    }


def _shares(lot: Shares, worth: int, minutes_held: float) -> dict[str, Any]:
    return {
        "id": lot.id,
        "kind": "shares",
        "marketId": lot.market_id,
        "outcome": lot.outcome,
        "shares": lot.units / 100,
        "cost": dollars(lot.basis),
        "value": dollars(worth),
        "pnl": dollars(worth - lot.basis),
        "minutesHeld": minutes_held,
    }


def _perp(perp: Perp, worth: int, minutes_held: float) -> dict[str, Any]:
    # The price at which margin plus profit equals the maintenance margin, before impact of closing.
    room = perp.margin / perp.size - MAINTENANCE_MARGIN
    return {
        "id": perp.id,
        "kind": "perpetual",
        "ticker": perp.ticker,
        "side": perp.side,
        "size": dollars(perp.size),
        "leverage": perp.leverage,
        "entryPrice": dollars(perp.entry),
        "liquidationPrice": round(max(0.0, perp.entry * (1 - perp.sign * room)) / 100, 2),
        "margin": dollars(perp.margin),
        "value": dollars(worth),
        "pnl": dollars(worth - perp.cost),
        "minutesHeld": minutes_held,
    }
