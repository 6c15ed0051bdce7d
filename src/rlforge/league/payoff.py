"""Results of pairs of policies, and meta-strategies over the payoffs that they estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlforge.league.ratings import mean_rewards
from rlforge.types import Winners, value

Floats = NDArray[np.float64]

#: Smaller probabilities of a meta-strategy are rounding errors of 0.
LEAST_PROBABILITY = 1e-9


@value
class Results:
    """Games of one policy against another, as the first one sees them.

    Example:
        >>> results = Results(wins=3, draws=2, losses=1)
        >>> results.games, results.win_probability, results.payoff
        (6, 0.625, 0.25)
        >>> Results().win_probability
        0.5
    """

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    @property
    def win_probability(self) -> float:
        # Laplace's rule of succession: the prior is one win and one loss.
        return (self.wins + self.draws / 2 + 1) / (self.games + 2)

    @property
    def payoff(self) -> float:
        """2 win_probability - 1, in (-1, 1)."""
        return (self.wins - self.losses) / (self.games + 2)

    def plus(self, other: Results) -> Results:
        return Results(
            wins=self.wins + other.wins,
            draws=self.draws + other.draws,
            losses=self.losses + other.losses,
        )


class ResultTable:
    """Wins, draws and losses of every pair of policies that met.

    In games of more than two each pair counts once. Members of one team do not count against each
    other.
    """

    def __init__(self) -> None:
        #: ``{first: {second: [wins, draws, losses]}}``; every pair stands in it both ways.
        self._rows: dict[str, dict[str, list[int]]] = {}

    def record(self, outcome: Sequence[tuple[str, float]], winners: Winners = "one") -> None:
        """Count a finished game: (uid, reward) per seat. winners: its ``EnvSpec.won_by``."""
        rewards = mean_rewards(outcome)
        if winners == "all":
            return
        teams = winners == "team" and len(set(rewards.values())) > 1
        for first, own in rewards.items():
            for second, other in rewards.items():
                if first != second and not (teams and own == other):
                    counts = self._rows.setdefault(first, {}).setdefault(second, [0, 0, 0])
                    counts[0 if own > other else 1 if own == other else 2] += 1

    def between(self, first: str, second: str) -> Results:
        wins, draws, losses = self._rows.get(first, {}).get(second, (0, 0, 0))
        return Results(wins=wins, draws=draws, losses=losses)

    def payoff(self, first: str, second: str) -> float:
        return self.between(first, second).payoff

    def payoff_vectors(self, uids: Sequence[str]) -> Floats:
        """Payoffs (uids, opponents) of ``uids`` against all that one of them has met; 0 without
        games.
        """
        met = sorted({other for uid in uids for other in self._rows.get(uid, {})})
        rows = [[self.payoff(uid, other) for other in met] for uid in uids]
        return np.array(rows, dtype=float).reshape(len(uids), len(met))

    def rows(self) -> dict[str, dict[str, list[int]]]:
        return _copied(self._rows)

    def load_rows(self, rows: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        self._rows = _copied(rows)


def _copied(rows: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[str, dict[str, list[int]]]:
    return {
        first: {second: list(counts) for second, counts in row.items()}
        for first, row in rows.items()
    }


def nash_equilibrium(payoffs: Any) -> list[float]:
    """The symmetric Nash equilibrium of a zero-sum game of two that is nearest to uniform play.

    payoffs: antisymmetric, shape (n, n): row i has what strategy i earns against each other one.

    Example:
        >>> nash_equilibrium([[0, 0.5], [-0.5, 0]])
        [1.0, 0.0]
        >>> nash_equilibrium([[0, 0], [0, 0]])
        [0.5, 0.5]
    """
    from scipy.optimize import lsq_linear

    # The value of such a game is 0, so that x is an equilibrium strategy exactly where x >= 0,
    # sum(x) = 1 and x^T A >= 0. Of these, the one of least norm is unique: strategies without
    # results get equal shares, order does not matter, and copies share their weight, as in Nash
    # averaging (Balduzzi et al. 2018). Least distance, min |x| with G x >= h, is non-negative least
    # squares (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23.4).
    matrix = np.asarray(payoffs, dtype=float)
    size = len(matrix)
    # With sum(x) >= 1 the least norm has sum(x) = 1, since any other x may be scaled down.
    constraints = np.vstack([np.eye(size), matrix.T, np.ones((1, size))])
    bounds = np.zeros(2 * size + 1)
    bounds[-1] = 1.0
    system = np.vstack([constraints.T, bounds])
    target = np.zeros(size + 1)
    target[-1] = 1.0
    solution = lsq_linear(
        system, target, bounds=(0, np.inf), method="bvls", tol=1e-14, max_iter=20 * size + 20
    )
    residual = system @ solution.x - target
    return _distribution(-residual[:size] / residual[size])


def alpha_rank(payoffs: Any, alpha: float, population: int = 50) -> list[float]:
    """The share of time that an evolving population plays each strategy (arXiv:1903.01373).

    Args:
        payoffs: antisymmetric, shape (n, n).
        alpha: ranking intensity; the larger, the more a better strategy is preferred.
        population: individuals, of whom all but one play the same.

    Example:
        >>> [round(share, 3) for share in alpha_rank([[0, 0.5], [-0.5, 0]], alpha=1.0)]
        [1.0, 0.0]
        >>> [round(share, 3) for share in alpha_rank([[0, 0], [0, 0]], alpha=1.0)]
        [0.5, 0.5]
    """
    # OpenSpiel's egt overflows above an alpha of about 500, takes 300 times as long and needs
    # matplotlib.
    matrix = np.asarray(payoffs, dtype=float)
    size = len(matrix)
    if size == 1:
        return [1.0]
    # Row: a strategy; column: the mutant that gains over it.
    gain = alpha * (matrix.T - matrix)
    # A mutant r replaces s with probability (1 - e^-u) / (1 - e^-mu), u = alpha (A_rs - A_sr), and
    # 1 / m where u = 0, computed without powers that overflow. Of each two strategies one replaces
    # the other with at least 1 / m, so that the chain has exactly one stationary distribution.
    least = np.abs(gain)
    with np.errstate(invalid="ignore"):
        better = np.expm1(-least) / np.expm1(-population * least)
    better = np.where(least < 1e-14, 1 / population, better)
    takes_over = np.where(gain < 0, better * np.exp(-(population - 1) * least), better)
    chain = takes_over / (size - 1)
    np.fill_diagonal(chain, 0.0)
    np.fill_diagonal(chain, 1 - chain.sum(axis=1))
    # pi (P - 1) = 0 has one equation too many; the last one becomes sum(pi) = 1.
    system = chain.T - np.eye(size)
    system[-1] = 1.0
    return _distribution(np.linalg.solve(system, np.eye(size)[-1]))


def _distribution(shares: Floats) -> list[float]:
    kept = np.where(shares < LEAST_PROBABILITY, 0.0, shares)
    return [float(share) for share in kept / kept.sum()]
