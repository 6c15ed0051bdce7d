"""Scripted traders of different skill. Each reads a ``GameState`` and answers with an action."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.market.actions import NO_OP, Json, buy, leave, open_position
from rlforge.continuous.market.books import Receipt
from rlforge.continuous.market.desks import PREDICTION_FEE
from rlforge.continuous.market.world import World
from rlforge.types import value

#: A price change that momentum traders call a move: of a share in dollars, of an index relative.
_SHARE_MOVE, _INDEX_MOVE = 0.05, 0.012
#: Gain per share that a value trader wants, and the probability of a trend that it needs.
_EDGE, _SURE = 0.06, 0.65
#: Fraction of the Kelly stake (Kelly 1956) that value traders bet, and of their balance at most.
_KELLY, _MOST = 0.3, 0.15
#: The smallest amount worth a trade, in dollars.
_LEAST = 5.0
_TIP_TRUST = 0.98


class NoiseTrader:
    def __init__(self, config: MarketConfig, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, state: Json) -> Json:
        rng, positions = self._rng, state["portfolio"]["positions"]
        draw = rng.random()
        if draw < 0.04:
            return self._talk(state)
        if draw < 0.2:
            return NO_OP
        if positions and draw < 0.3 + 0.03 * len(positions):
            return leave(rng.choice(positions))
        return self._trade(state)

    def _trade(self, state: Json) -> Json:
        rng, markets = self._rng, state["markets"]
        stake = state["portfolio"]["balance"] * rng.uniform(0.02, 0.12)
        if stake < _LEAST:
            return NO_OP
        offers = [*markets["predictions"], *markets["perpetuals"]]
        offer = rng.choice(offers)
        if "ticker" not in offer:
            return buy(offer["id"], rng.choice(("YES", "NO")), stake)
        leverage = rng.randint(1, 5)
        return open_position(
            offer["ticker"], rng.choice(("long", "short")), stake * leverage, leverage
        )

    def _talk(self, state: Json) -> Json:
        rng, feed = self._rng, state["social"]["feed"]
        if not feed or rng.random() < 0.4:
            offers = state["markets"]["predictions"]
            about = rng.choice(offers)["id"] if offers else "it all"
            return {"type": "CREATE_POST", "content": f"I have a feeling about {about}."}
        post = rng.choice(feed)
        if rng.random() < 0.5 or post["userId"] in state["agent"]["following"]:
            return {"type": "CREATE_COMMENT", "postId": post["id"], "content": "Not so sure."}
        return {"type": "FOLLOW_USER", "userId": post["userId"]}


class MomentumTrader:
    """Buys what has risen most, sells what has fallen, closes positions when a ticker turns."""

    def __init__(self, config: MarketConfig, rng: random.Random) -> None:
        self._rng = rng

    def decide(self, state: Json) -> Json:
        markets, portfolio = state["markets"], state["portfolio"]
        moves = {offer["ticker"]: offer["change"] for offer in markets["perpetuals"]}
        held = set()
        for position in portfolio["positions"]:
            if position["kind"] == "shares":
                held.add(position["marketId"])
                continue
            held.add(position["ticker"])
            sign = 1 if position["side"] == "long" else -1
            if sign * moves[position["ticker"]] < -_INDEX_MOVE:
                return leave(position)
        stake = 0.05 * portfolio["balance"]
        found: list[tuple[float, str, Json]] = []
        for offer in markets["predictions"]:
            change = offer["change"]
            if abs(change) > _SHARE_MOVE and offer["id"] not in held:
                action = buy(offer["id"], "YES" if change > 0 else "NO", stake)
                found.append((abs(change) / _SHARE_MOVE, offer["id"], action))
        for ticker, change in moves.items():
            if abs(change) > _INDEX_MOVE and ticker not in held:
                action = open_position(ticker, "long" if change > 0 else "short", 3 * stake, 3)
                found.append((abs(change) / _INDEX_MOVE, ticker, action))
        if not found or stake < _LEAST:
            return NO_OP
        return max(found, key=lambda move: move[:2])[2]


class ValueTrader:
    """Adds up the accounts' views as log-odds, and buys what is too cheap."""

    def __init__(self, config: MarketConfig, rng: random.Random) -> None:
        # Bayes with independent views: one that is right with probability r adds ln(r / (1 − r)),
        # which is bounded, because an account that is always right would outweigh all others.
        self._weights = {
            account: math.log(max(right, 0.01) / max(1 - right, 0.01))
            for account, right in config.accounts.items()
        }

    def decide(self, state: Json) -> Json:
        beliefs = self._beliefs(state)
        portfolio = state["portfolio"]
        staked: dict[str, float] = {}
        for position in portfolio["positions"]:
            about, against = _about(position)
            belief = beliefs.get(about, 0.5)
            if (1 - belief if against else belief) < 0.5 - _EDGE:
                return leave(position)
            staked[about] = staked.get(about, 0.0) + position["value"]
        if best := self._best_trade(state, beliefs, staked):
            return best
        for account, weight in self._weights.items():
            if weight > 0.5 and account not in state["agent"]["following"]:
                return {"type": "FOLLOW_USER", "userId": account}
        return NO_OP

    def _beliefs(self, state: Json) -> dict[str, float]:
        """The probability of YES or UP of each market or ticker with known views."""
        views: dict[str, dict[str, float]] = {}
        for post in state["social"]["feed"]:
            weight = self._weights.get(post["userId"])
            if weight is not None and post["about"]:
                sign = 1 if post["stance"] in ("YES", "UP") else -1
                # The feed is oldest first, so the newest view replaces earlier ones; adding them up
                # would count one account several times.
                views.setdefault(post["about"], {})[post["userId"]] = sign * weight
        return {about: 1 / (1 + math.exp(-sum(odds.values()))) for about, odds in views.items()}

    def _best_trade(
        self, state: Json, beliefs: Mapping[str, float], staked: Mapping[str, float]
    ) -> Json | None:
        balance = state["portfolio"]["balance"]
        best: tuple[float, Json] | None = None
        for offer in state["markets"]["predictions"]:
            belief = beliefs.get(offer["id"])
            if belief is None:
                continue
            for outcome, chance, price in (
                ("YES", belief, offer["yesPrice"]),
                ("NO", 1 - belief, offer["noPrice"]),
            ):
                edge = chance - price * (1 + PREDICTION_FEE) - 0.01
                if edge < _EDGE:
                    continue
                kelly = _KELLY * edge / (1 - price)
                stake = min(kelly, _MOST) * balance - staked.get(offer["id"], 0.0)
                # A rounded price may be 0, which nothing can be divided by.
                gain = edge / max(price, 0.001)
                if stake >= _LEAST and (best is None or gain > best[0]):
                    best = (gain, buy(offer["id"], outcome, stake))
        for offer in state["markets"]["perpetuals"]:
            ticker = offer["ticker"]
            belief = beliefs.get(ticker, 0.5)
            sure = max(belief, 1 - belief)
            stake = 0.1 * balance
            if sure >= _SURE and ticker not in staked and stake >= _LEAST:
                # A trend returns about 0.15 over its mean remaining time.
                value = (2 * sure - 1) * 0.15
                if best is None or value > best[0]:
                    best = (
                        value,
                        open_position(ticker, "long" if belief > 0.5 else "short", 3 * stake, 3),
                    )
        return best[1] if best else None


class InsiderTrader(ValueTrader):
    """Believes its tips, and the news where it has no tip."""

    def _beliefs(self, state: Json) -> dict[str, float]:
        beliefs = super()._beliefs(state)
        for note in state["agent"]["memory"]:
            if note["kind"] == "tip":
                true = note["stance"] in ("YES", "UP")
                beliefs[note["about"]] = _TIP_TRUST if true else 1 - _TIP_TRUST
        return beliefs


Trader = NoiseTrader | MomentumTrader | ValueTrader
"""Its ``decide`` gives the action in a ``GameState``."""

_TRADERS: dict[str, type[Trader]] = {
    "noise": NoiseTrader,
    "momentum": MomentumTrader,
    "value": ValueTrader,
    "insider": InsiderTrader,
}


def make_trader(kind: str, config: MarketConfig, rng: random.Random) -> Trader:
    """A trader of a ``TraderKind``, whose actions depend on ``rng`` and states alone."""
    return _TRADERS[kind](config, rng)


def _about(position: Json) -> tuple[str, bool]:
    """The market or ticker of a position, and whether it is against YES or UP."""
    if position["kind"] == "shares":
        return position["marketId"], position["outcome"] == "NO"
    return position["ticker"], position["side"] == "short"


@value
class Choice:
    agent_id: str
    kind: str
    state: Json
    action: Json
    receipt: Receipt


class Crowd:
    """The scripted traders of a market, which join the world as ``noise-1`` and so on."""

    def __init__(self, world: World, seed: int = 0) -> None:
        self._world = world
        self._order = world.generator("order", seed)
        self._traders: list[tuple[str, str, Trader]] = []
        for kind, count in world.config.scripted.items():
            for number in range(1, count + 1):
                agent_id = f"{kind}-{number}"
                world.join(agent_id, kind)
                rng = world.generator(f"trader/{agent_id}", seed)
                self._traders.append((agent_id, kind, make_trader(kind, world.config, rng)))

    def act(self) -> list[Choice]:
        """Let each trader decide once, in a new order; it sees the effect of those before."""
        self._order.shuffle(self._traders)
        choices = []
        for agent_id, kind, trader in self._traders:
            state = self._world.state(agent_id)
            action = trader.decide(state)
            receipt = self._world.decide(agent_id, action)
            choices.append(
                Choice(agent_id=agent_id, kind=kind, state=state, action=action, receipt=receipt)
            )
        return choices
