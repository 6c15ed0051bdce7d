"""Pairs of decisions by reward."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlforge.types import value

Indices = NDArray[np.intp]
Floats = NDArray[np.float64]

#: Most pairs that one window gives; drawn by seed where there are more.
MAX_PAIRS = 4000


@value
class Pairs:
    """Positions of decisions: ``better[k]`` was preferred to ``worse[k]``."""

    better: Indices
    worse: Indices

    def __len__(self) -> int:
        return len(self.better)


def generate_pairs(
    rewards: Sequence[float | None], *, margin: float, max_pairs: int, seed: int
) -> Pairs:
    """Pairs of positions whose rewards are finite and differ by more than ``margin``.

    Where there are more than ``max_pairs``, these are drawn uniformly without repeats.
    """
    known = np.array(
        [i for i, r in enumerate(rewards) if r is not None and np.isfinite(r)], dtype=np.intp
    )
    found = np.array([rewards[i] for i in known], dtype=np.float64)
    ascending = np.argsort(found, kind="stable")
    known, found = known[ascending], found[ascending]
    # In ascending order a decision beats exactly the first ``beaten`` ones.
    beaten = np.searchsorted(found, found - margin, side="left")
    last = np.cumsum(beaten)
    total = int(last[-1]) if len(last) else 0
    if total <= max_pairs:
        numbers = np.arange(total, dtype=np.intp)
    else:
        # Numbers of pairs are drawn, not pairs: a window may have millions.
        drawn = random.Random(seed).sample(range(total), max_pairs)
        numbers = np.array(drawn, dtype=np.intp)
    winner = np.searchsorted(last, numbers, side="right")
    loser = numbers - (last[winner] - beaten[winner])
    return Pairs(better=known[winner], worse=known[loser])
