"""Strengths against references of their own: a general optimizer, linear algebra, exact games."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, xlogy

from rlforge.league.strengths import (
    ELO,
    PRIOR_SPREAD,
    bradley_terry,
    cyclic_part,
    cyclic_shares,
    maximum_entropy_nash,
    rating_test,
    run_ladder,
    score_draws,
    score_mean,
)

sizes = st.integers(2, 6)
seeds = st.integers(0, 10_000)


def antisymmetric(size: int, seed: int) -> np.ndarray:
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix - matrix.T


@given(sizes, seeds)
def test_bradley_terry_finds_the_ratings_that_made_the_scores(size: int, seed: int) -> None:
    rating = np.random.default_rng(seed).normal(0, 1.5, size)

    found = bradley_terry(expit(rating[:, None] - rating))

    np.testing.assert_allclose(found, rating - rating.mean(), atol=1e-6)


def test_bradley_terry_is_the_maximum_of_its_likelihood_in_a_cyclic_league() -> None:
    scores = expit(antisymmetric(5, 1))
    upper = np.triu_indices(5, 1)

    def loss(rating: np.ndarray) -> float:
        chance = expit(rating[:, None] - rating)[upper]
        won = scores[upper]
        return -float((xlogy(won, chance) + xlogy(1 - won, 1 - chance)).sum())

    best = minimize(loss, np.zeros(5), tol=1e-10).x
    np.testing.assert_allclose(bradley_terry(scores), best - best.mean(), atol=1e-4)


@given(sizes, seeds)
def test_the_cyclic_part_is_orthogonal_to_every_rating(size: int, seed: int) -> None:
    odds = antisymmetric(size, seed)
    rating = np.random.default_rng(seed + 1).normal(size=size)

    rest = cyclic_part(odds)

    np.testing.assert_allclose(rest.sum(axis=1), 0, atol=1e-9)
    assert (rest * (rating[:, None] - rating)).sum() == pytest.approx(0, abs=1e-8)


def test_noise_adds_nothing_to_the_cyclic_share_on_average() -> None:
    rng = np.random.default_rng(0)
    odds, noise = antisymmetric(5, 3), np.full((5, 5), 0.3)
    np.fill_diagonal(noise, 0)
    [true] = cyclic_shares(odds[None], np.zeros((5, 5)))
    upper = np.triu(rng.normal(0, np.sqrt(0.3), (4000, 5, 5)), 1)

    measured = cyclic_shares(odds + upper - upper.transpose(0, 2, 1), noise)

    assert measured.mean() == pytest.approx(true, abs=0.02)


def test_the_test_of_a_rating_refuses_five_percent_of_ratings_and_nearly_all_cycles() -> None:
    rng = np.random.default_rng(0)
    rating = rng.normal(size=5)
    cycle = np.roll(np.eye(5), 1, axis=1) - np.roll(np.eye(5), -1, axis=1)
    noise = rng.uniform(0.05, 0.4, (5, 5))
    noise = np.triu(noise, 1) + np.triu(noise, 1).T

    def refused(odds: np.ndarray) -> float:
        upper = np.triu(rng.normal(size=(500, 5, 5)) * np.sqrt(noise), 1)
        luck = upper - upper.transpose(0, 2, 1)
        return float(np.mean([rating_test(odds + one, noise) < 0.05 for one in luck]))

    ratings = rating[:, None] - rating
    assert refused(ratings) == pytest.approx(0.05, abs=0.03)
    assert refused(ratings + 2 * cycle) > 0.95


@settings(max_examples=20)
@given(sizes, seeds)
def test_nothing_beats_the_nash_mixture_and_copies_share_its_weight(size: int, seed: int) -> None:
    payoffs = antisymmetric(size, seed)

    nash = maximum_entropy_nash(payoffs)
    doubled = maximum_entropy_nash(np.tile(payoffs, (2, 2)))

    assert (payoffs @ nash).max() < 1e-5
    assert nash.sum() == pytest.approx(1)
    np.testing.assert_allclose(doubled, np.tile(nash / 2, 2), atol=1e-4)


def test_of_all_nash_equilibria_the_one_of_largest_entropy_is_taken() -> None:
    assert maximum_entropy_nash(np.zeros((3, 3))) == pytest.approx([1 / 3] * 3)


def test_draws_have_the_mean_of_the_scores_and_the_spread_of_students_t() -> None:
    scores = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 40).tolist()

    drawn = score_draws([scores], 2, seed=0, draws=40_000)[:, 0, 1]

    spread = np.var(scores, ddof=1) / 40 * 39 / 37
    assert drawn.mean() == pytest.approx(score_mean([scores], 2)[0, 1], abs=0.003)
    assert drawn.var() == pytest.approx(spread, rel=0.05)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The script that measures coverage."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.delitem(sys.modules, "ladder", raising=False)
    import ladder

    yield ladder
    monkeypatch.delitem(sys.modules, "ladder")


def test_intervals_of_a_league_hold_the_truth_as_often_as_they_say(benchmark) -> None:  # type: ignore[no-untyped-def]
    leagues = [
        benchmark.play_league(kind, 1000 + seed) for kind in benchmark.KINDS for seed in range(4)
    ]

    def covered(name: str) -> float:
        return float(np.mean([hit for league in leagues for hit in league[name]]))

    assert 0.89 <= covered("strength") <= 0.99
    assert covered("first_move") >= 0.85
    assert covered("score") >= 0.97


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
def test_a_runs_ladder_is_the_maximum_of_its_posterior(size: int, seed: int) -> None:
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
    zero = best[0] if "p0" in elo else np.mean([best[int(uid[1:])] for uid in elo])
    for uid, points_of in elo.items():
        assert points_of == pytest.approx(ELO * (best[int(uid[1:])] - zero), abs=0.5)


def test_intervals_of_a_runs_ladder_hold_the_true_differences() -> None:
    inside = total = 0
    for seed in range(200):
        rating, points, games = league(5, seed)
        for one in run_ladder(played(points, games), [(f"p{place}",) for place in range(5)]):
            place = int(one.uids[0][1:])
            if place:
                inside += one.low <= ELO * (rating[place] - rating[0]) <= one.high
                total += 1
    assert 0.92 <= inside / total <= 0.98


def test_names_of_one_policy_are_one_member_and_their_games_do_not_count() -> None:
    results = {
        "base": {"step-0": [9, 0, 0], "step-5": [1, 0, 3]},
        "step-0": {"base": [0, 0, 9], "step-5": [0, 4, 0]},
        "step-5": {"base": [3, 0, 1], "step-0": [0, 4, 0]},
    }
    best, start = run_ladder(results, [("step-0", "base"), ("step-5",), ("step-9",)])
    assert (best.uids, best.games) == (("step-5",), 8)
    assert (start.uids, start.elo, start.low, start.high) == (("step-0", "base"), 0, 0, 0)
    assert best.elo == pytest.approx(ELO * np.log(5 / 3), rel=0.05)  # 5 points of 8


def test_those_with_most_games_are_rated_around_their_mean_where_the_start_is_not_among_them() -> (
    None
):
    results = {
        "a": {"b": [30, 0, 10], "start": [1, 0, 0]},
        "b": {"a": [10, 0, 30]},
        "start": {"a": [0, 0, 1]},
    }
    first, second = run_ladder(results, [("start",), ("a",), ("b",)], most=2)
    assert (first.uids, second.uids) == (("a",), ("b",))
    assert first.elo == pytest.approx(-second.elo)
    assert run_ladder({}, [("start",)]) == []
