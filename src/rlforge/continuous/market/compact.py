"""The market in ten to fifteen words, for models that read short prompts: one market in focus.

``market bet p6 move_up left2 a_yes b_none c_no mine_none gain_flat cash3 go`` is a prediction
market and ``market perp prem_flat move_down open a_down b_none c_up mine_long gain_up cash2 go`` a
perpetual future. Letters stand for the news accounts of ``market.news``. Every prompt has the same
number of words. An answer is one of:

[hold]              do nothing
[yes1] … [no3]      buy shares of an answer, with the first, second or third of ``market.stakes``
[long1] … [short3]  open a position with that stake as margin
[sell] [close]      sell the largest holding in focus; close the largest position
[follow]            follow the first news account that reported on the focus and is not followed

With ``market.social`` a prompt has two words more after those of the news. ``talk_none``: no agent
has said how the focus will end or go; ``talk_new``: one has that is not followed; ``talk_known``:
others have. ``said_yes``: what most of the followed ones say. There are answers for it:

[say_yes] … [say_down]  post how the focus will end or go
[agree]                 repeat the newest such post on the focus, as a comment on it
[join]                  follow the author of the newest one whose author is not followed
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from rlforge.continuous.config.market import COMPACT_LEVERAGE, STARTING_BALANCE, MarketConfig
from rlforge.continuous.market.actions import NO_OP, ActionError, Json, buy, leave, open_position
from rlforge.continuous.market.desks import PERPETUAL_FEE

_LETTERS = "abcde"
_SIZES = ("1", "2", "3")
_BETS = {"yes": "YES", "no": "NO"}
_SIDES = ("long", "short")
_WAYS = ("up", "down")
#: Content of the posts and comments in which agents say which way a market will end or go.
_SAID = re.compile(r"I say (YES|NO|UP|DOWN) on (\S+)\.")

#: Smallest share price change, relative index change, and premium that are not ``flat``.
_SHARE_MOVE, _INDEX_MOVE, _PREMIUM = 0.03, 0.01, 0.01
#: Smallest profit of a position, relative to its cost, that is not ``flat``.
_GAIN = 0.05
#: Upper limits of the words for time left (minutes) and for cash (of the starting balance).
_LEFT, _CASH = (15.0, 30.0, 60.0), (0.1, 0.4, 0.8)


class Compact:
    """Texts of states, and actions of answers."""

    def __init__(self, config: MarketConfig) -> None:
        self._accounts = list(config.accounts)
        self._stakes = [round(share * STARTING_BALANCE, 2) for share in config.stakes]
        self._tick_minutes, self._social = config.tick_minutes, config.social

    def focus(self, state: Json) -> str:
        """The market or ticker to decide about at this tick."""
        markets, own = state["markets"], state["portfolio"]["positions"]
        names: list[str] = [market["id"] for market in markets["predictions"]]
        names += [market["ticker"] for market in markets["perpetuals"]]
        held = {position.get("marketId", position.get("ticker")) for position in own}
        reports = {(post["about"], post["userId"]) for post in state["social"]["feed"]}
        known = Counter(about for about, _ in reports)
        turn: int = round(state["agent"]["minute"] / self._tick_minutes)
        # News on what is not held comes first, best that of two accounts, which errs less often.
        free = [name for name in names if name not in held and known[name]]
        fresh = [name for name in free if known[name] > 1] or free
        # Every fourth tick is for a holding, which would never be sold otherwise.
        kept = [name for name in names if name in held]
        choice = (kept or fresh if turn % 4 == 3 else fresh or kept) or names
        return choice[turn % len(choice)]

    def text(self, state: Json, focus: str) -> str:
        """The state around ``focus``."""
        offer = _offer(state, focus)
        if "ticker" in offer:
            premium = offer["markPrice"] / offer["indexPrice"] - 1
            words = ["market", "perp", f"prem_{_step(premium, _PREMIUM)}"]
            words += [f"move_{_step(offer['change'], _INDEX_MOVE)}", "open"]
        else:
            # A rounded price may be 1, for which there is no word.
            tenth = min(9, int(offer["yesPrice"] * 10))
            words = ["market", "bet", f"p{tenth}", f"move_{_step(offer['change'], _SHARE_MOVE)}"]
            words.append(f"left{_level(offer['minutesLeft'], _LEFT)}")
        views = _views(state, focus)
        for letter, account in zip(_LETTERS, self._accounts, strict=False):
            words.append(f"{letter}_{views.get(account, 'none').lower()}")
        if self._social:
            newest: dict[str, str] = {}
            for post in said(state, focus):
                if post["userId"] in state["agent"]["following"]:
                    newest.setdefault(post["userId"], post["content"].split()[2].lower())
            # Of ways that as many say, the first counts: the one that was said last.
            most = Counter(newest.values()).most_common(1) or [("none", 0)]
            known = "known" if said(state, focus) else "none"
            words.append(f"talk_{'new' if _strangers(state, focus) else known}")
            words.append(f"said_{most[0][0]}")
        held = _largest(state, focus)
        if held is None:
            words += ["mine_none", "gain_flat"]
        else:
            side = held["side"] if held["kind"] == "perpetual" else held["outcome"].lower()
            cost = held["value"] - held["pnl"]
            words += [f"mine_{side}", f"gain_{_step(held['pnl'] / cost if cost else 0, _GAIN)}"]
        cash = state["portfolio"]["balance"] / STARTING_BALANCE
        return " ".join([*words, f"cash{_level(cash, _CASH)}", "go"])

    def actions(self, state: Json, focus: str) -> tuple[str, ...]:
        """The answers that the market accepts in this state."""
        perpetual = "ticker" in _offer(state, focus)
        balance = state["portfolio"]["balance"]
        found = ["[hold]"]
        for verb in _SIDES if perpetual else _BETS:
            for size, stake in zip(_SIZES, self._stakes, strict=True):
                # The fee of shares is part of the stake; 0.02 is for rounding up.
                fee = stake * COMPACT_LEVERAGE * PERPETUAL_FEE + 0.02 if perpetual else 0.0
                if stake + fee <= balance:
                    found.append(f"[{verb}{size}]")
        held = _largest(state, focus)
        # Shares worth less than a dollar may bring no cent, and such a sale is refused.
        if held is not None and (perpetual or held["value"] >= 1):
            found.append("[close]" if perpetual else "[sell]")
        if self._to_follow(state, focus):
            found.append("[follow]")
        if self._social:
            found += [f"[say_{way}]" for way in (_WAYS if perpetual else _BETS)]
            found += ["[agree]"] if said(state, focus) else []
            found += ["[join]"] if _strangers(state, focus) else []
        return tuple(found)

    def action(self, word: str, state: Json, focus: str) -> Json:
        """The action of an answer; ``ActionError`` for one that is not possible."""
        # People leave the brackets out.
        word = f"[{word.strip().strip('[]')}]"
        legal = self.actions(state, focus)
        if word not in legal:
            raise ActionError(f"{word} is not possible now; there are {', '.join(legal)}")
        if word == "[hold]":
            return NO_OP
        if word == "[follow]":
            return {"type": "FOLLOW_USER", "userId": self._to_follow(state, focus)}
        if word == "[join]":
            return {"type": "FOLLOW_USER", "userId": _strangers(state, focus)[0]}
        if word == "[agree]":
            post = said(state, focus)[0]
            return {"type": "CREATE_COMMENT", "postId": post["id"], "content": post["content"]}
        if word.startswith("[say_"):
            content = f"I say {word[5:-1].upper()} on {focus}."
            return {"type": "CREATE_POST", "content": content}
        held = _largest(state, focus)
        if word in ("[close]", "[sell]") and held is not None:
            return leave(held)
        verb, stake = word[1:-2], self._stakes[int(word[-2]) - 1]
        if verb in _BETS:
            return buy(focus, _BETS[verb], stake)
        return open_position(focus, verb, stake * COMPACT_LEVERAGE, COMPACT_LEVERAGE)

    def _to_follow(self, state: Json, focus: str) -> str | None:
        views, following = _views(state, focus), state["agent"]["following"]
        unknown = [name for name in self._accounts if name in views and name not in following]
        return unknown[0] if unknown else None


def compact_vocabulary(*, social: bool = False) -> tuple[list[str], list[str]]:
    """All words of prompts, and all answers, of every market, each sorted.

    social: those of ``market.social`` follow.
    """
    words = {"market", "bet", "perp", "open", "go"}
    words |= {f"p{tenth}" for tenth in range(10)}
    words |= {f"left{step}" for step in range(len(_LEFT) + 1)}
    words |= {f"cash{step}" for step in range(len(_CASH) + 1)}
    for what in ("move", "gain", "prem"):
        words |= {f"{what}_{how}" for how in ("up", "flat", "down")}
    words |= {f"mine_{side}" for side in ("none", *_BETS, *_SIDES)}
    for letter in _LETTERS:
        words |= {f"{letter}_{view}" for view in ("none", *_BETS, *_WAYS)}
    answers = {f"[{verb}{size}]" for verb in (*_BETS, *_SIDES) for size in _SIZES}
    answers |= {"[hold]", "[sell]", "[close]", "[follow]"}
    more, said_too = [], []
    if social:
        more = ["talk_none", "talk_known", "talk_new"]
        more += [f"said_{way}" for way in ("none", *_BETS, *_WAYS)]
        said_too = ["[agree]", "[join]", *(f"[say_{way}]" for way in (*_BETS, *_WAYS))]
    return sorted(words) + more, sorted(answers) + said_too


def is_compact(answer: str) -> bool:
    """Whether an answer is one word rather than JSON."""
    return re.fullmatch(r"\s*\[?\w+\]?\s*", answer) is not None


def _offer(state: Json, focus: str) -> dict[str, Any]:
    markets = state["markets"]
    for offer in (*markets["predictions"], *markets["perpetuals"]):
        if focus == offer.get("id", offer.get("ticker")):
            return dict(offer)
    raise ValueError(f"{focus} is not open in this state")


def _views(state: Json, focus: str) -> dict[str, str]:
    """The newest view of each news account on the focus."""
    return {
        post["userId"]: post["stance"]
        for post in state["social"]["feed"]
        if post["about"] == focus and post["stance"]
    }


def said(state: Json, focus: str) -> list[Json]:
    """The posts and comments of agents that say how the focus will end or go, the newest first."""
    feed = reversed(state["social"]["feed"])
    return [p for p in feed if (found := _SAID.fullmatch(p["content"])) and found[2] == focus]


def _strangers(state: Json, focus: str) -> list[str]:
    """Who said something about the focus and is not followed, the newest first."""
    following = state["agent"]["following"]
    return [post["userId"] for post in said(state, focus) if post["userId"] not in following]


def _largest(state: Json, focus: str) -> dict[str, Any] | None:
    held = [
        position
        for position in state["portfolio"]["positions"]
        if focus in (position.get("marketId"), position.get("ticker"))
    ]
    return max(held, key=lambda position: position["value"], default=None)


def _step(change: float, least: float) -> str:
    return "up" if change > least else "down" if change < -least else "flat"


def _level(amount: float, limits: tuple[float, ...]) -> int:
    return sum(amount > limit for limit in limits)
