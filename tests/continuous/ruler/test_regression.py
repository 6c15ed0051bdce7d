import numpy as np
import pytest
from scipy.special import expit

from rlforge.continuous.config.ruler import RegressionConfig, RulerConfig
from rlforge.continuous.ruler.agreement import agreement
from rlforge.continuous.ruler.learned import LearnedWindow
from rlforge.continuous.ruler.regression import RegressionScorer


def _scorer(temperature=0.7, **regression):
    return RegressionScorer(
        RulerConfig(temperature=temperature, regression=RegressionConfig(**regression))
    )


@pytest.mark.parametrize("temperature", [0.3, 0.7, 2.0])
def test_scores_are_ridge_predictions_on_the_scale_of_past_rewards(temperature):
    scorer, draw = _scorer(temperature), np.random.default_rng(0)
    d = len(scorer.memory.names)
    features = draw.normal(size=(200, d))
    rewards = features[:, 0] - 0.5 * features[:, 1] + draw.normal(size=200)
    scorer.memory.add(LearnedWindow(id="w", features=features, rewards=rewards))
    judged = scorer.judge(features[:10], [None] * 10)
    # The closed form of ridge regression on standardised features.
    z = (features - features.mean(0)) / features.std(0)
    weights = np.linalg.solve(z.T @ z + np.eye(d), z.T @ (rewards - rewards.mean()))
    predicted = z[:10] @ weights + rewards.mean()
    expected = expit((predicted - rewards.mean()) / (rewards.std() * temperature))
    np.testing.assert_allclose(judged.values, expected, atol=1e-9)
    assert judged.explanations[0] == f"predicted reward {predicted[0]:+.3f}"


async def test_the_first_window_is_predicted_from_its_other_decisions(make_window):
    found = set()
    for model in ("ridge", "gradient_boosting"):
        scores = await _scorer(model=model).score(make_window(0).decisions)
        assert scores.metrics["cold_start"] == 1
        assert len(set(scores.values)) > 10
        found.add(scores.values)
    assert len(found) == 2


def test_a_decision_is_not_predicted_from_its_own_reward(monkeypatch):
    """Rewards are noise: only a model that saw them could agree with them."""
    monkeypatch.setattr("rlforge.continuous.ruler.regression.TREES", 10)
    scorer, draw = _scorer(model="gradient_boosting"), np.random.default_rng(3)
    features = draw.normal(size=(300, len(scorer.memory.names)))
    rewards = draw.normal(size=300).tolist()
    judged = scorer.judge(features, rewards)
    assert abs(agreement(judged.values, rewards).kendall_tau or 0.0) < 0.12
