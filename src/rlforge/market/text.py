"""The market in prose for language models and people, and parsing of their answers."""

from __future__ import annotations

import json
from typing import Any

from rlforge.market.actions import ActionError, Json, check_form
from rlforge.types import value

_RULES = """\
You trade on a market in simulated time. Shares of a prediction market pay $1.00 each if their \
answer turns out right and nothing otherwise. Perpetual futures gain or lose with the mark price, \
times their leverage; a position whose margin is nearly used up is liquidated. Trades cost a fee. \
News accounts differ in how often they are right. Make as much profit as you can."""

_ACTIONS = """\
Answer with one action as a JSON object, of one of these forms:
{"type": "BUY_SHARES", "marketId": "market-1", "outcome": "YES", "amount": 50}
{"type": "SELL_SHARES", "positionId": "position-1", "shares": 10.5}
{"type": "OPEN_POSITION", "ticker": "ACME", "side": "long", "size": 150, "leverage": 3}
{"type": "CLOSE_POSITION", "positionId": "position-1"}
{"type": "CREATE_POST", "content": "..."}
{"type": "CREATE_COMMENT", "postId": "post-1", "content": "..."}
{"type": "FOLLOW_USER", "userId": "..."}
{"type": "NO_OP"}
outcome is YES or NO, side long or short; amount is dollars spent; size is dollars of exposure, \
of which size / leverage is taken from the balance as margin."""


@value
class ParsedAction:
    """The action in an answer; None if it holds none of the right form.

    feedback: what was wrong, for the next try; empty if nothing was wrong.
    """

    action: Json | None
    feedback: str = ""


def prompt(state: Json) -> str:
    """The rules, all of a ``GameState``, and the forms of an answer."""
    return f"{_RULES}\n\n{describe(state)}\n\n{_ACTIONS}"


def describe(state: Json) -> str:
    """A ``GameState`` in short lines, newest posts last."""
    portfolio, markets, social, agent = (
        state[part] for part in ("portfolio", "markets", "social", "agent")
    )
    lines = [
        f"Minute {agent['minute']:g}. Balance {_money(portfolio['balance'])}, "
        f"lifetime profit {portfolio['lifetimePnL']:+.2f}.",
        *_section("Your positions", map(_position, portfolio["positions"])),
        *_section("Prediction markets", map(_prediction, markets["predictions"])),
        *_section("Perpetual futures", map(_perpetual, markets["perpetuals"])),
        *_section(
            f"Feed, newest last, {social['unreadMessages']} unread", map(_post, social["feed"])
        ),
        f"You follow: {', '.join(agent['following']) or 'nobody'}.",
        *_section("Your memory", (note["text"] for note in agent["memory"])),
        *_section("Your last actions", map(json.dumps, agent["recentActions"])),
    ]
    return "\n".join(lines)


def read(text: str) -> ParsedAction:
    """The last JSON object in an answer that has a ``type``, checked for form.

    Prose and code fences around it are ignored.

    Example:
        >>> read('I would rather wait. {"type": "NO_OP"}').action
        {'type': 'NO_OP'}
    """
    found = [item for item in _objects(text) if "type" in item]
    if not found:
        return ParsedAction(
            action=None,
            feedback='Your answer held no JSON action such as {"type": "NO_OP"}.',
        )
    try:
        return ParsedAction(action=check_form(found[-1]))
    except ActionError as error:
        return ParsedAction(action=None, feedback=f"Your action was not accepted: {error}.")


def _objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text, outermost ones only, in order."""
    decoder = json.JSONDecoder()
    found, start = [], text.find("{")
    while start >= 0:
        try:
            item, end = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            end = start + 1
        else:
            found.append(item)
        start = text.find("{", end)
    return found


def _section(title: str, lines: Any) -> list[str]:
    listed = [f"- {line}" for line in lines]
    return [f"{title}:", *listed] if listed else [f"{title}: none."]


def _position(position: Json) -> str:
    held = f"value {_money(position['value'])}, profit {position['pnl']:+.2f}"
    if position["kind"] == "shares":
        what = f"{position['shares']:.2f} {position['outcome']} shares of {position['marketId']}"
        return f"{position['id']}: {what}, paid {_money(position['cost'])}, {held}"
    return (
        f"{position['id']}: {position['side']} {position['ticker']}, "
        f"size {_money(position['size'])}, leverage {position['leverage']:g}, "
        f"entry {_money(position['entryPrice'])}, "
        f"liquidation at {_money(position['liquidationPrice'])}, {held}"
    )


def _prediction(market: Json) -> str:
    return (
        f"{market['id']}: {market['question']} YES {_money(market['yesPrice'])}, "
        f"NO {_money(market['noPrice'])}, change {market['change']:+.2f}, "
        f"{market['minutesLeft']:g} minutes left"
    )


def _perpetual(market: Json) -> str:
    return (
        f"{market['ticker']}: mark {_money(market['markPrice'])}, "
        f"index {_money(market['indexPrice'])}, change {100 * market['change']:+.1f} %, "
        f"funding {100 * market['fundingRate']:+.2f} % in {market['minutesToFunding']:g} minutes, "
        f"leverage up to {market['maxLeverage']:g}"
    )


def _post(post: Json) -> str:
    reply = f" (to {post['replyTo']})" if post["replyTo"] else ""
    # One line a post, so that its content cannot look like another part of the prompt.
    return f"{post['id']} {post['userId']}{reply}: {' '.join(post['content'].split())}"


def _money(amount: float) -> str:
    return f"${amount:,.2f}"
