"""Admission control: how many games may start, so that no game is dropped as stale."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


class Admission:
    """Back-pressure by expected samples (the staleness control of AReaL, Fu et al. 2025).

    With E the expected samples of one game in progress, games are admitted while

        stored + E · in_flight              ≤ max_stored   and
        stored + E · in_flight + learning   ≤ max_ahead,

    where ``learning`` counts samples drawn for versions that are not published yet. With
    ``max_ahead`` = (s + 1) batches no sample is more than s updates old when it is trained on, up
    to the error of E.

    E is the mean yield of the last 512 games that ended, weighted by yield: Σy² / Σy. The more
    samples a game brings, the longer it lasts and the more often it is found in progress. With the
    plain mean, the places of short games that have ended would be filled while the long ones, which
    count too little, go on: more samples would come than are used in time, and the late ones,
    those of long games, would go stale. Games without samples have no weight, so that their places
    are filled as soon as they have ended.

    samples_per_game: E until the first game has ended. save_every: updates from one published
    version to the next.

    Example:
        >>> admission = Admission(max_stored=64, max_ahead=64, samples_per_game=8.0)
        >>> admission.reserve(games=100, stored=0, short=True)
        8
    """

    def __init__(
        self, *, max_stored: int, max_ahead: int, samples_per_game: float, save_every: int = 1
    ) -> None:
        if samples_per_game <= 0:
            raise ValueError(f"samples per game must be above 0, not {samples_per_game}")
        self.in_flight = 0
        self._max_stored = max_stored
        self._max_ahead = max_ahead
        self._guess = samples_per_game
        self._save_every = save_every
        # Integers with exact sums: the mean of a constant yield is exact.
        self._yields: deque[int] = deque(maxlen=512)
        #: Samples drawn, by the version they were drawn for.
        self._learning: dict[int, int] = {}

    @property
    def samples_per_game(self) -> float:
        """Expected samples of one game in progress."""
        total = sum(self._yields)
        return sum(samples * samples for samples in self._yields) / total if total else self._guess

    def observe(self, yields: Iterable[int]) -> None:
        """Update the expectation with the sample counts of games that ended."""
        self._yields.extend(samples for samples in yields if samples > 0)

    def drawn(self, samples: int, version: int) -> None:
        """``samples`` were drawn for the update that makes ``version`` + 1."""
        self._learning[version] = self._learning.get(version, 0) + samples

    def published(self, version: int) -> None:
        """New games play with ``version``: samples drawn to make it no longer count."""
        self._learning = {v: n for v, n in self._learning.items() if v >= version}

    def reserve(self, games: int, stored: int, short: bool) -> int:
        """Admit up to ``games`` new games, given ``stored`` samples; returns the number admitted.

        short: the buffer holds no full batch. At least one game is then admitted when none is in
        progress and no publication is due, so that the learner never waits for ever.
        """
        if games < 0:
            raise ValueError(f"cannot reserve {games} games")
        learning = sum(self._learning.values())
        room = min(self._max_stored, self._max_ahead - learning) - stored
        # 1e-9 absorbs the rounding error of a mean such as 7 / 3.
        fitting = math.floor(room / self.samples_per_game - self.in_flight + 1e-9)
        granted = max(0, min(games, fitting))
        # Whether the update from the newest batch, which may not be made yet, is published.
        due = bool(self._learning) and (max(self._learning) + 1) % self._save_every == 0
        if granted == 0 and games > 0 and short and not self.in_flight and not due:
            granted = 1
        self.in_flight += granted
        return granted

    def release(self, games: int) -> None:
        """Free the places of games that ended, with samples or without."""
        if not 0 <= games <= self.in_flight:
            raise ValueError(f"cannot release {games} games: {self.in_flight} are under way")
        self.in_flight -= games

    def state_dict(self) -> dict[str, Any]:
        """The observed yields. Games in progress do not survive a restart."""
        return {"yields": list(self._yields)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore ``state_dict``, with no game in progress and no batch unpublished."""
        self._yields.clear()
        self._yields.extend(state["yields"])
        self._learning.clear()
        self.in_flight = 0
