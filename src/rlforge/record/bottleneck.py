"""The part of a run that holds training up, by the run's figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Literal, NamedTuple

_WAITS = 0.05
"""Share of the time in which a learner that is the bottleneck may wait for samples."""
_FULL = 0.85
"""Share of the engines' places that are in use where they are the bottleneck."""

_IDLE, _LOSES = 0.5, 0.03
# A mean over updates: single ones vary so much that each would name another part.
_UPDATES = 10


class Bottleneck(NamedTuple):
    """The part, why, and the keys that change it."""

    name: Literal["learner", "engines", "collectors", "games"]
    why: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.why} ({', '.join(self.keys)})"


def bottleneck(figures: Mapping[str, float]) -> Bottleneck | None:
    """The bottleneck by the figures of an update; None before they are known.

    Example:
        >>> few = {"games_in_progress": 31.6, "games_wanted": 32.0, "games_most": 32.0}
        >>> few |= {"engine_occupancy": 0.2, "engine_share": 0.6, "idle_share": 0.2}
        >>> few |= {"lost_share": 0.0}
        >>> print(bottleneck({**few, "learner_waits": 0.6}))
        games: all 32 play, and 20% of the engines' places are in use (collector.num_train_workers)
        >>> print(bottleneck({**few, "learner_waits": 0.01}))
        learner: it waits 1% of the time (learner.num_learners)
    """
    # Engines report some time after the start: the first updates lack their figures.
    if not figures.keys() >= {"learner_waits", "games_in_progress", "engine_occupancy"}:
        return None
    waits, occupancy, busy = (
        figures[name] for name in ("learner_waits", "engine_occupancy", "engine_share")
    )
    games, wanted, most = (figures[f"games_{name}"] for name in ("in_progress", "wanted", "most"))
    used = f"{occupancy:.0%} of the engines' places are in use"
    loses = figures["lost_share"] >= _LOSES
    # While the learner never waits, nothing that makes samples holds the run up: it comes first.
    if waits < _WAITS or (wanted < 0.9 * most and not loses):  # it is busy with fewer games
        why = f"it waits {waits:.0%} of the time"
        return Bottleneck("learner", why, ("learner.num_learners",))
    if occupancy >= _FULL:
        return Bottleneck("engines", used, ("engine.num_engines", "engine.max_parallel_seq"))
    # Steps with free places take about as long as full ones: more games would use them.
    if busy >= _FULL:
        why = f"they compute {busy:.0%} of the time, and {used}"
        return Bottleneck("engines", why, ("engine.num_engines", "collector.num_train_workers"))
    if figures["idle_share"] >= _IDLE:
        why = f"engines and learner both rest {figures['idle_share']:.0%} of the time"
        keys = ("collector.num_collectors", "collector.num_train_workers")
        return Bottleneck("collectors", why, keys)
    if not loses:
        playing = f"all {most:.0f}" if games >= 0.9 * most else f"{games:.0f} of {most:.0f}"
        why = f"{playing} play, and {used}"
        return Bottleneck("games", why, ("collector.num_train_workers",))
    lost = f"{figures['lost_share']:.0%}"
    why = f"{games:.0f} of {most:.0f} play, and {lost} of the samples are thrown away"
    return Bottleneck("games", why, ("buffer.max_staleness", "buffer.max_age"))


class BottleneckWatch:
    """Finds the bottleneck of the last updates, again once it is another one."""

    def __init__(self) -> None:
        self._updates = deque[Mapping[str, float]](maxlen=_UPDATES)
        self._found = ""

    def updated(self, figures: Mapping[str, float]) -> Bottleneck | None:
        """A new bottleneck, or None."""
        if bottleneck(figures) is not None:
            self._updates.append(figures)
        if len(self._updates) < _UPDATES:
            return None
        now = bottleneck({name: fmean(one[name] for one in self._updates) for name in figures})
        if now is None or now.name == self._found:
            return None
        self._found = now.name
        # Else updates from before the change would soon turn the mean back.
        self._updates.clear()
        return now
