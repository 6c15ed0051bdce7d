"""Sampling transforms on a drawn batch."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import factories

from rlforge.rewards.sampling import Clamp, Normalize, NormalizeByEnv, Scale
from rlforge.samples import Sample


def sample(reward: float, env_id: str = "a", outcome: float | None = None) -> Sample:
    outcome = reward if outcome is None else outcome
    return factories.sample(env_id=env_id, raw_reward=7.0, reward=reward, outcome_reward=outcome)


def rewards(samples: list[Sample]) -> list[float]:
    return [each.reward for each in samples]


def test_normalize_by_hand():
    batch = [sample(1), sample(2), sample(6)]
    assert rewards(Normalize()(batch)) == [-2, -1, 3]
    std = (14 / 3) ** 0.5
    assert rewards(Normalize(z_score=True)(batch)) == pytest.approx([-2 / std, -1 / std, 3 / std])
    assert rewards(batch) == [1, 2, 6]


def test_normalize_by_env_keeps_envs_apart_and_order():
    batch = [sample(1, "a"), sample(10, "b"), sample(3, "a"), sample(30, "b")]
    assert rewards(NormalizeByEnv()(batch)) == [-1, -1, 1, 1]
    assert rewards(NormalizeByEnv(z_score=False)(batch)) == [-1, -10, 1, 10]


@pytest.mark.parametrize("transform", [Normalize(), Normalize(True), NormalizeByEnv()])
def test_equal_rewards_become_exactly_zero(transform):
    assert rewards(transform([sample(0.1 + 0.2), sample(0.3), sample(0.3)])) == [0, 0, 0]
    assert rewards(transform([sample(5.0)])) == [0]
    assert transform([]) == []


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30))
def test_z_scores_have_mean_zero_and_deviation_one_or_vanish(values):
    shaped = rewards(Normalize(z_score=True)([sample(value) for value in values]))
    assert statistics.fmean(shaped) == pytest.approx(0, abs=1e-5)
    if any(shaped):
        assert statistics.pstdev(shaped) == pytest.approx(1, abs=1e-5)


def test_feedback_is_scaled_but_not_shifted():
    batch = [sample(3.0, outcome=1.0), sample(-1.0, outcome=-1.0), sample(1.0), sample(5.0)]
    std = statistics.pstdev(rewards(batch))
    shaped = Normalize(z_score=True)(batch)[0]
    assert shaped.reward - shaped.outcome_reward == pytest.approx(2.0 / std)


def test_scale_and_clamp_keep_the_raw_reward():
    scaled = Scale(0.5)([sample(4.0, outcome=2.0)])[0]
    assert (scaled.reward, scaled.outcome_reward, scaled.raw_reward) == (2.0, 1.0, 7.0)
    clamped = Clamp(-1, 1)([sample(4.0, outcome=-3.0)])[0]
    assert (clamped.reward, clamped.outcome_reward, clamped.raw_reward) == (1, -1, 7.0)
