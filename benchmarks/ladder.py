"""How often the intervals of a ladder's card hold the truth, in leagues whose truth is known.

    python benchmarks/ladder.py [--leagues 200] [--processes 2]

A league has five members. A game is won with the odds that its kind says, after an advantage of the
first move of half a unit of log-odds; even games are drawn most often. Pairings are played and
stopped as `rlforge ladder` does. The true strengths are those that Bradley-Terry gives for the
true scores. ``--leagues``: of each kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from common import record
from numpy.typing import NDArray
from scipy.special import expit

from rlforge.lab.ladder.card import ROUND_PAIRS, cycles, ending, first_move
from rlforge.lab.ladder.record import LadderRules
from rlforge.lab.ladder.strengths import (
    bradley_terry,
    confidence_sequence,
    cyclic_shares,
    score_draws,
    score_mean,
    strength_intervals,
)

MEMBERS, FIRST_MOVE, DRAWS = 5, 0.5, 0.3
RULES = LadderRules(env_id="synthetic", seed=0, games=200, precision=0.1)

Array = NDArray[np.float64]


def _rated(rng: np.random.Generator) -> Array:
    rating = rng.normal(0, 1, MEMBERS)
    return rating[:, None] - rating


def _far_apart(rng: np.random.Generator) -> Array:
    rating = np.linspace(-2.5, 2.5, MEMBERS)
    return rating[:, None] - rating


def _cyclic(rng: np.random.Generator) -> Array:
    odds = rng.normal(0, 1, (MEMBERS, MEMBERS))
    return odds - odds.T


def _clones(rng: np.random.Generator) -> Array:
    """Of three members that differ, the last two twice."""
    odds = rng.normal(0, 1, (3, 3))
    copies = [0, 1, 2, 1, 2]
    return (odds - odds.T)[np.ix_(copies, copies)]


def _equal(rng: np.random.Generator) -> Array:
    return np.zeros((MEMBERS, MEMBERS))


KINDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "rated": _rated,
    "far apart": _far_apart,
    "cyclic": _cyclic,
    "clones": _clones,
    "equal": _equal,
}


def _chances(odds: float) -> tuple[Array, Array]:
    """Of a win and of a draw of the first member, with and without the first move."""
    won = expit(odds + FIRST_MOVE * np.array([1.0, -1.0]))
    drawn = DRAWS * 4 * won * (1 - won)
    return won * (1 - drawn), drawn


def _play(odds: float, rng: np.random.Generator) -> tuple[list[float], list[float]]:
    """Scores of the pairs until the pairing ends, and the gain of the first move in each."""
    won, drawn = _chances(odds)
    luck = rng.random((RULES.games // 2, 2))
    points = np.where(luck < won, 1.0, np.where(luck < won + drawn, 0.5, 0.0))
    scores, gaps = points.mean(axis=1), points[:, 0] - points[:, 1]
    bounds = confidence_sequence(scores)
    played = 0
    while ending(*bounds[played], played, RULES) == "open":
        played += ROUND_PAIRS
    return scores[:played].tolist(), gaps[:played].tolist()


def _truth(odds: Array) -> tuple[Array, float]:
    """The expected scores, and the mean gain of the first move."""
    expected, gains = np.full(odds.shape, 0.5), []
    for i, j in combinations(range(MEMBERS), 2):
        won, drawn = _chances(odds[i, j])
        points = won + drawn / 2
        expected[i, j], expected[j, i] = points.mean(), 1 - points.mean()
        gains.append(points[0] - points[1])
    return expected, float(np.mean(gains))


def play_league(kind: str, seed: int) -> dict[str, list[bool] | list[int]]:
    """A league: for each figure of the card whether its intervals hold the truth."""
    rng = np.random.default_rng((seed, list(KINDS).index(kind)))
    odds = KINDS[kind](rng)
    expected, gain = _truth(odds)
    played = [_play(odds[i, j], rng) for i, j in combinations(range(MEMBERS), 2)]
    scores = [own for own, _ in played]
    mean = score_mean(scores, MEMBERS)
    draws = score_draws(scores, MEMBERS, seed=seed)
    low, high = strength_intervals(draws)
    strengths = bradley_terry(expected)
    share, p = cycles(mean, draws)
    [true_share] = cyclic_shares(np.log(expected / expected.T)[None], np.zeros_like(expected))
    moved = first_move([gaps for _, gaps in played])
    cells = [
        (confidence_sequence(own)[-1], expected[i, j])
        for own, (i, j) in zip(scores, combinations(range(MEMBERS), 2), strict=True)
    ]
    return {
        "strength": [bool(x) for x in (low <= strengths) & (strengths <= high)],
        "first_move": [] if moved is None else [bool(moved.low <= gain <= moved.high)],
        "score": [bool(bounds[0] <= true <= bounds[1]) for bounds, true in cells],
        "cyclic_share": []
        if share is None or np.isnan(true_share)
        else [bool(share.low <= true_share <= share.high)],
        "rating_refused": [p < 0.05],
        "games": [2 * len(own) for own in scores],
    }


def measured(kind: str, leagues: int, processes: int) -> dict[str, Any]:
    """The mean of each figure over the leagues of a kind, and how many intervals it is of."""
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(partial(play_league, kind), range(leagues), chunksize=5))
    rows: dict[str, Any] = {"leagues": leagues}
    for name in found[0]:
        values = [value for league in found for value in league[name]]
        if values:
            rows[name] = round(float(np.mean(values)), 4)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--leagues", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    kinds = {}
    for kind in KINDS:
        kinds[kind] = measured(kind, arguments.leagues, arguments.processes)
        print(kind, kinds[kind], flush=True)
    record("ladder", {"covered_share": kinds, "nominal": 0.95})


if __name__ == "__main__":
    main()
