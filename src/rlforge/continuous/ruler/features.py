"""A decision as a fixed row of finite numbers; missing parts count as 0.

``state_action`` is what was known when it was made. ``with_outcome`` adds the outcome, luck
included, to judge the skill of agents rather than single decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlforge.continuous.decisions.records import Decision, Json, Metadata, Result
from rlforge.continuous.decisions.reward import FAST_MINUTES
from rlforge.continuous.market.actions import FIELDS

STATE_ACTION, WITH_OUTCOME = "state_action", "with_outcome"

ACTION_TYPES = tuple(FIELDS)
_TRADES = ACTION_TYPES[:4]
_OPENING = ("BUY_SHARES", "OPEN_POSITION")

# Features are clipped to this absolute value, so that no outlier outweighs all others.
_WIDEST = 10.0


def feature_names(features: str) -> tuple[str, ...]:
    """The columns of ``state_action`` or ``with_outcome``."""
    # Read off a decision without content, so that no name is listed twice.
    nothing = Metadata(provider="")
    decision = Decision(
        id="", agent_id="", window_id="", state={}, action={}, timestamp=0.0, metadata=nothing
    )
    return tuple(_row(decision, features))


def featurize(decisions: Sequence[Decision], features: str) -> NDArray[np.float64]:
    """The row of each decision, with the columns ``feature_names(features)``."""
    rows = np.zeros((len(decisions), len(feature_names(features))))
    for row, decision in zip(rows, decisions, strict=True):
        row[:] = list(_row(decision, features).values())
    return np.clip(np.nan_to_num(rows, posinf=_WIDEST, neginf=-_WIDEST), -_WIDEST, _WIDEST)


def sign_of(named: Json) -> int:
    """1 for an action or position of YES shares and longs, -1 for NO shares and shorts."""
    return 1 if named.get("outcome") == "YES" or named.get("side") == "long" else -1


class _Target(NamedTuple):
    """The market or ticker that a trade is ``about``, and the ``offer`` in ``state.markets``.

    All is empty for other actions, and for trades of what ``state`` does not have. sign: 1 if the
    trade gains when YES or the price rises, -1 if it loses. closed: the position that the trade
    ends, with the opposite sign; empty for other trades.
    """

    about: str | None = None
    offer: Json = MappingProxyType({})
    sign: int = 0
    closed: Json = MappingProxyType({})


def _row(decision: Decision, features: str) -> dict[str, float]:
    kind, target = decision.action.get("type"), _find_target(decision.action, decision.state)
    row = _situation(decision) | _trade(decision, target)
    row |= {f"is_{name.lower()}": float(kind == name) for name in ACTION_TYPES}
    return row | _outcome(decision, target) if features == WITH_OUTCOME else row


def _situation(decision: Decision) -> dict[str, float]:
    state = decision.state
    portfolio, wealth = _part(state, "portfolio"), _wealth(state)
    positions = _listed(portfolio, "positions")
    recent = [past.get("type") for past in _listed(_part(state, "agent"), "recentActions")]
    profits = [
        _number(note, "pnl") for note in _listed(_part(state, "agent"), "memory") if "pnl" in note
    ]
    return {
        "balance": _logarithm(_number(portfolio, "balance")),
        "exposure": _share(sum(_number(held, "value") for held in positions), wealth),
        "positions": _logarithm(len(positions)),
        "open_pnl": _share(sum(_number(held, "pnl") for held in positions), wealth),
        "lifetime_pnl": _share(_number(portfolio, "lifetimePnL"), wealth),
        "recent_win_rate": _mean(float(profit > 0) for profit in profits),
        "recent_trades": _mean(float(past in _TRADES) for past in recent),
        "repeats_itself": float(bool(recent) and recent[-1] == decision.action.get("type")),
        "unread_messages": _logarithm(_number(_part(state, "social"), "unreadMessages")),
        "confidence": decision.metadata.confidence,
        "reasoning_length": _logarithm(len(decision.metadata.reasoning)),
    }


def _trade(decision: Decision, target: _Target) -> dict[str, float]:
    action, state, kind = decision.action, decision.state, decision.action.get("type")
    portfolio, opens = _part(state, "portfolio"), kind in _OPENING
    balance = _number(portfolio, "balance")
    leverage = _number(action, "leverage") if opens else 0.0
    size = _number(action, "amount" if kind == "BUY_SHARES" else "size") if opens else 0.0
    stake = size / leverage if kind == "OPEN_POSITION" and leverage > 0 else size
    allowed = bool(target.offer) and (not opens or 0 < stake <= balance)
    offer, sign, closed = target.offer, target.sign, target.closed
    feed = _stances(_listed(_part(state, "social"), "feed"), target.about)
    noted = _stances(_listed(_part(state, "agent"), "memory"), target.about)
    held = [one for one in _listed(portfolio, "positions") if _named(one) == target.about]
    same = [one for one in held if sign_of(one) == sign]
    mark, index = _number(offer, "markPrice"), _number(offer, "indexPrice")
    price = _number(offer, "yesPrice" if sign > 0 else "noPrice")
    # A note outweighs the feed, because an insider's note is the truth.
    advice = sign * (_mean(noted.values()) if noted else _mean(feed.values()))
    cost = _number(closed, "value") - _number(closed, "pnl")
    return {
        "investment_share": _share(stake, balance),
        "leverage": math.log(leverage) if leverage > 0 else 0.0,
        "notional_share": _share(size, balance),
        "price_paid": price,
        "long_shot": max(0.0, 0.5 - price) if price else 0.0,
        "trend_in_favour": 10 * sign * _number(offer, "change"),
        "feed_in_favour": sign * _mean(feed.values()),
        "feed_voices": _logarithm(len(feed)),
        "memory_in_favour": sign * _mean(noted.values()),
        # Advice as a probability, less the price; a perpetual counts as an even chance, 0.5.
        "advice_over_price": 0.5 + 0.5 * advice - (price or 0.5),
        "premium_in_favour": 10 * sign * _share(index - mark, index),
        "funding_in_favour": -100 * sign * _number(offer, "fundingRate"),
        "time_left": _logarithm(_number(offer, "minutesLeft")),
        "adds_to_position": float(bool(same) and not closed),
        "against_position": float(len(held) > len(same) and not closed),
        "closes_gain": _share(_number(closed, "pnl"), cost),
        "closes_after": _logarithm(_number(closed, "minutesHeld")),
        "invalid": float(kind not in ACTION_TYPES or (kind in _TRADES and not allowed)),
    }


def _outcome(decision: Decision, target: _Target) -> dict[str, float]:
    settled = decision.result is not None
    after = decision.state if decision.next_state is None else decision.next_state
    result = decision.result or Result(pnl=0.0, investment=0.0, hold_time_minutes=0.0, win_rate=0.0)
    before, price = _wealth(decision.state), _price(target.offer)
    later = _price(_offer(target.about, after))
    change = target.sign * (later / price - 1) if price > 0 and later else 0.0
    return {
        "settled": float(settled),
        "pnl_per_investment": _share(result.pnl, result.investment),
        "made_money": float(result.pnl > 0),
        "hold_time": _logarithm(result.hold_time_minutes),
        "fast": float(settled and result.hold_time_minutes < FAST_MINUTES),
        "win_rate": result.win_rate,
        "wealth_change": 10 * _share(_wealth(after) - before, before),
        "price_change_in_favour": 10 * change,
    }


def _find_target(action: Json, state: Json) -> _Target:
    kind, named = action.get("type"), action
    closes = kind in ("SELL_SHARES", "CLOSE_POSITION")
    if closes:
        positions = _listed(_part(state, "portfolio"), "positions")
        wanted = action.get("positionId")
        named = next((held for held in positions if held.get("id") == wanted), {})
    offer, sign = _offer(_named(named), state), sign_of(named)
    if kind not in _TRADES or not offer:
        return _Target()
    about = str(_named(named))
    return _Target(about, offer, -sign, named) if closes else _Target(about, offer, sign)


def _named(trade: Json) -> Any:
    return trade.get("marketId", trade.get("ticker"))


def _offer(about: Any, state: Json) -> Json:
    markets = _part(state, "markets")
    for part, key in (("predictions", "id"), ("perpetuals", "ticker")):
        for offer in _listed(markets, part):
            if about is not None and offer.get(key) == about:
                return offer
    return {}


def _price(offer: Json) -> float:
    return _number(offer, "yesPrice" if "yesPrice" in offer else "markPrice")


def _stances(entries: Iterable[Json], about: str | None) -> dict[str, float]:
    """The last stance of each account about a market: 1 for YES or UP, -1 for NO or DOWN."""
    return {
        str(entry.get("userId")): 1.0 if entry.get("stance") in ("YES", "UP") else -1.0
        for entry in entries
        if about is not None and entry.get("about") == about and entry.get("stance")
    }


def _wealth(state: Json) -> float:
    portfolio = _part(state, "portfolio")
    values = (_number(position, "value") for position in _listed(portfolio, "positions"))
    return _number(portfolio, "balance") + sum(values)


def _number(found: Json, name: str) -> float:
    """A finite number; 0 for anything else."""
    inside = found.get(name)
    if isinstance(inside, bool) or not isinstance(inside, int | float):
        return 0.0
    try:
        return float(inside) if math.isfinite(inside) else 0.0
    except OverflowError:
        # JSON bounds integers nowhere, and a float cannot hold all.
        return 0.0


def _part(found: Json, name: str) -> Json:
    """A JSON object; an empty one for anything else."""
    inside = found.get(name)
    return inside if isinstance(inside, Mapping) else {}


def _listed(found: Json, name: str) -> list[Json]:
    """The JSON objects of a list; none for anything else."""
    inside = found.get(name)
    if not isinstance(inside, list | tuple):
        return []
    return [one for one in inside if isinstance(one, Mapping)]


def _logarithm(size: float) -> float:
    return math.log1p(max(0.0, size))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0
