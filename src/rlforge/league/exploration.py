"""Diversity of recent games: n-gram coverage of action sequences in a rolling window."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

from rlforge.types import value

#: Coverage of an empty window: the maximum, so that opponents not met yet are tried.
OPTIMISTIC_COVERAGE = 1.0
#: Length of the action n-grams.
NGRAM = 3
#: Recent games per opponent and environment that count.
WINDOW = 256


@value
class Coverage:
    """Counts of a window.

    Attributes:
        games, ngrams, unique: Games, n-grams and distinct n-grams in the window.
        games_total, ngrams_total: Games and n-grams since the start.
    """

    games: int
    ngrams: int
    unique: int
    games_total: int
    ngrams_total: int

    @property
    def coverage(self) -> float:
        """unique / ngrams, in (0, 1]; ``OPTIMISTIC_COVERAGE`` for an empty window."""
        return self.unique / self.ngrams if self.ngrams else OPTIMISTIC_COVERAGE


class NgramWindow:
    """Counts of the n-grams of the latest ``size`` games, updated game by game.

    A game shorter than n actions counts as one n-gram of its own length, so that short games
    differ too. Adding a game costs time in proportion to its length and that of the game that
    leaves the window.

    Example:
        >>> window = NgramWindow(n=2, size=100)
        >>> window.add(["[4]", "[0]", "[8]"])
        >>> window.add(["[4]", "[0]", "[2]"])
        >>> counts = window.look()
        >>> counts.ngrams, counts.unique, counts.coverage
        (4, 3, 0.75)
    """

    def __init__(self, n: int, size: int) -> None:
        self._n = n
        self._size = size
        self._games: deque[tuple[str, ...]] = deque()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._ngrams = 0
        self._games_total = 0
        self._ngrams_total = 0

    def add(self, actions: Sequence[str]) -> None:
        """Count one game, given its actions in order of play."""
        game = tuple(actions)
        self._games.append(game)
        self._count(game)
        self._games_total += 1
        if len(self._games) > self._size:
            for gram in self._grams(self._games.popleft()):
                self._ngrams -= 1
                self._counts[gram] -= 1
                if not self._counts[gram]:
                    del self._counts[gram]

    def look(self) -> Coverage:
        """The current counts."""
        return Coverage(
            games=len(self._games),
            ngrams=self._ngrams,
            unique=len(self._counts),
            games_total=self._games_total,
            ngrams_total=self._ngrams_total,
        )

    def _grams(self, game: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if game:
            for start in range(max(1, len(game) - self._n + 1)):
                yield game[start : start + self._n]

    def _count(self, game: tuple[str, ...]) -> None:
        for gram in self._grams(game):
            self._counts[gram] += 1
            self._ngrams += 1
            self._ngrams_total += 1

    def state_dict(self) -> dict[str, Any]:
        """The games in the window and the totals, as plain data."""
        return {
            "games": [list(game) for game in self._games],
            "games_total": self._games_total,
            "ngrams_total": self._ngrams_total,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; the counts follow from the games."""
        self._games = deque(tuple(game) for game in state["games"])
        self._counts.clear()
        self._ngrams = 0
        for game in self._games:
            self._count(game)
        self._games_total = state["games_total"]
        self._ngrams_total = state["ngrams_total"]


class ExplorationTracker:
    """N-gram coverage per (opponent, environment), and per environment over all opponents.

    A game's actions identify the states it visited, so a high share of distinct n-grams among
    recent games means that an opponent leads to many different states.

    Example:
        >>> tracker = ExplorationTracker(ngram=1, window=8)
        >>> tracker.add(["random_legal"], "Nim-v0", ["[0 1]", "[1 2]", "[0 1]", "[0 2]"])
        >>> tracker.diversity("random_legal")
        0.75
    """

    def __init__(self, ngram: int = NGRAM, window: int = WINDOW) -> None:
        self._ngram, self._size = ngram, window
        self._opponents: dict[str, dict[str, NgramWindow]] = {}
        self._envs: dict[str, NgramWindow] = {}

    def add(self, opponents: Sequence[str], env_id: str, actions: Sequence[str]) -> None:
        """Count one game, given all its actions in order of play, for each of ``opponents``."""
        for opponent in dict.fromkeys(opponents):
            windows = self._opponents.setdefault(opponent, {})
            windows.setdefault(env_id, self._window()).add(actions)
        self._envs.setdefault(env_id, self._window()).add(actions)

    def forget(self, opponent: str) -> None:
        """Drop the windows of an opponent that is no longer active."""
        self._opponents.pop(opponent, None)

    def diversity(self, opponent: str) -> float:
        """Expected diversity of the states that ``opponent`` leads to, in (0, 1].

        The mean of its coverage over every environment played so far; an environment in which it
        was never met counts ``OPTIMISTIC_COVERAGE``. Few games have a high coverage, so rarely met
        opponents keep a high weight until their window fills.
        """
        if not self._envs:
            return OPTIMISTIC_COVERAGE
        met = self._opponents.get(opponent, {})
        coverages = [
            met[env_id].look().coverage if env_id in met else OPTIMISTIC_COVERAGE
            for env_id in self._envs
        ]
        return sum(coverages) / len(coverages)

    def coverage(self, env_id: str, opponent: str | None = None) -> Coverage:
        """Counts of one opponent's window, or of the window over all opponents."""
        windows = self._envs if opponent is None else self._opponents.get(opponent, {})
        return windows.get(env_id, self._window()).look()

    def snapshot(self) -> dict[str, Any]:
        """``{"envs": {env: counts}, "opponents": {uid: {env: counts}}}``, ready for JSON."""
        return {
            "envs": {env_id: _counts(window) for env_id, window in self._envs.items()},
            "opponents": {
                opponent: {env_id: _counts(window) for env_id, window in windows.items()}
                for opponent, windows in self._opponents.items()
            },
        }

    def state_dict(self) -> dict[str, Any]:
        """All windows, as plain data."""
        return {
            "envs": {env_id: window.state_dict() for env_id, window in self._envs.items()},
            "opponents": {
                opponent: {env_id: window.state_dict() for env_id, window in windows.items()}
                for opponent, windows in self._opponents.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._envs = self._load_windows(state["envs"])
        self._opponents = {
            opponent: self._load_windows(windows)
            for opponent, windows in state["opponents"].items()
        }

    def _window(self) -> NgramWindow:
        return NgramWindow(self._ngram, self._size)

    def _load_windows(self, states: dict[str, Any]) -> dict[str, NgramWindow]:
        windows = {env_id: self._window() for env_id in states}
        for env_id, window in windows.items():
            window.load_state_dict(states[env_id])
        return windows


def _counts(window: NgramWindow) -> dict[str, float]:
    seen = window.look()
    return {
        "coverage": seen.coverage,
        "games": seen.games,
        "ngrams": seen.ngrams,
        "unique": seen.unique,
        "games_total": seen.games_total,
        "ngrams_total": seen.ngrams_total,
    }
