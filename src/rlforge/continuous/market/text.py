"""The market in prose for language models and people, and parsing of their answers."""

from __future__ import annotations

import json
import math
from collections import Counter

from rlforge.continuous.market.actions import ActionError, Json, check_form
from rlforge.system.values import json_objects
from rlforge.types import value

_RULES = (
    "You trade on a market in simulated time. Shares of a prediction market pay $1.00 each if "
    "their answer turns out right and nothing otherwise. {perpetuals}Trades cost a fee. News "
    "accounts differ in how often they are right. Make as much profit as you can."
)
_PERPETUALS = (
    "Perpetual futures gain or lose with the mark price, times their leverage; a position whose "
    "margin is nearly used up is liquidated. "
)

_FORMS = """\
{"type": "BUY_SHARES", "marketId": "market-1", "outcome": "YES", "amount": 50}
{"type": "SELL_SHARES", "positionId": "position-1", "shares": 10.5}
{"type": "OPEN_POSITION", "ticker": "ACME", "side": "long", "size": 150, "leverage": 3}
{"type": "CLOSE_POSITION", "positionId": "position-1"}
{"type": "CREATE_POST", "content": "..."}
{"type": "CREATE_COMMENT", "postId": "post-1", "content": "..."}
{"type": "FOLLOW_USER", "userId": "..."}
{"type": "NO_OP"}""".splitlines()
_OF_PERPETUALS = ("OPEN_POSITION", "CLOSE_POSITION")


def forms(*, perpetuals: bool) -> str:
    """Forms of actions for prompts. perpetuals: whether there are perpetual futures."""
    shown = [
        form for form in _FORMS if perpetuals or not any(kind in form for kind in _OF_PERPETUALS)
    ]
    of_them = (
        "side long or short; amount is dollars spent; size is dollars of exposure, of which size / "
        "leverage is taken from the balance as margin"
    )
    meaning = f"outcome is YES or NO, {of_them if perpetuals else 'amount is dollars spent'}."
    return "\n".join(
        [
            "An action is a JSON object of one of these forms:",
            *shown,
            f'{meaning} Any action may also have "confidence", from 0 to 1, and "note", a sentence '
            "that you will remember.",
        ]
    )


#: Titles of the parts of a state, in their order.
_TITLES = {
    "market": "Markets",
    "note": "Your memory",
    "action": "Your last actions",
    "post": "Feed, newest last",
}


@value
class ParsedAction:
    """The action in an answer, or None and what was wrong with it."""

    action: Json | None
    feedback: str = ""


def prompt(state: Json, most: int | None = None) -> str:
    """Rules, forms of actions, and ``describe`` of a state."""
    perpetuals = bool(state["markets"]["perpetuals"])
    rules = _RULES.format(perpetuals=_PERPETUALS if perpetuals else "")
    return f"{rules}\n\n{forms(perpetuals=perpetuals)}\n\n{describe(state, most)}"


def describe(state: Json, most: int | None = None) -> str:
    """A ``GameState`` in short lines, in ``most`` characters; None: all of it.

    With little room markets are brief, and what does not fit is left out and counted.
    """
    whole = _described(state, brief=False, most=None)
    if most is None or len(whole) <= most:
        return whole
    return _described(state, brief=True, most=most)


def _described(state: Json, *, brief: bool, most: int | None) -> str:
    social, agent = state["social"], state["agent"]
    top = f"{_top(state)} {social['unreadMessages']} posts are unread."
    markets = _markets(state, brief=brief).values()
    held = [one.line for one in markets if one.held]
    reported = [one.line for one in markets if one.views and not one.held]
    other = [one.line for one in markets if not (one.views or one.held)]
    shown: dict[str, list[str]] = {kind: [] for kind in _TITLES}
    left_out: Counter[str] = Counter()
    # The line that counts what is left out needs 80 characters at most.
    room = math.inf if most is None else most - len(top) - 80
    # What matters most comes first: what is held, then what is known, then what is old.
    for kind, lines in (
        ("market", held),
        ("market", reported),
        ("note", [_line(note["text"]) for note in agent["memory"]][::-1]),
        ("market", other),
        ("action", list(map(json.dumps, agent["recentActions"]))[::-1]),
        ("post", list(map(_post, social["feed"]))[::-1]),
    ):
        for line in lines:
            needed = len(line) + 3 + (0 if shown[kind] else len(_TITLES[kind]) + 2)
            room = room - needed if needed <= room else -1
            # After a line without room, nothing that matters less is shown.
            if room < 0:
                left_out[kind] += 1
            else:
                shown[kind].append(line)
    found = [top]
    for kind, title in _TITLES.items():
        lines = shown[kind] if kind == "market" else shown[kind][::-1]
        found += [f"{title}:", *(f"- {line}" for line in lines)] if lines else []
    if left_out:
        counts = (f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in left_out.items())
        found.append(f"(Not shown: {', '.join(counts)}.)")
    return "\n".join(found)


def _top(state: Json) -> str:
    portfolio, agent = state["portfolio"], state["agent"]
    return (
        f"Minute {agent['minute']:g}. Balance {_money(portfolio['balance'])}, "
        f"lifetime profit {portfolio['lifetimePnL']:+.2f}. "
        f"You follow {', '.join(agent['following']) or 'no account'}."
    )


def compared(state: Json) -> str:
    """A ``GameState`` in short lines, for a judge who compares agents of one market.

    What all of them can see, the prices, stands apart from what an agent knows and holds. Posts are
    left out: the views in them stand at their markets.
    """
    agent, markets = state["agent"], _markets(state, brief=False)
    own = {
        name: ". ".join(part for part in (one.views, one.held) if part)
        for name, one in markets.items()
    }
    parts = {
        "Markets": sorted(one.prices for one in markets.values()),
        "Known and held by the agent": [f"{name}: {said}" for name, said in own.items() if said],
        _TITLES["note"]: [_line(note["text"]) for note in agent["memory"]],
        _TITLES["action"]: list(map(json.dumps, agent["recentActions"])),
    }
    found = [_top(state)]
    for title, lines in parts.items():
        found += [f"{title}:", *(f"- {line}" for line in lines)] if lines else []
    return "\n".join(found)


def read(text: str) -> ParsedAction:
    """The last JSON object in an answer that has a ``type``, checked for form.

    Example:
        >>> read('I would rather wait. {"type": "NO_OP"}').action
        {'type': 'NO_OP'}
    """
    # Models used to LaTeX escape braces inside of boxes.
    unescaped = text.replace("\\{", "{").replace("\\}", "}")
    objects = [*json_objects(text)] or [*json_objects(unescaped)]
    found = [item for item in objects if "type" in item]
    if not found:
        return ParsedAction(
            action=None, feedback='Your answer held no JSON action such as {"type": "NO_OP"}.'
        )
    try:
        return ParsedAction(action=check_form(found[-1]))
    except ActionError as error:
        return ParsedAction(action=None, feedback=f"Your action was not accepted: {error}.")


@value
class _Market:
    """Prices of a market, views of accounts on it, and own positions, as an agent knows them."""

    prices: str
    views: str
    held: str

    @property
    def line(self) -> str:
        return ". ".join(part for part in (self.prices, self.views, self.held) if part)


def _markets(state: Json, *, brief: bool) -> dict[str, _Market]:
    """By name; those on which most accounts report come first: there is most to know."""
    views: dict[str, dict[str, str]] = {}
    for post in state["social"]["feed"]:
        if post["stance"]:
            views.setdefault(post["about"], {})[post["userId"]] = post["stance"]
    own: dict[str, list[str]] = {}
    for position in state["portfolio"]["positions"]:
        name = position.get("marketId") or position["ticker"]
        own.setdefault(name, []).append(_position(position, brief=brief))
    markets = state["markets"]
    lines = {market["id"]: _prediction(market, brief=brief) for market in markets["predictions"]}
    lines |= {market["ticker"]: _perpetual(market, brief=brief) for market in markets["perpetuals"]}
    found = {}
    for name in sorted(lines, key=lambda name: -len(views.get(name, {}))):
        said = ", ".join(
            f"{account} {view}" for account, view in sorted(views.get(name, {}).items())
        )
        found[name] = _Market(
            prices=lines[name],
            views=said and f"News: {said}",
            held=f"You hold {'; '.join(own[name])}" if name in own else "",
        )
    return found


def _position(position: Json, *, brief: bool) -> str:
    if position["kind"] == "shares":
        what = f"{position['id']}: {position['shares']:.2f} {position['outcome']}"
        details = f" shares, paid {_money(position['cost'])}"
    else:
        what = f"{position['id']}: {position['side']} {_money(position['size'])}"
        details = (
            f" in size, leverage {position['leverage']:g}, entry {_money(position['entryPrice'])}, "
            f"liquidation at {_money(position['liquidationPrice'])}"
        )
    worth = "" if brief else f"{details}, worth {_money(position['value'])}"
    return f"{what}{worth}, profit {position['pnl']:+.2f}"


def _prediction(market: Json, *, brief: bool) -> str:
    prices = f"YES {_money(market['yesPrice'])}, NO {_money(market['noPrice'])}"
    left = f"{market['minutesLeft']:g} minutes left"
    if brief:
        return f"{market['id']}: {prices}, {left}"
    return f"{market['id']}: {market['question']} {prices}, change {market['change']:+.2f}, {left}"


def _perpetual(market: Json, *, brief: bool) -> str:
    prices = (
        f"{market['ticker']}: mark {_money(market['markPrice'])}, "
        f"index {_money(market['indexPrice'])}, change {100 * market['change']:+.1f} %"
    )
    if brief:
        return prices
    return (
        f"{prices}, funding {100 * market['fundingRate']:+.2f} % in "
        f"{market['minutesToFunding']:g} minutes, leverage up to {market['maxLeverage']:g}"
    )


def _post(post: Json) -> str:
    reply = f" (to {post['replyTo']})" if post["replyTo"] else ""
    return f"{post['id']} {post['userId']}{reply}: {_line(post['content'])}"


def _line(text: str) -> str:
    # On several lines a text could look like another part of the prompt.
    return " ".join(text.split())


def _money(amount: float) -> str:
    return f"${amount:,.2f}"
