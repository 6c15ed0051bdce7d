"""A decision as a fixed row of finite numbers; missing parts count as 0.

By default (``state_action``) they were known when the decision was made. ``with_outcome`` adds the
outcome, luck included, to judge the skill of agents rather than single decisions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlforge.continuous.decisions.records import Decision, Json
from rlforge.continuous.market.actions import FIELDS
from rlforge.types import value


def number(found: Any) -> float:
    """A finite number, or 0 for anything else."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0.0
    try:
        converted = float(found)
    except OverflowError:
        return 0.0
    return converted if math.isfinite(converted) else 0.0


def mapped(found: Any) -> Json:
    """A JSON object, or an empty one for anything else."""
    return found if isinstance(found, Mapping) else {}


def listed(found: Any) -> list[Json]:
    """The JSON objects of a list; none for anything else."""
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    return [entry for entry in found if isinstance(entry, Mapping)]


@value
class Target:
    """The market or ticker that a trade is ``about``. offer: its entry in ``state.markets``.

    sign: 1 if the trade gains when YES or the price rises, -1 if it loses; closing a position has
    the opposite sign of the position. position: the closed one.
    """

    about: str
    offer: Json
    sign: int
    position: Json | None = None

    @property
    def price(self) -> float:
        """Of a YES share, or of the perpetual; 0 if it is not shown."""
        return _price(self.offer)

    def price_in(self, state: Json) -> float:
        """The same in another state; 0 if either price is not known."""
        offer = _offer(self.about, state)
        return _price(offer) if offer is not None and self.price > 0 else 0.0


def find_target(action: Json, state: Json) -> Target | None:
    """The target of the trade ``action``, or None if ``state`` has none."""
    kind = action.get("type")
    if kind in ("BUY_SHARES", "OPEN_POSITION"):
        return _target(action, state)
    if kind in ("SELL_SHARES", "CLOSE_POSITION"):
        for position in listed(mapped(state.get("portfolio")).get("positions")):
            if position.get("id") == action.get("positionId"):
                held = _target(position, state)
                if held is None:
                    return None
                return dataclasses.replace(held, sign=-held.sign, position=position)
    return None


def sign_of(named: Json) -> int:
    """1 for YES shares and longs, -1 for NO shares and shorts; of an action or a position."""
    return 1 if named.get("outcome") == "YES" or named.get("side") == "long" else -1


def _target(named: Json, state: Json) -> Target | None:
    """From the ``marketId`` and ``outcome``, or the ``ticker`` and ``side``, of a trade."""
    about = named.get("marketId", named.get("ticker"))
    offer = _offer(about, state)
    return None if offer is None else Target(about=str(about), offer=offer, sign=sign_of(named))


def _offer(about: Any, state: Json) -> Json | None:
    markets = mapped(state.get("markets"))
    named = [(offer.get("id"), offer) for offer in listed(markets.get("predictions"))]
    named += [(offer.get("ticker"), offer) for offer in listed(markets.get("perpetuals"))]
    return next((offer for name, offer in named if name == about and about is not None), None)


def _price(offer: Json) -> float:
    return number(offer.get("yesPrice", offer.get("markPrice")))


STATE_ACTION, WITH_OUTCOME = "state_action", "with_outcome"

ACTION_TYPES = tuple(FIELDS)
_TRADES = ACTION_TYPES[:4]

#: Features are clipped to this absolute value, so that no outlier outweighs all others.
_WIDEST = 10.0

#: Decisions held for less are fast, as in the reward.
_FAST_MINUTES = 60.0

_BEFORE = (
    "balance",
    "exposure",
    "positions",
    "open_pnl",
    "lifetime_pnl",
    "recent_win_rate",
    "recent_trades",
    "repeats_itself",
    "unread_messages",
    "confidence",
    "reasoning_length",
    "investment_share",
    "leverage",
    "notional_share",
    "price_paid",
    "long_shot",
    "trend_in_favour",
    "feed_in_favour",
    "feed_voices",
    "memory_in_favour",
    "advice_over_price",
    "premium_in_favour",
    "funding_in_favour",
    "time_left",
    "adds_to_position",
    "against_position",
    "closes_gain",
    "closes_after",
    "invalid",
    *(f"is_{kind.lower()}" for kind in ACTION_TYPES),
)
_AFTER = (
    "settled",
    "pnl_per_investment",
    "made_money",
    "hold_time",
    "fast",
    "win_rate",
    "wealth_change",
    "price_change_in_favour",
)


def feature_names(features: str) -> tuple[str, ...]:
    """The columns of ``state_action`` or ``with_outcome``, in order."""
    return _BEFORE + _AFTER if features == WITH_OUTCOME else _BEFORE


def featurize(decisions: Sequence[Decision], features: str) -> NDArray[np.float64]:
    """One row per decision, one column per name of ``feature_names(features)``."""
    names = feature_names(features)
    rows = np.zeros((len(decisions), len(names)))
    for row, decision in zip(rows, decisions, strict=True):
        target = find_target(decision.action, decision.state)
        found = _portfolio(decision.state) | _habits(decision) | _trade(decision, target)
        if features == WITH_OUTCOME:
            found |= _outcome(decision, target)
        row[:] = [found.get(name, 0.0) for name in names]
    return np.clip(np.nan_to_num(rows, posinf=_WIDEST, neginf=-_WIDEST), -_WIDEST, _WIDEST)


def _portfolio(state: Mapping[str, Any]) -> dict[str, float]:
    portfolio = mapped(state.get("portfolio"))
    positions = listed(portfolio.get("positions"))
    wealth = _wealth(state)
    memory = listed(mapped(state.get("agent")).get("memory"))
    profits = [number(note["pnl"]) for note in memory if "pnl" in note]
    return {
        "balance": math.log1p(max(0.0, number(portfolio.get("balance")))),
        "exposure": _share(sum(number(p.get("value")) for p in positions), wealth),
        "positions": math.log1p(len(positions)),
        "open_pnl": _share(sum(number(p.get("pnl")) for p in positions), wealth),
        "lifetime_pnl": _share(number(portfolio.get("lifetimePnL")), wealth),
        "recent_win_rate": _mean(float(profit > 0) for profit in profits),
        "unread_messages": math.log1p(
            max(0.0, number(mapped(state.get("social")).get("unreadMessages")))
        ),
    }


def _habits(decision: Decision) -> dict[str, float]:
    kind = decision.action.get("type")
    recent = [
        a.get("type") for a in listed(mapped(decision.state.get("agent")).get("recentActions"))
    ]
    return {
        "recent_trades": _mean(float(past in _TRADES) for past in recent),
        "repeats_itself": float(bool(recent) and recent[-1] == kind),
        "confidence": decision.metadata.confidence,
        "reasoning_length": math.log1p(len(decision.metadata.reasoning)),
        **{f"is_{name.lower()}": float(kind == name) for name in ACTION_TYPES},
    }


def _trade(decision: Decision, target: Target | None) -> dict[str, float]:
    action, state = decision.action, decision.state
    kind = action.get("type")
    balance = number(mapped(state.get("portfolio")).get("balance"))
    if kind not in _TRADES:
        return {"invalid": float(kind not in ACTION_TYPES)}
    leverage = number(action.get("leverage"))
    size = number(action.get("amount")) if kind == "BUY_SHARES" else number(action.get("size"))
    stake = size / leverage if kind == "OPEN_POSITION" and leverage > 0 else size
    opens = kind in ("BUY_SHARES", "OPEN_POSITION")
    found = {"invalid": float(target is None or (opens and not 0 < stake <= balance))}
    if opens:
        found |= {
            "investment_share": _share(stake, balance),
            "leverage": math.log(leverage) if leverage > 0 else 0.0,
            "notional_share": _share(size, balance),
        }
    return found | (_against_market(target, state) if target else {})


def _against_market(target: Target, state: Mapping[str, Any]) -> dict[str, float]:
    """The trade compared with prices, news, memory and the agent's positions."""
    offer, sign, closing = target.offer, target.sign, target.position
    feed = _stances(listed(mapped(state.get("social")).get("feed")), target.about)
    noted = _stances(listed(mapped(state.get("agent")).get("memory")), target.about)
    positions = listed(mapped(state.get("portfolio")).get("positions"))
    held = [p for p in positions if target.about in (p.get("marketId"), p.get("ticker"))]
    same = [p for p in held if sign_of(p) == sign]
    mark, index = number(offer.get("markPrice")), number(offer.get("indexPrice"))
    price = number(offer.get("yesPrice" if sign > 0 else "noPrice"))
    advice = sign * (_mean(noted.values()) if noted else _mean(feed.values()))
    found = {
        "price_paid": price,
        "long_shot": max(0.0, 0.5 - price) if price else 0.0,
        "trend_in_favour": 10 * sign * number(offer.get("change")),
        "feed_in_favour": sign * _mean(feed.values()),
        "feed_voices": math.log1p(len(feed)),
        "memory_in_favour": sign * _mean(noted.values()),
        # Advice as a probability, less the price; a perpetual counts as an even chance, 0.5.
        "advice_over_price": 0.5 + 0.5 * advice - (price or 0.5),
        "premium_in_favour": 10 * sign * _share(index - mark, index),
        "funding_in_favour": -100 * sign * number(offer.get("fundingRate")),
        "time_left": math.log1p(max(0.0, number(offer.get("minutesLeft")))),
    }
    if closing is not None:
        cost = number(closing.get("value")) - number(closing.get("pnl"))
        return found | {
            "closes_gain": _share(number(closing.get("pnl")), cost),
            "closes_after": math.log1p(max(0.0, number(closing.get("minutesHeld")))),
        }
    return found | {
        "adds_to_position": float(bool(same)),
        "against_position": float(len(held) > len(same)),
    }


def _outcome(decision: Decision, target: Target | None) -> dict[str, float]:
    after, result = decision.next_state, decision.result
    found: dict[str, float] = {}
    if result is not None:
        found = {
            "settled": 1.0,
            "pnl_per_investment": _share(result.pnl, result.investment),
            "made_money": float(result.pnl > 0),
            "hold_time": math.log1p(max(0.0, result.hold_time_minutes)),
            "fast": float(result.hold_time_minutes < _FAST_MINUTES),
            "win_rate": result.win_rate,
        }
    if after is not None:
        before = _wealth(decision.state)
        found["wealth_change"] = 10 * _share(_wealth(after) - before, before)
        if target is not None and (price := target.price_in(after)):
            found["price_change_in_favour"] = 10 * target.sign * (price / target.price - 1)
    return found


def _stances(entries: Iterable[Mapping[str, Any]], about: str) -> dict[str, float]:
    """The last stance of each account about a market: 1 for YES or UP, -1 for NO or DOWN."""
    return {
        str(entry.get("userId")): 1.0 if entry.get("stance") in ("YES", "UP") else -1.0
        for entry in entries
        if entry.get("about") == about and entry.get("stance")
    }


def _wealth(state: Mapping[str, Any]) -> float:
    portfolio = mapped(state.get("portfolio"))
    values = (number(position.get("value")) for position in listed(portfolio.get("positions")))
    return number(portfolio.get("balance")) + sum(values)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0
