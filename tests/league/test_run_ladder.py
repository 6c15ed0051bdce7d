"""The ladder of a run against a general optimizer, and leagues whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit

from rlforge.league.run_ladder import ELO, PRIOR_SPREAD, run_ladder

sizes = st.integers(2, 6)
seeds = st.integers(0, 10_000)


def played(points: np.ndarray, games: np.ndarray) -> dict[str, dict[str, list[int]]]:
    """Results of ``p0``, ``p1``, … without draws; points: won by the row against the column."""
    names = [f"p{place}" for place in range(len(points))]
    return {
        first: {
            second: [int(points[i, j]), 0, int(games[i, j] - points[i, j])]
            for j, second in enumerate(names)
            if games[i, j]
        }
        for i, first in enumerate(names)
    }


def league(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ratings, points and games of a league whose pairings have 0 to 200 games each."""
    rng = np.random.default_rng(seed)
    rating = rng.normal(0, 1, size)
    games = np.triu(rng.integers(0, 200, (size, size)), 1)
    won = rng.binomial(games, expit(rating[:, None] - rating))
    return rating, won + (games - won).T * (games.T > 0), games + games.T


@given(sizes, seeds)
def test_a_runs_ladder_is_the_maximum_of_its_posterior(size, seed):
    _, points, games = league(size, seed)

    def loss(strengths: np.ndarray) -> float:
        gaps = strengths[:, None] - strengths
        prior = (strengths**2).sum() / (2 * PRIOR_SPREAD**2)
        return float(prior - (points * np.log(expit(gaps))).sum())

    best = minimize(loss, np.zeros(size), method="BFGS", options={"gtol": 1e-7}).x
    found = run_ladder(played(points, games), [(f"p{place}",) for place in range(size)])

    elo = {one.uids[0]: one.elo for one in found}
    assert list(elo.values()) == sorted(elo.values(), reverse=True)
    assert set(elo) == {f"p{place}" for place in range(size) if games[place].any()}
    if not elo:
        return
    zero = best[0] if "p0" in elo else np.mean([best[int(uid[1:])] for uid in elo])
    for uid, points_of in elo.items():
        assert points_of == pytest.approx(ELO * (best[int(uid[1:])] - zero), abs=0.5)


def test_odds_of_ten_to_one_are_400_points():
    points = np.array([[0, 10_000], [1_000, 0]])
    first, second = run_ladder(played(points, points + points.T), [("p0",), ("p1",)])
    assert first.elo - second.elo == pytest.approx(400, abs=0.5)


def test_intervals_of_a_runs_ladder_hold_the_true_differences():
    inside = total = 0
    for seed in range(200):
        rating, points, games = league(5, seed)
        for one in run_ladder(played(points, games), [(f"p{place}",) for place in range(5)]):
            place = int(one.uids[0][1:])
            if place:
                inside += one.low <= ELO * (rating[place] - rating[0]) <= one.high
                total += 1
    assert 0.92 <= inside / total <= 0.98


def test_names_of_one_policy_are_one_member_and_their_games_do_not_count():
    results = {
        "base": {"step-0": [9, 0, 0], "step-5": [1, 0, 3]},
        "step-0": {"base": [0, 0, 9], "step-5": [0, 4, 0]},
        "step-5": {"base": [3, 0, 1], "step-0": [0, 4, 0]},
    }
    best, start = run_ladder(results, [("step-0", "base"), ("step-5",), ("step-9",)])
    assert (best.uids, best.games) == (("step-5",), 8)
    assert (start.uids, start.elo, start.low, start.high) == (("step-0", "base"), 0, 0, 0)
    assert best.elo == pytest.approx(ELO * np.log(5 / 3), rel=0.05)  # 5 points of 8


def test_those_with_most_games_are_rated_around_their_mean_where_the_start_is_not_among_them():
    results = {
        "a": {"b": [30, 0, 10], "start": [1, 0, 0]},
        "b": {"a": [10, 0, 30]},
        "start": {"a": [0, 0, 1]},
    }
    first, second = run_ladder(results, [("start",), ("a",), ("b",)], most=2)
    assert (first.uids, second.uids) == (("a",), ("b",))
    assert first.elo == pytest.approx(-second.elo)
    assert run_ladder({}, [("start",)]) == []
