"""The ladder of a run: strengths from games as they come, however many a pairing has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rlforge.record.results import LadderRow

Array = NDArray[np.float64]

#: Elo points of a unit of log-odds: 400 points are odds of 10 to 1.
ELO = 400 / math.log(10)

#: Of the normal prior of the strengths, in log-odds: about 520 Elo points.
PRIOR_SPREAD = 3.0
#: Policies that are ranked: those with most games.
LADDER_POLICIES = 48

_LARGEST_STEP, _NEWTON_STEPS = 1.0, 200
#: Half of the 95 % interval of a normal distribution, in standard deviations.
_NORMAL_95 = 1.959964


def run_ladder(
    results: Mapping[str, Mapping[str, Sequence[int]]],
    names: Sequence[Sequence[str]],
    most: int = LADDER_POLICIES,
) -> list[LadderRow]:
    """Bradley-Terry strengths from the games of a run, in any order; the strongest first.

    Args:
        results: ``{first: {second: [wins, draws, losses]}}``, each pair both ways.
        names: names of each policy; games between two names of one policy do not count.
        most: policies that are rated, those with most games. The first policy is the zero of the
            scale if it is among them, else their mean is.
    """
    owner = {uid: place for place, uids in enumerate(names) for uid in uids}
    points = np.zeros((len(names), len(names)))
    for first, row in results.items():
        for second, (won, drawn, _) in row.items():
            if owner[first] != owner[second]:
                points[owner[first], owner[second]] += won + drawn / 2
    games = (points + points.T).sum(axis=1)
    kept = sorted(np.argsort(-games, kind="stable")[:most])
    kept = [place for place in kept if games[place]]
    if not kept:
        return []
    # Strengths maximise Σ w_ij log σ(r_i − r_j), w_ij wins and half of the draws. The prior keeps
    # them finite where every game was won or two did not meet. Intervals are those of the normal
    # distribution that fits the maximum (Laplace).
    strengths, curvature = most_likely_strengths(points[np.ix_(kept, kept)], PRIOR_SPREAD**-2)
    covariance = np.linalg.inv(curvature)
    zero = np.full(len(kept), 1 / len(kept))
    if kept[0] == 0:
        zero = np.eye(len(kept))[0]
    contrast = np.eye(len(kept)) - zero
    spread = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", contrast, covariance, contrast), 0))
    found = [
        LadderRow(
            uids=tuple(names[place]),
            elo=float(ELO * one),
            low=float(ELO * (one - _NORMAL_95 * deviation)),
            high=float(ELO * (one + _NORMAL_95 * deviation)),
            games=round(games[place]),
        )
        for place, one, deviation in zip(kept, contrast @ strengths, spread, strict=True)
    ]
    return sorted(found, key=lambda one: -one.elo)


def most_likely_strengths(points: Array, precision: float = 0.0) -> tuple[Array, Array]:
    """Bradley-Terry strengths (…, n) in log-odds, of mean 0, and the curvature (…, n, n) there.

    points: won by the row's member against the column's, (…, n, n). precision: precision of
    a normal prior.
    """
    # choix has whole games only, no curvature for intervals, and one matrix at a time: it takes
    # 34 s for 113,000 games of 48 policies with a prior, 1.4 s for the draws of a ladder of eight.
    # Newton's method. Games leave the mean open: 1 / n in all entries of the curvature fixes it.
    n, games = points.shape[-1], points + points.swapaxes(-1, -2)
    strengths: Array = np.zeros(points.shape[:-1])
    for _ in range(_NEWTON_STEPS):
        expected = 1 / (1 + np.exp(strengths[..., None, :] - strengths[..., :, None]))
        slope = (points - games * expected).sum(axis=-1) - precision * strengths
        weights = games * np.maximum(expected * (1 - expected), 1e-10)
        curvature = (weights.sum(axis=-1)[..., None] + precision) * np.eye(n) - weights + 1 / n
        step = np.linalg.solve(curvature, slope[..., None])[..., 0]
        largest = np.abs(step).max(axis=-1, keepdims=True)
        strengths = strengths + step * np.minimum(1, _LARGEST_STEP / np.maximum(largest, 1e-300))
        if largest.max() < 1e-9:
            break
    return strengths - strengths.mean(axis=-1, keepdims=True), curvature
