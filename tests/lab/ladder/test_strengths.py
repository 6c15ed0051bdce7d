"""Strengths against references of their own: a general optimizer, linear algebra, exact games."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, xlogy

from rlforge.lab.ladder.strengths import (
    bradley_terry,
    confidence_sequence,
    cyclic_part,
    cyclic_shares,
    rating_test,
    score_draws,
    score_mean,
)

sizes = st.integers(2, 6)
seeds = st.integers(0, 10_000)


def antisymmetric(size: int, seed: int) -> np.ndarray:
    matrix = np.random.default_rng(seed).normal(size=(size, size))
    return matrix - matrix.T


@given(sizes, seeds)
def test_bradley_terry_finds_the_ratings_that_made_the_scores(size, seed):
    rating = np.random.default_rng(seed).normal(0, 1.5, size)
    found = bradley_terry(expit(rating[:, None] - rating))
    np.testing.assert_allclose(found, rating - rating.mean(), atol=1e-6)


def test_bradley_terry_is_the_maximum_of_its_likelihood_in_a_cyclic_league():
    scores = expit(antisymmetric(5, 1))
    upper = np.triu_indices(5, 1)

    def loss(rating: np.ndarray) -> float:
        chance = expit(rating[:, None] - rating)[upper]
        won = scores[upper]
        return -float((xlogy(won, chance) + xlogy(1 - won, 1 - chance)).sum())

    best = minimize(loss, np.zeros(5), tol=1e-10).x
    np.testing.assert_allclose(bradley_terry(scores), best - best.mean(), atol=1e-4)


@given(sizes, seeds)
def test_the_cyclic_part_is_orthogonal_to_every_rating(size, seed):
    odds = antisymmetric(size, seed)
    rating = np.random.default_rng(seed + 1).normal(size=size)
    rest = cyclic_part(odds)
    np.testing.assert_allclose(rest.sum(axis=1), 0, atol=1e-9)
    assert (rest * (rating[:, None] - rating)).sum() == pytest.approx(0, abs=1e-8)


def test_noise_adds_nothing_to_the_cyclic_share_on_average():
    rng = np.random.default_rng(0)
    odds, noise = antisymmetric(5, 3), np.full((5, 5), 0.3)
    np.fill_diagonal(noise, 0)
    [true] = cyclic_shares(odds[None], np.zeros((5, 5)))
    upper = np.triu(rng.normal(0, np.sqrt(0.3), (4000, 5, 5)), 1)
    measured = cyclic_shares(odds + upper - upper.transpose(0, 2, 1), noise)
    assert measured.mean() == pytest.approx(true, abs=0.02)


def test_the_test_of_a_rating_refuses_five_percent_of_ratings_and_nearly_all_cycles():
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


def test_draws_have_the_mean_of_the_scores_and_the_spread_of_students_t():
    scores = np.random.default_rng(0).choice([0.0, 0.5, 1.0], 40).tolist()
    drawn = score_draws([scores], 2, seed=0, draws=40_000)[:, 0, 1]
    spread = np.var(scores, ddof=1) / 40 * 39 / 37
    assert drawn.mean() == pytest.approx(score_mean([scores], 2)[0, 1], abs=0.003)
    assert drawn.var() == pytest.approx(spread, rel=0.05)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The script that measures coverage."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
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


@pytest.mark.parametrize("mean", [0.02, 0.5, 0.8])
def test_at_most_five_percent_of_sequences_ever_miss_the_mean(mean):
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(150):
        bounds = confidence_sequence((rng.random((60, 2)) < mean).mean(axis=1))
        missed += bool(((bounds[:, 0] > mean) | (bounds[:, 1] < mean)).any())
    assert missed <= 0.05 * 150


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), max_size=30))
def test_intervals_only_shrink_and_mirrored_scores_have_mirrored_intervals(scores):
    bounds = confidence_sequence(scores)
    mirrored = confidence_sequence([1 - score for score in scores])
    assert bounds.shape == (len(scores) + 1, 2)
    assert (np.diff(bounds[:, 0]) >= 0).all()
    assert (np.diff(bounds[:, 1]) <= 0).all()
    assert (bounds[:, 0] < bounds[:, 1]).all()
    np.testing.assert_allclose(mirrored, 1 - bounds[:, ::-1], atol=0.0021)


def test_a_point_is_refused_when_a_gambler_who_bets_against_it_has_twenty_times_the_stake():
    scores = [1.0, 0.75, 1.0, 1.0, 0.5, 1.0, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0]
    low = confidence_sequence(scores)[-1, 0]

    def largest_capital(point: float) -> float:
        """Of a gambler who starts with one half and bets that the mean is above ``point``."""
        capital, most, total, squares = 0.5, 0.0, 0.5, 0.25
        for count, score in enumerate(scores, start=1):
            variance = squares / count
            bet = min(np.sqrt(2 * np.log(40) / (variance * count * np.log(count + 1))), 0.5 / point)
            capital *= 1 + bet * (score - point)
            most = max(most, capital)
            total += score
            squares += (score - total / (count + 1)) ** 2
        return most

    assert largest_capital(low - 0.003) > 20 > largest_capital(low + 0.003)
