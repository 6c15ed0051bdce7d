"""Statistics of a ladder: Bradley-Terry, cycles, and intervals of a score.

A score is the expected result of the row's member against the column's, a win 1 and a draw 1/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rlforge.league.run_ladder import most_likely_strengths

Array = NDArray[np.float64]

# Without a prior the log-odds of a pairing that one member always won would be infinite.
#: Pairs won and pairs lost, each, that every pairing is taken to have seen before its first.
PRIOR = 0.25
#: Draws of the matrix behind an interval.
DRAWS = 1000


def score_mean(pairs: Sequence[Sequence[float]], members: int) -> Array:
    """The matrix of mean scores, with the prior. pairs: in the order of the combinations.

    Example:
        >>> score_mean([[1.0, 0.5]], members=2).round(3).tolist()
        [[0.5, 0.7], [0.3, 0.5]]
    """
    means = [(sum(scores) + PRIOR) / (len(scores) + 2 * PRIOR) for scores in pairs]
    matrix: Array = _matrix(np.array([means]), members)[0]
    return matrix


def score_draws(
    pairs: Sequence[Sequence[float]], members: int, *, seed: int, draws: int = DRAWS
) -> Array:
    """Matrices (draws, n, n) that are as likely as the measured one: a bootstrap over pairs."""
    # In the Bayesian bootstrap (Rubin 1981) each pair gets a Dirichlet weight, with the prior. A
    # resampled mean would have no spread where every pair ended alike. K pairs count as
    # K² / (K + 4), so that a mean's variance is that of Student's t posterior,
    # s² / K · (K − 1) / (K − 3), and few pairs are not trusted too much.
    rng = np.random.default_rng(seed)
    columns = []
    for scores in pairs:
        support, counts = np.unique([*scores, 0.0, 1.0], return_counts=True)
        alphas = counts - np.isin(support, (0.0, 1.0)) * (1 - PRIOR)
        trust = len(scores) / (len(scores) + 4) if len(scores) else 1.0
        weights = rng.standard_gamma(trust * alphas, size=(draws, len(support)))
        lost, won = weights @ (1 - support), weights @ support
        columns.append(np.clip(won / (won + lost), 1e-12, 1 - 1e-12))
    return _matrix(np.stack(columns, axis=1), members)


def _matrix(upper: Array, members: int) -> Array:
    """Matrices (draws, n, n) of the scores (draws, pairings)."""
    scores = np.full((len(upper), members, members), 0.5)
    for column, (i, j) in enumerate(combinations(range(members), 2)):
        scores[:, i, j], scores[:, j, i] = upper[:, column], 1 - upper[:, column]
    return scores


def bradley_terry(scores: Array) -> Array:
    """Bradley-Terry strengths of score matrices (…, n, n) inside (0, 1), in log-odds, of mean 0.

    The maximum of Σ s_ij log σ(r_i − r_j). In a league that no rating explains it is the nearest
    one.
    """
    # Each pairing has weight 1 whatever its number of games. A draw is half a win and half a loss:
    # Davidson's likelihood (1970) learns no more from draws that are rare or as likely everywhere.
    return most_likely_strengths(scores)[0]


def strength_intervals(draws: Array, level: float = 0.95) -> Array:
    """Bounds (2, n) between which the strength of each member lies in ``level`` of the draws."""
    tails = [(1 - level) / 2, (1 + level) / 2]
    bounds: Array = np.quantile(bradley_terry(draws), tails, axis=0)
    return bounds


def cyclic_part(odds: Array) -> Array:
    """Antisymmetric matrices (…, n, n) without the differences of their best rating.

    For log-odds the rest is 0 exactly where Bradley-Terry holds.

    Example: rock, paper and scissors are nothing but a cycle:
        >>> cyclic_part(np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]])).astype(int).tolist()
        [[0, 1, -1], [-1, 0, 1], [1, -1, 0]]
    """
    # This is the combinatorial Hodge decomposition A = grad(r) + rot(A), both orthogonal (Jiang,
    # Lim, Yao and Ye 2011; Balduzzi et al. 2018, section 3).
    rating = odds.mean(axis=-1)
    rest: Array = odds - (rating[..., :, None] - rating[..., None, :])
    return rest


def cyclic_shares(odds: Array, noise: Array) -> Array:
    """The cyclic share of the squared log-odds (draws, n, n); NaN below the noise.

    noise: variance of each entry (n, n).
    """
    # Noise adds 1 − 2/n of itself to the square of the cyclic part and 2/n to that of the rest, by
    # their dimensions, so both are subtracted.
    n = odds.shape[-1]
    rest = (cyclic_part(odds) ** 2).sum(axis=(-2, -1))
    whole = (odds**2).sum(axis=(-2, -1))
    added = noise.sum()
    cyclic = np.maximum(rest - (1 - 2 / n) * added, 0)
    rated = np.maximum(whole - rest - 2 / n * added, 0)
    with np.errstate(invalid="ignore"):
        share: Array = cyclic / (cyclic + rated)
    return share


def rating_test(odds: Array, noise: Array) -> float:
    """p-value of a rating behind log-odds (n, n) of variances ``noise``; n is 3 or more."""
    n = len(odds)
    edges = [*combinations(range(n), 2)]
    rows, columns = zip(*edges, strict=True)
    gradient = np.zeros((len(edges), n))
    gradient[range(len(edges)), rows], gradient[range(len(edges)), columns] = 1, -1
    weight = 1 / np.sqrt(noise[rows, columns])
    design, measured = gradient * weight[:, None], odds[rows, columns] * weight
    rating, *_ = np.linalg.lstsq(design, measured, rcond=None)
    # If a rating is true, the weighted squares that the best one leaves are χ².
    left = float(((measured - design @ rating) ** 2).sum())
    return float(stats.chi2.sf(left, (n - 1) * (n - 2) // 2))


#: Candidates for the mean, equally spaced in [0, 1].
_CANDIDATES = np.linspace(0.0, 1.0, 501)
#: Largest share of its capital that a bet may lose.
_TRUNCATION = 0.5


def confidence_sequence(
    scores: Sequence[float] | NDArray[np.float64], alpha: float = 0.05
) -> NDArray[np.float64]:
    """Intervals (n + 1, 2) of the mean of independent scores in [0, 1], after 0, 1, …, n of them.

    The probability that any of them misses the mean is at most ``alpha``, whatever the
    distribution. Bounds are exact to 0.002, outwards.
    """
    # This is the hedged capital process of Waudby-Smith and Ramdas (2024, theorem 3) with its
    # predictable plug-in bets: a candidate is refused once a gambler against it has 1 / alpha times
    # the capital. An ordinary interval that is looked at after every game misses far more often.
    x = np.asarray(scores, float)
    count = np.arange(1, len(x) + 1)
    mean = (0.5 + np.cumsum(x)) / (count + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (count + 1)
    # A bet must not know the score that it is on, or the bounds would not hold.
    known = np.concatenate([[0.25], variance[:-1]])
    bet = np.sqrt(2 * np.log(2 / alpha) / (known * count * np.log(count + 1)))[:, None]
    with np.errstate(divide="ignore"):
        above = np.minimum(bet, _TRUNCATION / _CANDIDATES)
        below = np.minimum(bet, _TRUNCATION / (1 - _CANDIDATES))
    gain = x[:, None] - _CANDIDATES
    capital = np.maximum(
        np.cumsum(np.log1p(above * gain), axis=0), np.cumsum(np.log1p(-below * gain), axis=0)
    )
    kept = np.logical_and.accumulate(capital + np.log(0.5) < np.log(1 / alpha), axis=0)
    step, last = _CANDIDATES[1], len(_CANDIDATES) - 1
    bounds = np.empty((len(x) + 1, 2))
    bounds[0] = 0.0, 1.0
    bounds[1:, 0] = _CANDIDATES[kept.argmax(axis=1)] - step
    bounds[1:, 1] = _CANDIDATES[last - kept[:, ::-1].argmax(axis=1)] + step
    # Where every candidate is refused, at most as often as alpha says, the last interval stays.
    known_until = 1 + int(kept.any(axis=1).sum())
    bounds[known_until:] = bounds[known_until - 1]
    return np.clip(bounds, 0.0, 1.0)
