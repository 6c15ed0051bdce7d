"""Win rate, reward and profit, of the policy and of scripted traders."""

import math
import random
import statistics

from scipy import stats
from tests import factories

from rlforge.continuous.decisions.records import Result
from rlforge.continuous.loop.performance import (
    by_player,
    difference_to_control,
    gains,
    measured,
    performance,
)


def result(pnl, investment=10.0):
    return Result(pnl=pnl, investment=investment, hold_time_minutes=5.0, win_rate=0.5)


def test_figures_by_hand():
    decisions = [
        factories.decision(0, reward=0.6, result=result(4.0)),
        factories.decision(1, reward=-0.2, result=result(-1.0)),
        factories.decision(2, reward=0.2, result=result(0.0, investment=0.0)),
        factories.decision(3, reward=None),
    ]
    found = performance(decisions)
    assert (found.decisions, found.trades) == (3, 2)
    assert (found.win_rate, found.avg_pnl) == (0.5, 1.5)
    assert math.isclose(found.avg_reward, 0.2)
    none = performance(decisions[3:])
    assert math.isnan(none.win_rate)
    assert math.isnan(none.avg_reward)


def test_players_are_the_policy_first_and_scripted_kinds():
    decisions = [
        factories.decision(0, "value-1", tokens=None, provider="scripted:value"),
        factories.decision(1, "noise-1", tokens=None, provider="scripted:noise"),
        factories.decision(2, "noise-2", tokens=None, provider="scripted:noise"),
        factories.decision(3),
    ]
    found = by_player(decisions)
    assert list(found) == ["policy", "scripted:noise", "scripted:value"]
    assert found["scripted:noise"].decisions == 2


def test_the_difference_to_the_control_is_welchs_over_agents():
    rewards = {"agent-1": [0.2, 0.4], "agent-2": [0.6], "agent-3": [0.1, 0.3, 0.5]}
    control = {"control-1": [0.1, 0.1], "control-2": [0.3]}
    decisions = [
        factories.decision(n, agent, reward=reward, provider=provider)
        for group, provider in ((rewards, "tiny"), (control, "control"))
        for agent, own in group.items()
        for n, reward in enumerate(own)
    ]
    found = difference_to_control(decisions)
    ours, theirs = [0.3, 0.6, 0.3], [0.1, 0.3]
    spread_a, spread_b = (statistics.variance(one) / len(one) for one in (ours, theirs))
    freedom = (spread_a + spread_b) ** 2 / (spread_a**2 / 2 + spread_b**2 / 1)
    half = stats.t.ppf(0.975, freedom) * math.sqrt(spread_a + spread_b)
    assert math.isclose(found.mean, 0.2)
    assert math.isclose(found.high - found.mean, half)
    assert math.isclose(found.mean - found.low, half)
    assert difference_to_control([d for d in decisions if d.agent_id != "control-1"]) is None


def test_correlated_decisions_of_agents_do_not_narrow_the_interval():
    """Two equal versions: the interval holds 0 in 95 of 100 windows, whatever agents share."""
    rng, missed = random.Random(0), 0
    for _ in range(400):
        decisions = []
        for agents, provider in ((12, "tiny"), (4, "control")):
            for agent in range(agents):
                own = rng.gauss(0, 0.2)
                decisions += [
                    factories.decision(
                        n, f"{provider}-{agent}", reward=own + rng.gauss(0, 0.3), provider=provider
                    )
                    for n in range(8)
                ]
        found = difference_to_control(decisions)
        missed += not found.low <= 0 <= found.high
    assert missed <= 32  # 20 expected, standard deviation 4.4


def episodes(rewards):
    """What is measured where agents get these rewards, one number each, in each episode."""
    return measured(
        [[factories.decision(0, agent, reward) for agent, reward in own.items()] for own in rewards]
    )


def test_the_gain_is_students_over_the_episodes_mean_changes_of_agents():
    before = episodes([{"a": 0.1, "b": 0.3}, {"a": 0.0, "b": -0.5}, {"a": 0.2, "b": 0.2}])
    after = episodes([{"a": 0.4, "b": 0.4}, {"a": 0.2, "b": -0.1}, {"a": 0.2, "c": 0.9}])
    found = gains(before, after)["policy"]["avg_reward"]
    changes = [0.2, 0.3, 0.0]  # agents that played one time only are left out
    half = stats.t.ppf(0.975, 2) * statistics.stdev(changes) / math.sqrt(3)
    assert math.isclose(found.mean, statistics.mean(changes))
    assert math.isclose(found.high - found.mean, half)
    assert math.isclose(found.mean - found.low, half)


def test_figures_that_fewer_than_two_episodes_have_get_no_interval():
    before, after = episodes([{"a": 0.1}, {"a": 0.2}]), episodes([{"a": 0.4}, {"b": 0.2}])
    assert gains(before, after)["policy"] == dict.fromkeys(("win_rate", "avg_reward", "avg_pnl"))
    # A comparison that an earlier release began has no figures of agents.
    del before["agents"]
    assert gains(before, after)["policy"]["avg_reward"] is None


def test_what_agents_of_an_episode_share_does_not_narrow_the_gain():
    """Two equal versions: the interval holds 0 in 95 of 100 runs, whatever an episode shares."""
    rng, missed = random.Random(0), 0

    def played():
        shared = rng.gauss(0, 0.3)
        return {f"agent-{n}": shared + rng.gauss(0, 0.3) for n in range(6)}

    for _ in range(400):
        before, after = (episodes([played() for _ in range(4)]) for _ in range(2))
        found = gains(before, after)["policy"]["avg_reward"]
        missed += not found.low <= 0 <= found.high
    assert missed <= 32  # 20 expected, standard deviation 4.4
