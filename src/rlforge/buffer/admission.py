"""How many games may start, so that none is played for nothing."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any


class Admission:
    """Back-pressure by expected samples (the staleness control of AReaL, Fu et al. 2025).

    What is being learned from at the current version, what is stored and what the games under way
    are expected to bring together stay within ``limit``. With ``limit`` = (s + 1) batches no sample
    waits longer than s updates, up to the error of the expectation.

    The expectation is the mean yield of the last games that brought samples; failed games are left
    out, so that their places are filled only once they are known to have failed.

    samples_per_game: the guess until the first game has ended.
    """

    def __init__(self, limit: int, samples_per_game: float) -> None:
        if limit < 1 or samples_per_game <= 0:
            raise ValueError(f"limit {limit} and samples per game {samples_per_game} must be > 0")
        self.limit = limit
        self.in_flight = 0
        self.learning = 0
        self._guess = samples_per_game
        # Whole numbers and an exact sum: a constant yield gives exactly that mean.
        self._yields: deque[int] = deque(maxlen=512)

    @property
    def samples_per_game(self) -> float:
        """Expected samples of one game."""
        return sum(self._yields) / len(self._yields) if self._yields else self._guess

    def observe(self, yields: Iterable[int]) -> None:
        """Learn from the sample counts of games that ended."""
        self._yields.extend(samples for samples in yields if samples > 0)

    def reserve(self, games: int, stored: int, short: bool) -> int:
        """Grant up to ``games`` new games beside ``stored`` samples.

        short: the next batch is not there yet. At least one game is then granted when none is under
        way and nothing is being learned from, so that waiting always ends.
        """
        if games < 0:
            raise ValueError(f"cannot reserve {games} games")
        expected = self.in_flight * self.samples_per_game
        room = self.limit - self.learning - stored - expected
        granted = max(0, min(games, math.floor(room / self.samples_per_game + 1e-9)))
        idle = self.in_flight == 0 and self.learning == 0
        if granted == 0 and games > 0 and idle and short:
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
        """Put back what ``state_dict`` gave, with nothing under way."""
        self._yields.clear()
        self._yields.extend(state["yields"])
        self.in_flight = self.learning = 0
