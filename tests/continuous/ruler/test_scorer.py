"""The scorers of configurations, the documented example, and the class in threads."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import pytest
from omegaconf import OmegaConf

from rlforge.config.keys import conf_dir
from rlforge.config.rules import read
from rlforge.continuous.config.ruler import JudgeConfig, PreferenceConfig, RulerConfig
from rlforge.continuous.ruler.judge import JudgeScorer
from rlforge.continuous.ruler.preference import PreferenceScorer
from rlforge.continuous.ruler.regression import RegressionScorer
from rlforge.continuous.ruler.scorer import RULERScorer, check_judge, make_scorer
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
    assert RULERScorer().config == RulerConfig()
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


KINDS = {"preference": PreferenceScorer, "regression": RegressionScorer, "judge": JudgeScorer}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def _shipped(name):
    loaded = OmegaConf.load(conf_dir() / "ruler" / f"{name}.yaml")
    return read(RulerConfig, OmegaConf.to_container(loaded))


def test_every_shipped_option_makes_its_scorer(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    assert {path.stem for path in (conf_dir() / "ruler").iterdir()} == set(KINDS)
    for name, kind in KINDS.items():
        config = _shipped(name)
        assert config.scoring_method == name
        assert isinstance(make_scorer(config), kind)


def test_defaults_are_the_documented_ones():
    config = RulerConfig()
    assert (config.scoring_method, config.temperature) == ("preference", 0.7)
    assert dataclasses.asdict(_shipped("preference")) == dataclasses.asdict(config)


def _judge(**changes):
    return RulerConfig(scoring_method="judge", judge=JudgeConfig(**changes))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_judge(), r"ruler\.judge\.model=openai:.*OPENAI_API_KEY"),
        (_judge(model="openrouter:org/m"), r"ruler\.judge\.model=.*OPENROUTER_API_KEY"),
        (_judge(model="gpt"), r"ruler\.judge\.model=gpt.*write openai:MODEL"),
        (_judge(model="engine"), r"ruler\.judge\.model=engine: there is no engine here"),
    ],
)
def test_a_judge_without_model_or_key_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        make_scorer(config)


def test_only_a_configured_judge_of_another_machine_is_asked_for_its_key():
    check_judge(RulerConfig())
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        check_judge(_judge())
    make_scorer(_judge(base_url="http://127.0.0.1:8000/v1"))
