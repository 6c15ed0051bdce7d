"""Pairs of decisions by reward, and the Bradley-Terry strengths that explain who won."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from rlforge.types import value

Indices = NDArray[np.intp]

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
    """Pairs of positions whose rewards differ by more than ``margin``.

    All of them if there are at most ``max_pairs``, else a uniform draw without repeats. Positions
    without a finite reward are in no pair.

    Example:
        >>> pairs = generate_pairs([0.1, None, 0.9], margin=0.0, max_pairs=10, seed=0)
        >>> pairs.better.tolist(), pairs.worse.tolist()
        ([2], [0])
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
        drawn = random.Random(seed).sample(range(total), max_pairs)
        numbers = np.array(drawn, dtype=np.intp)
    winner = np.searchsorted(last, numbers, side="right")
    loser = numbers - (last[winner] - beaten[winner])
    return Pairs(better=known[winner], worse=known[loser])


Floats = NDArray[np.float64]

#: At this distance from the mean, log-strengths win or lose with certainty in double precision.
_WIDEST = 30.0


def fit_strengths(
    pairs: Pairs,
    prior: Floats,
    *,
    prior_games: float,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Floats:
    """Log-strengths of items, most likely under the Bradley-Terry model.

    P(i beats j) = γ_i / (γ_i + γ_j). The minorisation-maximisation steps of Hunter (2004, "MM
    algorithms for generalized Bradley-Terry models", eq. 3) raise the likelihood each time. Every
    item also draws ``prior_games`` games against an opponent of fixed log-strength ``prior[i]``:
    without them an item that never lost would be infinitely strong, and unconnected parts of the
    comparison graph could not be compared.

    prior: one log-strength per item, shape [n]. prior_games: above 0. tolerance: largest change of
    a log-strength in the last step.
    """
    n = len(prior)
    if len(pairs) == 0:
        return prior.copy()
    wins = np.bincount(pairs.better, minlength=n) + prior_games / 2
    shift = float(np.mean(prior))  # strengths are powers of e: keep them near 1
    anchors = np.exp(np.clip(prior - shift, -_WIDEST, _WIDEST))
    strengths = anchors.copy()
    for _ in range(max_iterations):
        per_game = 1.0 / (strengths[pairs.better] + strengths[pairs.worse])
        games = np.bincount(pairs.better, per_game, n) + np.bincount(pairs.worse, per_game, n)
        updated = wins / (games + prior_games / (strengths + anchors))
        change = float(np.max(np.abs(np.log(updated / strengths))))
        strengths = updated
        if change < tolerance:
            break
    fitted: Floats = np.log(strengths) + shift
    return fitted


def expected_wins(strengths: Floats, temperature: float) -> Floats:
    """The probability of each item to beat a random other one, 0 to 1.

    Mean over the others of sigmoid((s_i - s_j) / temperature). Equal strengths give 0.5.
    """
    if len(strengths) < 2:
        return np.full(len(strengths), 0.5)
    # Item by item: a matrix of all of them may not fit into memory.
    total = np.array([expit((own - strengths) / temperature).sum() for own in strengths])
    scores: Floats = (total - 0.5) / (len(strengths) - 1)  # the item itself is no opponent
    return scores
