"""The documented example, and the class in threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rlforge.continuous.config.ruler import PreferenceConfig, RulerConfig
from rlforge.continuous.ruler.scorer import RULERScorer
from rlforge.errors import ConfigError


@pytest.mark.parametrize("method", ["preference", "regression"])
def test_the_documented_constructor_and_call(method, make_window, tmp_path):
    scorer = RULERScorer(
        model_path=tmp_path / "checkpoints" / "latest", scoring_method=method, temperature=0.7
    )
    scorer.learn([make_window(0), make_window(1)])
    trajectories = make_window(2).decisions
    scores = scorer.score_trajectories(trajectories)
    assert len(scores) == len(trajectories)
    assert all(score is not None and 0 <= score <= 1 for score in scores)
    again = RULERScorer(model_path=tmp_path / "checkpoints" / "latest", scoring_method=method)
    assert again.score_trajectories(trajectories) == scores
    assert list(again.score(trajectories).values) == scores
    config = RULERScorer().config
    assert (config.scoring_method, config.temperature) == ("preference", 0.7)
    assert config.model_path is None
    with pytest.raises(ConfigError, match=r"scorer 'guess': no such choice"):
        RULERScorer(scoring_method="guess")


def test_pairs_name_the_better_decision_first(make_window, monkeypatch):
    monkeypatch.setattr("rlforge.continuous.ruler.scorer.MAX_PAIRS", 100)
    config = RulerConfig(preference=PreferenceConfig(margin=0.2))
    pairs = RULERScorer(config=config).generate_pairs(make_window(0).decisions)
    assert len(pairs) == 100
    assert all((better.reward or 0) - (worse.reward or 0) > 0.2 for better, worse in pairs)


def test_it_works_in_any_thread(make_window):
    scorer, decisions = RULERScorer(), make_window(0).decisions
    one, other = (
        ThreadPoolExecutor(1).submit(scorer.score_trajectories, decisions).result()
        for _ in range(2)
    )
    assert one == other
