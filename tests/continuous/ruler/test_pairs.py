from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from rlforge.continuous.ruler.pairs import Pairs, expected_wins, fit_strengths, generate_pairs

# Quarters are exact, so that differences are too.
REWARDS = st.lists(
    st.one_of(st.none(), st.just(float("nan")), st.integers(-8, 8).map(lambda n: n / 4)),
    max_size=12,
)


def _set(rewards, margin, most, seed=0):
    pairs = generate_pairs(rewards, margin=margin, max_pairs=most, seed=seed)
    return list(zip(pairs.better.tolist(), pairs.worse.tolist(), strict=True))


def _all(rewards, margin):
    known = [(i, r) for i, r in enumerate(rewards) if r is not None and r == r]
    return {(i, j) for (i, a), (j, b) in permutations(known, 2) if a - b > margin}


@given(REWARDS, st.integers(0, 4).map(lambda n: n / 4))
def test_all_pairs_that_differ_by_more_than_the_margin(rewards, margin):
    found = _set(rewards, margin, 10_000)
    assert len(found) == len(set(found))
    assert set(found) == _all(rewards, margin)


@given(REWARDS, st.integers(1, 20), st.integers(0, 5))
def test_a_bounded_draw_without_repeats(rewards, most, seed):
    found, every = _set(rewards, 0.25, most, seed), _all(rewards, 0.25)
    assert len(found) == len(set(found)) == min(most, len(every))
    assert set(found) <= every
    assert found == _set(rewards, 0.25, most, seed)


def test_the_draw_is_uniform_and_follows_the_seed():
    rewards = [0.0, 1.0, 2.0, 3.0]
    counts = dict.fromkeys(_all(rewards, 0.0), 0)
    for seed in range(600):
        for pair in _set(rewards, 0.0, 2, seed):
            counts[pair] += 1
    assert len(counts) == 6
    assert all(150 <= count <= 250 for count in counts.values())  # 200 expected, 11.5 deviation


def _pairs(better, worse):
    return Pairs(better=np.array(better, dtype=np.intp), worse=np.array(worse, dtype=np.intp))


@pytest.mark.parametrize("prior_games", [0.5, 4.0])
def test_strengths_maximise_the_likelihood(prior_games):
    draw = np.random.default_rng(0)
    n, truth = 8, draw.normal(size=8)
    left, right = draw.integers(0, n, 200), draw.integers(0, n, 200)
    left, right = left[left != right], right[left != right]
    won = draw.random(len(left)) < expit(truth[left] - truth[right])
    pairs = _pairs(np.where(won, left, right).tolist(), np.where(won, right, left).tolist())
    prior = draw.normal(size=n)

    def loss(s):
        games = log_expit(s[pairs.better] - s[pairs.worse]).sum()
        drawn = log_expit(s - prior).sum() + log_expit(prior - s).sum()
        return -(games + prior_games / 2 * drawn)

    best = minimize(loss, np.zeros(n), tol=1e-12).x
    found = fit_strengths(
        pairs, prior, prior_games=prior_games, tolerance=1e-12, max_iterations=20_000
    )
    np.testing.assert_allclose(found, best, atol=1e-4)


def test_without_games_the_strengths_are_the_prior():
    prior = np.array([1.0, -2.0, 0.5])
    np.testing.assert_array_equal(fit_strengths(_pairs([], []), prior, prior_games=3.0), prior)


def test_strengths_stay_finite_where_an_item_never_lost_or_priors_are_far_apart():
    found = fit_strengths(_pairs([0] * 50, [1] * 50), np.zeros(3), prior_games=1.0)
    assert np.isfinite(found).all()
    assert found[0] > found[2] > found[1]
    prior = np.array([-5000.0, 0.0, 5000.0])
    assert np.isfinite(fit_strengths(_pairs([0], [1]), prior, prior_games=1.0)).all()


def test_scores_are_the_probability_to_beat_another_item_at_a_temperature():
    s = np.array([0.0, 1.0, 3.0])
    first = (expit(-1 / 0.7) + expit(-3 / 0.7)) / 2
    assert expected_wins(s, 0.7)[0] == pytest.approx(first)
    assert expected_wins(s, 0.7).mean() == pytest.approx(0.5)
    s = np.array([-1.0, 0.0, 1.0])
    np.testing.assert_allclose(expected_wins(s, 1e-3), [0.0, 0.5, 1.0], atol=1e-9)
    np.testing.assert_allclose(expected_wins(s, 1e6), [0.5, 0.5, 0.5], atol=1e-5)


@given(st.lists(st.floats(-50, 50), max_size=30), st.floats(0.01, 10.0))
def test_scores_stay_in_range_and_in_order(strengths, temperature):
    s = np.array(strengths, dtype=np.float64)
    scores = expected_wins(s, temperature)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (np.diff(scores[np.argsort(s)]) >= -1e-12).all()
