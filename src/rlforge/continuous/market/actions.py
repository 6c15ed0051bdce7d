"""Actions as JSON, and the check of their form. ``World.decide`` checks what is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlforge.errors import RlforgeError, nearest
from rlforge.system.values import writable

Json = Mapping[str, Any]

NO_OP: Final[Json] = {"type": "NO_OP"}


class ActionError(RlforgeError):
    """An invalid action, which changes nothing; the message says why."""


_TEXT, _NUMBER, _SHARE = "a text", "a number above 0", "a number from 0 to 1"
_OUTCOMES, _SIDES = ("YES", "NO"), ("long", "short")

CONFIDENCE, NOTE = "confidence", "note"
"""Fields that any action may have: how sure the agent is; what it will remember."""

#: The fields of each type, and what each must be.
FIELDS: Final[dict[str, dict[str, str | tuple[str, ...]]]] = {
    "BUY_SHARES": {"marketId": _TEXT, "outcome": _OUTCOMES, "amount": _NUMBER},
    "SELL_SHARES": {"positionId": _TEXT, "shares": _NUMBER},
    "OPEN_POSITION": {"ticker": _TEXT, "side": _SIDES, "size": _NUMBER, "leverage": _NUMBER},
    "CLOSE_POSITION": {"positionId": _TEXT},
    "CREATE_POST": {"content": _TEXT},
    "CREATE_COMMENT": {"postId": _TEXT, "content": _TEXT},
    "FOLLOW_USER": {"userId": _TEXT},
    "NO_OP": {},
}


def check_form(action: Any) -> Json:
    """``action``, if it has a known type and the fields of that type. Raises ``ActionError``."""
    if not isinstance(action, Mapping):
        raise ActionError('an action is a JSON object such as {"type": "NO_OP"}')
    kind = action.get("type")
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        raise ActionError(
            f"type {kind!r} is unknown{nearest(str(kind), FIELDS)}; there are {', '.join(FIELDS)}"
        )
    unknown = [name for name in action if name not in {"type", CONFIDENCE, NOTE, *fields}]
    if unknown or not fields.keys() <= action.keys():
        wrong = [f"{name} is missing" for name in fields if name not in action]
        wrong += [f"{name!r} is unknown" for name in unknown]
        listed = ", ".join(fields) or "nothing"
        raise ActionError(f"{kind} wants {listed} besides its type: {', '.join(wrong)}")
    for name, wanted in {**fields, NOTE: _TEXT, CONFIDENCE: _SHARE}.items():
        if name in action and not _fits(action[name], wanted):
            want = " or ".join(wanted) if isinstance(wanted, tuple) else wanted
            shown = repr(action[name])
            shown = shown if len(shown) <= 40 else f"{shown[:40]}…"
            raise ActionError(f"{kind}.{name} must be {want}, not {shown}")
    # Models send lone surrogates, which no file can hold.
    return {
        name: writable(given) if isinstance(given, str) else given for name, given in action.items()
    }


def action_schema(state: Json) -> dict[str, Any]:
    """The JSON schema of the actions that an agent in ``state`` may take.

    The market may still refuse one, as where the price has moved.
    """
    portfolio, markets = state["portfolio"], state["markets"]
    feed, balance = state["social"]["feed"], portfolio["balance"]
    predictions = [market["id"] for market in markets["predictions"]]
    perpetuals = {market["ticker"]: market["maxLeverage"] for market in markets["perpetuals"]}
    accounts = sorted({post["userId"] for post in feed} - {*state["agent"]["following"]})
    # Only names that the agent sees and amounts within its means: a grammar made of this refuses
    # nearly all that the market would refuse.
    kinds = []
    if balance >= 1 and predictions:
        fields = {"marketId": {"enum": predictions}, "outcome": {"enum": [*_OUTCOMES]}}
        kinds.append(_schema("BUY_SHARES", **fields, amount=_amount(1, balance)))
    if balance >= 1 and perpetuals:
        kinds.append(
            _schema(
                "OPEN_POSITION",
                ticker={"enum": [*perpetuals]},
                side={"enum": [*_SIDES]},
                size=_amount(1, balance),
                leverage=_amount(1, min(perpetuals.values())),
            )
        )
    for position in portfolio["positions"]:
        own = {"const": position["id"]}
        if position["kind"] == "shares":
            held = position["shares"]
            kinds.append(_schema("SELL_SHARES", positionId=own, shares=_amount(min(1, held), held)))
        else:
            kinds.append(_schema("CLOSE_POSITION", positionId=own))
    kinds.append(_schema("CREATE_POST", content=_WORDS))
    if feed:
        posts = {"enum": [post["id"] for post in feed]}
        kinds.append(_schema("CREATE_COMMENT", postId=posts, content=_WORDS))
    if accounts:
        kinds.append(_schema("FOLLOW_USER", userId={"enum": accounts}))
    return {"anyOf": [*kinds, _schema("NO_OP")]}


# Short, so that an answer has room for it.
_WORDS: Final[Json] = {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": 100}


def _amount(least: float, most: float) -> Json:
    return {"type": "number", "minimum": least, "maximum": most, "multipleOf": 0.01}


def _schema(kind: str, **fields: Json) -> dict[str, Any]:
    own = {"type": {"const": kind}, **fields}
    return {
        "type": "object",
        "properties": {**own, CONFIDENCE: _amount(0, 1), NOTE: _WORDS},
        "required": [*own],
        "additionalProperties": False,
    }


def buy(market_id: str, outcome: str, amount: float) -> Json:
    return {
        "type": "BUY_SHARES",
        "marketId": market_id,
        "outcome": outcome,
        "amount": round(amount, 2),
    }


def open_position(ticker: str, side: str, size: float, leverage: float) -> Json:
    return {
        "type": "OPEN_POSITION",
        "ticker": ticker,
        "side": side,
        "size": round(size, 2),
        "leverage": leverage,
    }


def leave(position: Json) -> Json:
    """Sell all shares, or close the position."""
    if position["kind"] == "shares":
        return {"type": "SELL_SHARES", "positionId": position["id"], "shares": position["shares"]}
    return {"type": "CLOSE_POSITION", "positionId": position["id"]}


def _fits(given: Any, wanted: str | tuple[str, ...]) -> bool:
    if isinstance(wanted, tuple):
        return given in wanted
    if wanted == _TEXT:
        return isinstance(given, str) and bool(given.strip())
    if isinstance(given, bool) or not isinstance(given, int | float):
        return False
    # 1e12 is far above every traded amount, and small enough to count in cents.
    return 0 <= given <= 1 if wanted == _SHARE else 0 < given <= 1e12
