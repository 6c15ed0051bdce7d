"""Reading states and actions that may lack anything, and finding what an action trades."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.trajectories.records import Json
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
    """What a trade is about.

    about: a market's id or a ticker. offer: it as ``state.markets`` shows it. sign: 1 for what
    gains when YES or the price rises, -1 for the opposite; leaving a position is the opposite of
    holding it. position: the one that is left, None for trades that open one.
    """

    about: str
    offer: Json
    sign: int
    position: Json | None = None

    @property
    def price(self) -> float:
        """Of a YES share, or of the perpetual; 0 where it is not shown."""
        return _price(self.offer)

    def price_in(self, state: Json) -> float:
        """The same in another state; 0 where either price is not known."""
        offer = _offer(self.about, state)
        return _price(offer) if offer is not None and self.price > 0 else 0.0


def find_target(action: Json, state: Json) -> Target | None:
    """What ``action`` trades, or None where it trades nothing that ``state`` has."""
    kind = action.get("type")
    if kind in ("BUY_SHARES", "OPEN_POSITION"):
        return _target(action, state)
    if kind in ("SELL_SHARES", "CLOSE_POSITION"):
        for position in listed(mapped(state.get("portfolio")).get("positions")):
            if position.get("id") == action.get("positionId"):
                held = _target(position, state)
                if held is None:
                    return None
                return Target(
                    about=held.about, offer=held.offer, sign=-held.sign, position=position
                )
    return None


def sign_of(named: Json) -> int:
    """1 for YES shares and longs, -1 for NO shares and shorts, of an action or a position."""
    return 1 if named.get("outcome") == "YES" or named.get("side") == "long" else -1


def _target(named: Json, state: Json) -> Target | None:
    """From the ``marketId`` and ``outcome``, or the ``ticker`` and ``side``, of a trade."""
    about = named.get("marketId", named.get("ticker"))
    offer = _offer(about, state)
    return None if offer is None else Target(about=str(about), offer=offer, sign=sign_of(named))


def _offer(about: Any, state: Json) -> Json | None:
    markets = mapped(state.get("markets"))
    for offer in listed(markets.get("predictions")):
        if offer.get("id") == about and about is not None:
            return offer
    for offer in listed(markets.get("perpetuals")):
        if offer.get("ticker") == about and about is not None:
            return offer
    return None


def _price(offer: Json) -> float:
    return number(offer.get("yesPrice", offer.get("markPrice")))
