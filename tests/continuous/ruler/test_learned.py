"""Tests of both scorers that learn."""

import dataclasses
import math
import re

import numpy as np
import pytest
from tests.factories import without_outcome

from rlforge.continuous.config.ruler import PreferenceConfig, RulerConfig
from rlforge.continuous.ruler.agreement import agreement
from rlforge.continuous.ruler.learned import LearnedWindow, WindowMemory
from rlforge.continuous.ruler.scorer import make_scorer
from rlforge.errors import CheckpointError

LEARNED = {"learned_windows": 2, "state_saved": 1}


def _scorer(method, **changes):
    return make_scorer(RulerConfig(scoring_method=method, **changes))


@pytest.fixture(params=["preference", "regression"])
def method(request):
    return str(request.param)


async def test_a_learned_scorer_tells_skilled_agents_in_unseen_windows(method, make_window, skill):
    scorer, means = _scorer(method), dict.fromkeys(skill, 0.0)
    scorer.learn([make_window(n) for n in range(8)])
    for number in range(8, 20):
        shown = [without_outcome(decision) for decision in make_window(number).decisions]
        for decision, score in zip(shown, (await scorer.score(shown)).values, strict=True):
            means[decision.agent_id] += score
    assert sorted(means, key=means.get) == sorted(skill, key=skill.get)


async def test_scores_are_in_range_with_a_reason_for_each(method, make_window):
    scorer, window = _scorer(method), make_window(0)
    scorer.learn([make_window(1)])
    scores = await scorer.score(window.decisions)
    assert len(scores.values) == len(scores.explanations) == len(window.decisions)
    assert all(0 <= score <= 1 for score in scores.values)
    assert len(set(scores.values)) > 10
    assert all(scores.explanations)
    assert scores.metrics["scored"] == len(window.decisions)
    assert scores.metrics["unscored"] == scores.metrics["nothing_to_compare"] == 0
    assert scores.metrics["learned_windows"] == 1


async def test_the_next_process_has_the_memory(method, make_window, tmp_path):
    first = _scorer(method, model_path=str(tmp_path / "ruler"))
    metrics = first.learn([make_window(0), make_window(1)])
    assert metrics == {**LEARNED, "learned_decisions": 160, "newly_learned": 2}
    decisions = make_window(2).decisions
    second = _scorer(method, model_path=str(tmp_path / "ruler"))
    assert (await second.score(decisions)) == (await first.score(decisions))
    [stored] = (tmp_path / "ruler").iterdir()
    assert stored.name == f"{method}.npz"
    before, written = await second.score(decisions), stored.read_bytes()
    assert second.learn([make_window(0)])["newly_learned"] == 0  # again changes nothing
    assert await second.score(decisions) == before
    assert stored.read_bytes() == written


async def test_learn_reports_how_well_the_window_was_forecast(method, make_window):
    scorer, other, window = _scorer(method), _scorer(method), make_window(1)
    for each in (scorer, other):
        assert "forecast_kendall_tau" not in each.learn([make_window(0)])
    scores = await other.score([without_outcome(decision) for decision in window.decisions])
    found = agreement(scores.values, [decision.reward for decision in window.decisions])
    assert other.learn([window])["forecast_kendall_tau"] == pytest.approx(found.kendall_tau)
    metrics = scorer.learn([make_window(n) for n in range(1, 6)])
    assert metrics["forecast_pairwise_accuracy"] > 0.6
    assert metrics["forecast_kendall_tau"] > 0.15
    assert "forecast_kendall_tau" not in scorer.learn([make_window(1)])  # nothing new
    seeing = _scorer(method, features="with_outcome")
    seeing.learn([make_window(0)])
    assert "forecast_kendall_tau" not in seeing.learn([make_window(1)])


def test_a_full_disk_is_logged_and_tried_again(method, make_window, tmp_path, caplog):
    blocked = tmp_path / f"{method}.npz"
    scorer = _scorer(method, model_path=str(tmp_path))
    blocked.mkdir()  # nothing can be renamed onto a directory
    metrics = scorer.learn([make_window(0)])
    assert (metrics["learned_windows"], metrics["state_saved"]) == (1, 0)
    assert re.search(rf"cannot be written to .*{method}\.npz.*make room", caplog.text)
    assert [*tmp_path.iterdir()] == [blocked]
    blocked.rmdir()
    assert scorer.learn([])["state_saved"] == 1
    assert _scorer(method, model_path=str(tmp_path)).learn([])["learned_windows"] == 1


def test_a_state_of_other_features_is_refused(method, make_window, tmp_path):
    _scorer(method, model_path=str(tmp_path)).learn([make_window(0)])
    with pytest.raises(CheckpointError, match=r"other features.*ruler\.features"):
        _scorer(method, model_path=str(tmp_path), features="with_outcome")


async def test_the_outcome_alone_does_not_change_the_score_of_a_decision(method, make_window):
    """Features of ``state_action`` know nothing of it; pairs of the window are left out here."""
    preference = PreferenceConfig(window_pairs=False)
    config = RulerConfig(scoring_method=method, preference=preference)
    scorer = make_scorer(config)
    scorer.learn([make_window(1)])
    decisions = make_window(0).decisions
    hidden = [without_outcome(decision) for decision in decisions]
    assert (await scorer.score(decisions)).values == (await scorer.score(hidden)).values


async def test_one_agent_is_nothing_to_compare_unless_with_itself(method, make_window, caplog):
    scorer, window = _scorer(method), make_window(0, agents=("expert",))
    scorer.learn([make_window(1)])
    scores = await scorer.score(window.decisions)
    assert set(scores.values) == {0.5}
    assert scores.metrics["nothing_to_compare"] == 1
    assert "1 agent of at least 2" in scores.explanations[0]
    assert f"window {window.id}: nothing to compare: 1 agent" in caplog.text
    scores = await _scorer(method, min_agents=1).score(window.decisions)
    assert scores.metrics["nothing_to_compare"] == 0
    assert len(set(scores.values)) > 1


async def test_equal_rewards_or_decisions_are_nothing_to_compare(method, make_window):
    decisions = make_window(0).decisions
    alike = [dataclasses.replace(decision, reward=0.0) for decision in decisions]
    one = without_outcome(decisions[0])
    twins = [dataclasses.replace(one, agent_id=name) for name in ("a", "b", "c")]
    scorer = _scorer(method)
    scorer.learn([make_window(1)])
    for given, why in ((alike, "all rewards are 0"), (twins, "all scores are equal")):
        scores = await scorer.score(given)
        assert set(scores.values) == {0.5}
        assert scores.metrics["nothing_to_compare"] == 1
        assert why in scores.explanations[0]


async def test_without_model_and_outcomes_decisions_stay_unscored(method, make_window, caplog):
    shown = [without_outcome(decision) for decision in make_window(0).decisions]
    assert (await _scorer(method).score([])).values == ()
    scores = await _scorer(method).score(shown)
    assert set(scores.values) == {None}
    assert scores.metrics["unscored"] == len(shown)
    assert "no window was learned so far" in caplog.text


async def test_scores_stay_in_range_after_a_window_of_equal_rewards(method, make_window):
    window = make_window(1)
    alike = [dataclasses.replace(decision, reward=0.4) for decision in window.decisions]
    scorer = _scorer(method)
    scorer.learn([dataclasses.replace(window, decisions=tuple(alike))])
    scores = await scorer.score(make_window(0).decisions)
    assert all(score is None or 0 <= score <= 1 for score in scores.values)


async def test_rewards_that_are_not_finite_are_left_out(method, make_window):
    def spoiled(number):
        window = make_window(number)
        rewards = (math.nan, math.inf, None)
        decisions = [
            dataclasses.replace(decision, reward=rewards[place]) if place < 3 else decision
            for place, decision in enumerate(window.decisions)
        ]
        return dataclasses.replace(window, decisions=tuple(decisions))

    scorer = _scorer(method)
    for number in (0, 1):
        scores = await scorer.score(spoiled(number).decisions)
        assert all(0 <= score <= 1 for score in scores.values)
        assert scorer.learn([spoiled(number)])["learned_decisions"] == 77 * (number + 1)


# ---------------------------------------------------------------- the memory


def _memory(windows=3, rows=100):
    return WindowMemory(("a", "b"), windows=windows, rows=rows, seed=0)


def _window(name, n, offset=0.0):
    rewards = np.arange(n, dtype=np.float64) + offset
    features = np.stack([rewards * 10, -rewards], axis=1)
    return LearnedWindow(id=name, features=features, rewards=rewards)


def test_a_window_is_remembered_once_and_the_oldest_is_forgotten():
    memory = _memory()
    assert memory.add(_window("w", 2))
    assert not memory.add(_window("w", 5))
    assert not memory.add(_window("empty", 0))
    assert len(memory.windows) == 1
    memory = _memory(windows=2)
    for name in ("w2", "w1", "w3"):
        memory.add(_window(name, 2))
    assert [window.id for window in memory.windows] == ["w2", "w3"]


def test_a_seeded_sample_of_a_large_window_is_kept(make_window, monkeypatch):
    draws = []
    for _ in range(2):
        memory = _memory(rows=10)
        memory.add(_window("w", 1000))
        (window,) = memory.windows
        assert len(set(window.rewards)) == 10
        np.testing.assert_array_equal(window.features[:, 0], window.rewards * 10)
        draws.append(window.rewards)
    np.testing.assert_array_equal(*draws)
    monkeypatch.setattr("rlforge.continuous.ruler.learned.MEMORY_ROWS", 10)
    metrics = _scorer("preference", memory_windows=2).learn([make_window(n) for n in range(3)])
    assert metrics == {**LEARNED, "learned_decisions": 20, "newly_learned": 3}


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "state.npz"
    _memory().save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    with pytest.raises(CheckpointError, match=r"state\.npz is not a readable state.*remove it"):
        _memory().load(path)
