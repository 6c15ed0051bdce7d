import numpy as np
from scipy.optimize import minimize
from scipy.special import log_expit

from rlforge.continuous.config.ruler import PreferenceConfig, RulerConfig
from rlforge.continuous.ruler.agreement import agreement
from rlforge.continuous.ruler.preference import PreferenceScorer


def _scorer(**preference):
    return PreferenceScorer(RulerConfig(preference=PreferenceConfig(**preference)))


def test_the_learned_weights_maximise_the_penalised_likelihood():
    """Against a general optimiser, on standardised features of the pairs that the scorer uses."""
    scorer, draw = _scorer(margin=0.0), np.random.default_rng(0)
    features = draw.normal(size=(40, len(scorer.memory.names)))
    features[:, 5:] = 0.0
    rewards = features[:, :5] @ np.array([1.0, -0.5, 0.0, 0.2, 0.0]) + draw.normal(size=40)
    scorer.memory.add("w", features, rewards)
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
        scorer.memory.add(f"w{number}", rows, np.array([number, number + 0.5]))
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
    assert (agreement(scores.values, rewards, margin=0.05).pairwise_accuracy or 0) > 0.95
    assert scores.metrics["pairs"] > 0 == scores.metrics["learned_pairs"]
    assert "won" in scores.explanations[0]


async def test_pairs_are_bounded(make_window, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.ruler.preference.MAX_PAIRS", 50)
    scorer = _scorer()
    scorer.learn([make_window(0), make_window(1)])
    scores = await scorer.score(make_window(2).decisions)
    assert scores.metrics["pairs"] == 50
    assert scores.metrics["learned_pairs"] == 100


async def test_an_explanation_names_the_features_with_most_influence(make_window):
    scorer = _scorer(window_pairs=False)
    scorer.learn([make_window(n) for n in range(6)])
    decisions = make_window(7).decisions
    scores = await scorer.score(decisions)
    best = int(np.argmax([score or 0.0 for score in scores.values]))
    assert "strength +" in scores.explanations[best]
    assert "favour" in scores.explanations[best] or "advice" in scores.explanations[best]


async def test_scores_follow_the_seed(make_window, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.ruler.preference.MAX_PAIRS", 40)
    runs = []
    for seed in (1, 1, 2):
        scorer = PreferenceScorer(RulerConfig(), seed=seed)
        runs.append((await scorer.score(make_window(0).decisions)).values)
    assert runs[0] == runs[1] != runs[2]


async def test_a_margin_that_nothing_exceeds_leaves_no_model(make_window):
    scorer = _scorer(margin=5.0)
    scorer.learn([make_window(0)])
    assert scorer.weights is None
    assert (await scorer.score(make_window(1).decisions)).metrics["unscored"] == 80
