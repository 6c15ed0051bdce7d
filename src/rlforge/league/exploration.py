"""Diversity of recent games: n-gram coverage of action sequences in a rolling window."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

#: Coverage of an empty window: the maximum, so that opponents not met yet are tried.
OPTIMISTIC_COVERAGE = 1.0
#: Length of the action n-grams.
NGRAM = 3
#: Recent games per opponent and environment that count.
WINDOW = 256

T = TypeVar("T")


class NgramWindow:
    """Counts of the n-grams of the latest ``size`` games."""

    def __init__(self, n: int, size: int) -> None:
        self._n, self._size = n, size
        self._games: deque[tuple[str, ...]] = deque()
        # Counts are kept game by game, because every draw of an opponent asks for the coverage.
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._ngrams = self._games_total = self._ngrams_total = 0

    @property
    def coverage(self) -> float:
        """The share of distinct n-grams, in (0, 1]."""
        return len(self._counts) / self._ngrams if self._ngrams else OPTIMISTIC_COVERAGE

    def add(self, actions: Sequence[str]) -> None:
        self._games.append(tuple(actions))
        self._games_total += 1
        self._ngrams_total += self._count(self._games[-1], 1)
        if len(self._games) > self._size:
            self._count(self._games.popleft(), -1)

    def _count(self, game: tuple[str, ...], change: int) -> int:
        # A shorter game is one n-gram of its own length, so that short games differ, too.
        starts = range(max(1, len(game) - self._n + 1) if game else 0)
        for start in starts:
            gram = game[start : start + self._n]
            self._counts[gram] += change
            if not self._counts[gram]:
                del self._counts[gram]
        self._ngrams += change * len(starts)
        return len(starts)

    def counts(self) -> dict[str, float]:
        return {
            "coverage": self.coverage,
            "games": len(self._games),
            "ngrams": self._ngrams,
            "unique": len(self._counts),
            "games_total": self._games_total,
            "ngrams_total": self._ngrams_total,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "games": [list(game) for game in self._games],
            "games_total": self._games_total,
            "ngrams_total": self._ngrams_total,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for game in state["games"]:
            self.add(game)
        self._games_total, self._ngrams_total = state["games_total"], state["ngrams_total"]


class ExplorationTracker:
    """N-gram coverage per (opponent, environment), and per environment over all opponents.

    Example:
        >>> tracker = ExplorationTracker(ngram=1, window=8)
        >>> tracker.add(["random_legal"], "Nim-v0", ["[0 1]", "[1 2]", "[0 1]", "[0 2]"])
        >>> tracker.diversity("random_legal")
        0.75
    """

    def __init__(self, ngram: int = NGRAM, window: int = WINDOW) -> None:
        self._new = partial(NgramWindow, ngram, window)
        self._opponents: dict[str, dict[str, NgramWindow]] = {}
        self._envs: dict[str, NgramWindow] = {}

    def add(self, opponents: Sequence[str], env_id: str, actions: Sequence[str]) -> None:
        own = [self._opponents.setdefault(uid, {}) for uid in dict.fromkeys(opponents)]
        for windows in (self._envs, *own):
            windows.setdefault(env_id, self._new()).add(actions)

    def forget(self, opponent: str) -> None:
        self._opponents.pop(opponent, None)

    def diversity(self, opponent: str) -> float:
        """The mean coverage of ``opponent`` over all environments played so far, in (0, 1]."""
        if not self._envs:
            return OPTIMISTIC_COVERAGE
        met = self._opponents.get(opponent, {})
        # Few games have a high coverage, so an opponent keeps its weight until its window fills.
        coverages = [met[env].coverage if env in met else OPTIMISTIC_COVERAGE for env in self._envs]
        return sum(coverages) / len(coverages)

    def snapshot(self) -> dict[str, Any]:
        """``{"envs": {env: counts}, "opponents": {uid: {env: counts}}}``, ready for JSON."""
        return self._each(NgramWindow.counts)

    def state_dict(self) -> dict[str, Any]:
        return self._each(NgramWindow.state_dict)

    def _each(self, of: Callable[[NgramWindow], T]) -> dict[str, Any]:
        def every(windows: Mapping[str, NgramWindow]) -> dict[str, T]:
            return {env_id: of(window) for env_id, window in windows.items()}

        opponents = {uid: every(windows) for uid, windows in self._opponents.items()}
        return {"envs": every(self._envs), "opponents": opponents}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._envs = self._loaded(state["envs"])
        self._opponents = {uid: self._loaded(own) for uid, own in state["opponents"].items()}

    def _loaded(self, states: Mapping[str, Any]) -> dict[str, NgramWindow]:
        windows = {env_id: self._new() for env_id in states}
        for env_id, window in windows.items():
            window.load_state_dict(states[env_id])
        return windows
