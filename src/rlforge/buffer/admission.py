"""How many games may start, so that none is played for nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


class Admission:
    """Back-pressure by expected samples (the staleness control of AReaL, Fu et al. 2025).

    Games are admitted while what is stored and what the games under way are expected to bring stays
    within ``max_stored``, and together with the batches that learning has not yet turned into a
    published version within ``max_ahead``. With ``max_ahead`` = (s + 1) batches no sample is more
    than s updates old when it is learned from, up to the error of the expectation.

    The expectation is the mean yield of the last games that brought samples. Games without are left
    out of it, so that their places are filled once they are known to have brought nothing.

    samples_per_game: the guess until the first game has ended.
    """

    def __init__(self, *, max_stored: int, max_ahead: int, samples_per_game: float) -> None:
        if samples_per_game <= 0:
            raise ValueError(f"samples per game must be above 0, not {samples_per_game}")
        self.in_flight = 0
        self._max_stored = max_stored
        self._max_ahead = max_ahead
        self._guess = samples_per_game
        # Whole numbers and an exact sum: a constant yield gives exactly that mean.
        self._yields: deque[int] = deque(maxlen=512)
        #: Samples drawn, by the version they were drawn for.
        self._learning: dict[int, int] = {}

    @property
    def samples_per_game(self) -> float:
        """Expected samples of one game."""
        return sum(self._yields) / len(self._yields) if self._yields else self._guess

    def observe(self, yields: Iterable[int]) -> None:
        """Learn from the sample counts of games that ended."""
        self._yields.extend(samples for samples in yields if samples > 0)

    def drawn(self, samples: int, version: int) -> None:
        """``samples`` went to the update that makes ``version`` + 1."""
        self._learning[version] = self._learning.get(version, 0) + samples

    def published(self, version: int) -> None:
        """New games play with ``version``: what was learned to make it no longer counts."""
        self._learning = {v: n for v, n in self._learning.items() if v >= version}

    def reserve(self, games: int, stored: int, short: bool) -> int:
        """Grant up to ``games`` new games beside ``stored`` samples.

        short: the next batch is not there yet. At least one game is then granted when none is under
        way and nothing is being learned from, so that waiting always ends.
        """
        if games < 0:
            raise ValueError(f"cannot reserve {games} games")
        learning = sum(self._learning.values())
        room = min(self._max_stored, self._max_ahead - learning) - stored
        # The small addition forgives the rounding of a mean such as 7 / 3.
        fitting = math.floor(room / self.samples_per_game - self.in_flight + 1e-9)
        granted = max(0, min(games, fitting))
        if granted == 0 and games > 0 and short and self.in_flight == 0 and learning == 0:
            granted = 1
        self.in_flight += granted
        return granted

    def release(self, games: int) -> None:
        """Give back the places of games that ended, with samples or without."""
        if not 0 <= games <= self.in_flight:
            raise ValueError(f"cannot release {games} games: {self.in_flight} are under way")
        self.in_flight -= games

    def state_dict(self) -> dict[str, Any]:
        """What was learned about yields. Games under way do not survive a restart."""
        return {"yields": list(self._yields)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what ``state_dict`` gave, with nothing under way and nothing being learned."""
        self._yields.clear()
        self._yields.extend(state["yields"])
        self._learning.clear()
        self.in_flight = 0
