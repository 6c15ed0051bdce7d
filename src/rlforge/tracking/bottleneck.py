"""The part of a run that the others wait for, by its figures, and the keys that change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from rlforge.tracking.formatting import percent

_WAITS = 0.05
"""Share of the time in which a learner that is the bottleneck may wait for samples."""
_FULL = 0.85
"""Share of the engines' places that are in use where they are the bottleneck."""

_UPDATES = 10


class Bottleneck(NamedTuple):
    """What the rest waits for: the learner, the engines, or games that are too few for both."""

    name: Literal["learner", "engines", "games"]
    why: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        keys = f" ({', '.join(self.keys)})" if self.keys else ""
        return f"{self.name}: {self.why}{keys}"


def bottleneck(figures: Mapping[str, float]) -> Bottleneck | None:
    """The bottleneck by the figures of an update; None before any is known.

    figures: the learner's metrics ``learner_waits``, ``games_in_progress``, ``games_wanted``,
    ``games_most``, and ``engine_occupancy``.

    Example:
        >>> few = {"games_in_progress": 31.6, "games_wanted": 32.0, "games_most": 32.0}
        >>> print(bottleneck({**few, "learner_waits": 0.6, "engine_occupancy": 0.2}))
        games: all 32 play, and the engines use 20% of their places (collector.num_train_workers)
        >>> print(bottleneck({**few, "learner_waits": 0.01, "engine_occupancy": 0.2}))
        learner: it waits 1% of the time (learner.num_learners)
    """
    waits, games = figures.get("learner_waits"), figures.get("games_in_progress")
    occupancy = figures.get("engine_occupancy")
    if waits is None or games is None or occupancy is None:
        return None
    if waits < _WAITS:
        why = f"it waits {percent(waits)} of the time"
        return Bottleneck("learner", why, ("learner.num_learners",))
    used = f"{percent(occupancy)} of their places"
    if occupancy >= _FULL:
        keys = ("engine.num_engines", "engine.max_parallel_seq")
        return Bottleneck("engines", f"they use {used}", keys)
    wanted, most = figures["games_wanted"], figures["games_most"]
    if games < 0.9 * wanted:
        why = f"{games:.0f} of {wanted:.0f} have begun, a few at a time"
        return Bottleneck("games", why, ())
    if wanted < 0.9 * most:
        why = f"{wanted:.0f} of {most:.0f} play, as more would pass the limits of age"
        return Bottleneck("games", why, ("buffer.max_age", "buffer.max_staleness"))
    why = f"all {most:.0f} play, and the engines use {used}"
    return Bottleneck("games", why, ("collector.num_train_workers",))


class BottleneckWatch:
    """Finds the bottleneck once it is the same for ten updates, and again once another one is."""

    def __init__(self) -> None:
        self._last, self._updates, self._found = "", 0, ""

    def updated(self, figures: Mapping[str, float]) -> Bottleneck | None:
        """The bottleneck by the figures of an update where it is a new one; else None."""
        now = bottleneck(figures)
        if now is None:
            return None
        self._updates = self._updates + 1 if now.name == self._last else 1
        self._last = now.name
        if self._updates < _UPDATES or now.name == self._found:
            return None
        self._found = now.name
        return now
