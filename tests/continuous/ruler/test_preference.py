from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from rlforge.continuous.config.ruler import PreferenceConfig, RulerConfig
from rlforge.continuous.ruler.agreement import Pairs, agreement, generate_pairs
from rlforge.continuous.ruler.learned import LearnedWindow
from rlforge.continuous.ruler.preference import PreferenceScorer, expected_wins, fit_strengths


def _scorer(**preference):
    return PreferenceScorer(RulerConfig(preference=PreferenceConfig(**preference)))


def test_the_learned_weights_maximise_the_penalised_likelihood():
    """Against a general optimiser, on standardised features of the pairs that the scorer uses."""
    scorer, draw = _scorer(margin=0.0), np.random.default_rng(0)
    features = draw.normal(size=(40, len(scorer.memory.names)))
    features[:, 5:] = 0.0
    rewards = features[:, :5] @ np.array([1.0, -0.5, 0.0, 0.2, 0.0]) + draw.normal(size=40)
    scorer.memory.add(LearnedWindow(id="w", features=features, rewards=rewards))
    weights = scorer.weights
    rows = (features[:, :5] - features[:, :5].mean(0)) / features[:, :5].std(0)
    better, worse = np.nonzero(rewards[:, None] > rewards[None, :])
    gaps = rows[better] - rows[worse]
    best = minimize(lambda w: -log_expit(gaps @ w).sum() + w @ w / 2, np.zeros(5), tol=1e-10).x
    np.testing.assert_allclose(weights[:5], best, atol=2e-3)
    np.testing.assert_array_equal(weights[5:], 0.0)


def test_pairs_never_cross_windows():
    """Decisions of a window with higher rewards for all must not look better for that."""
    scorer = _scorer(margin=0.0)
    names = len(scorer.memory.names)
    for number in range(4):
        rows = np.zeros((2, names))
        rows[:, 0] = number  # tells windows apart, and nothing else
        rows[:, 1] = (0.0, 1.0)
        scorer.memory.add(
            LearnedWindow(id=f"w{number}", features=rows, rewards=np.array([number, number + 0.5]))
        )
    weights = scorer.weights
    assert abs(weights[0]) < 1e-6 < weights[1]


async def test_the_model_is_weighed_against_the_window(make_window, monkeypatch):
    window = make_window(9)
    rewards = [decision.reward for decision in window.decisions]
    found = {}
    for weight in (0.01, 2.0, 1e8):
        monkeypatch.setattr("rlforge.continuous.ruler.preference.MODEL_WEIGHT", weight)
        scorer = _scorer()
        scorer.learn([make_window(n) for n in range(4)])
        values = (await scorer.score(window.decisions)).values
        found[weight] = agreement(values, rewards).kendall_tau or 0.0
    assert found[0.01] > found[2.0] > found[1e8]
    assert found[0.01] > 0.8  # nearly the order of the window's own rewards
    scorer = _scorer(window_pairs=False)
    scorer.learn([make_window(n) for n in range(4)])
    alone = await scorer.score(window.decisions)
    assert alone.metrics["pairs"] == 0
    assert agreement(alone.values, rewards).kendall_tau == found[1e8]


async def test_the_first_window_is_ordered_by_its_own_pairs(make_window):
    window = make_window(0)
    scores = await _scorer().score(window.decisions)
    rewards = [decision.reward for decision in window.decisions]
    assert (agreement(scores.values, rewards).pairwise_accuracy or 0) > 0.95
    assert scores.metrics["pairs"] > 0 == scores.metrics["learned_pairs"]
    assert "won" in scores.explanations[0]


async def test_pairs_are_bounded_and_follow_the_seed(make_window, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.ruler.preference.MAX_PAIRS", 50)
    runs = []
    for seed in (1, 1, 2):
        scorer = PreferenceScorer(RulerConfig(), seed=seed)
        scorer.learn([make_window(0), make_window(1)])
        runs.append(await scorer.score(make_window(2).decisions))
    assert runs[0].metrics["pairs"] == 50
    assert runs[0].metrics["learned_pairs"] == 100
    assert runs[0].values == runs[1].values != runs[2].values


async def test_an_explanation_names_the_features_with_most_influence(make_window):
    scorer = _scorer(window_pairs=False)
    scorer.learn([make_window(n) for n in range(6)])
    decisions = make_window(7).decisions
    scores = await scorer.score(decisions)
    best = int(np.argmax([score or 0.0 for score in scores.values]))
    assert "strength +" in scores.explanations[best]
    assert "favour" in scores.explanations[best] or "advice" in scores.explanations[best]


async def test_a_margin_that_nothing_exceeds_leaves_no_model(make_window):
    scorer = _scorer(margin=5.0)
    scorer.learn([make_window(0)])
    assert scorer.weights is None
    assert (await scorer.score(make_window(1).decisions)).metrics["unscored"] == 80


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
