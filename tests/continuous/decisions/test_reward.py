"""The documented reward, term by term, against a plain function."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlforge.continuous.config.continuous import DecisionRewardConfig
from rlforge.continuous.decisions.records import Result
from rlforge.continuous.decisions.reward import DecisionReward, mean_parts, returns_to_go
from rlforge.errors import RlforgeError

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=30)


def result(pnl=2.0, investment=10.0, hold=5.0, win=0.6):
    return Result(pnl=pnl, investment=investment, hold_time_minutes=hold, win_rate=win)


def documented(outcome):
    """The formula of docs/trajectories.md."""
    speed = 1.0 if outcome.hold_time_minutes < 60 else 0.5
    return 0.5 * outcome.pnl / outcome.investment + 0.2 * speed + 0.3 * outcome.win_rate


@given(
    st.builds(
        result,
        pnl=st.floats(-20, 20),
        investment=st.floats(0.01, 1000),
        hold=st.floats(0, 200),
        win=st.floats(0, 1),
    )
)
def test_default_rewards_follow_the_documented_formula(outcome):
    parts = DecisionReward(DecisionRewardConfig())(outcome)
    assert parts.total == pytest.approx(documented(outcome))
    assert parts.reward == min(max(parts.total, -1.0), 1.0)
    assert parts.pnl == outcome.pnl / outcome.investment


def test_uninvested_reward_replaces_the_return_on_nothing():
    parts = DecisionReward(DecisionRewardConfig())(result(pnl=0, investment=0))
    assert (parts.pnl, parts.reward) == (0.0, pytest.approx(0.2 + 0.3 * 0.6))
    strict = DecisionRewardConfig(uninvested_reward=-1.0)
    assert DecisionReward(strict)(result(investment=0)).pnl == -1.0


def test_every_term_is_configurable_and_by_default_an_hour_is_not_fast():
    config = DecisionRewardConfig(
        pnl_weight=2, speed_weight=3, consistency_weight=5, slow_reward=11
    )
    reward, default = DecisionReward(config), DecisionReward(DecisionRewardConfig())
    assert (default(result(hold=59.999)).speed, default(result(hold=60)).speed) == (1.0, 0.5)
    assert reward(result(hold=9)).total == pytest.approx(2 * 0.2 + 3 * 1 + 5 * 0.6)
    slow = reward(result(pnl=1000, hold=60))
    assert slow.total == pytest.approx(2 * 100 + 3 * 11 + 5 * 0.6)
    assert slow.reward == 1
    assert reward(result(pnl=-10000)).reward == -1


@pytest.mark.parametrize(
    "numbers",
    [{"pnl": math.nan}, {"investment": math.inf}, {"investment": -1}, {"hold": -1}, {"win": 1.5}],
)
def test_invalid_results_are_refused(numbers):
    with pytest.raises(RlforgeError, match="is no result"):
        result(**numbers)


@given(rewards)
@example([1.0, 2.007410808681282e-227, -1.0])
def test_normalizations_against_numpy(given_rewards):
    array = np.array(given_rewards)
    spread = np.ptp(array) > 1e-6

    def normalized(how):
        return DecisionReward(DecisionRewardConfig(normalize=how)).normalize(given_rewards)

    assert normalized("none") == given_rewards
    if spread:
        np.testing.assert_allclose(normalized("center"), array - array.mean(), atol=1e-9)
        # Exact sums: the rounding error of numpy's mean is as large as a small difference to it.
        scores = (array - statistics.fmean(given_rewards)) / statistics.pstdev(given_rewards)
        np.testing.assert_allclose(normalized("zscore"), scores)
        scaled = np.interp(array, (array.min(), array.max()), (-1, 1))
        np.testing.assert_allclose(normalized("minmax"), scaled, atol=1e-9)


@pytest.mark.parametrize("how", ["center", "zscore", "minmax"])
def test_equal_rewards_are_normalized_to_one_value(how):
    reward = DecisionReward(DecisionRewardConfig(normalize=how))
    assert reward.normalize([0.1 + 0.2, 0.3, 0.3]) == [0.0, 0.0, 0.0]
    assert reward.normalize([]) == []


@given(rewards, st.floats(0, 1))
def test_the_return_is_the_discounted_sum(given_rewards, gamma):
    expected = sum(gamma**i * reward for i, reward in enumerate(given_rewards))
    found = returns_to_go(["ann"] * len(given_rewards), given_rewards, gamma)
    assert found[:1] == pytest.approx([expected][: len(given_rewards)], abs=1e-9)


def test_returns_are_by_agent_and_in_order_of_time(make):
    decisions = [
        make.whole(2, "b", reward=1.0),
        make.whole(1, "a", reward=2.0),
        make.whole(1, "b", reward=4.0),
        make(3, "b"),
        make(1, "c"),
    ]
    returns = DecisionReward(DecisionRewardConfig(gamma=0.5)).returns(decisions)
    assert returns == {"a": 2.0, "b": 4.0 + 0.5 * 1.0}


def test_parts_are_averaged_for_the_log():
    reward = DecisionReward(DecisionRewardConfig())
    means = mean_parts([reward(result()), reward(result(pnl=100))])
    assert means["pnl"] == pytest.approx((0.2 + 10) / 2)
    assert means["clipped"] == 0.5
    assert means["reward"] == pytest.approx((documented(result()) + 1) / 2)
    assert {"speed", "consistency", "total"} <= means.keys()
    assert mean_parts([]) == {}
