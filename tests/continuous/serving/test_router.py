"""Trials: places of users are fixed and uniform, and a growing share moves users one way only."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.router import Trial, place

NEW = Deployment(number=3, phase="trial", strategy="ab_test", source="somewhere")


def _trial(**settings):
    return Trial(NEW, AbTestConfig(**settings))


def test_places_are_spread_evenly_and_independently_in_two_trials():
    places = [place(f"agent-{index}", "deploy-1") for index in range(4000)]
    counts, _ = np.histogram(places, bins=10, range=(0, 1))
    assert counts.min() > 300
    assert counts.max() < 500
    others = [place(f"agent-{index}", "deploy-2") for index in range(4000)]
    assert abs(np.corrcoef(places, others)[0, 1]) < 0.07  # over four standard deviations


@given(user=st.text(min_size=1))
def test_a_user_changes_to_the_new_version_once_and_never_back(user):
    trial = _trial(shares=[0.2, 0.5, 0.9], step_outcomes=10)
    arms = []
    for _ in range(40):
        arms.append(trial.arm(user))
        trial.add("new", 0.0)
    assert arms == sorted(arms)  # "current" comes before "new"
    expected = ["new" if place(user, NEW.uid) < share else "current" for share in (0.2, 0.5, 0.9)]
    assert [arms[0], arms[10], arms[20]] == expected


@pytest.mark.parametrize("arm", ["current", "new"])
def test_the_share_grows_with_outcomes_of_either_version(arm):
    trial = _trial(shares=[0.1, 0.5], step_outcomes=5)
    for _ in range(4):
        trial.add(arm, 0.0)
    assert trial.share == 0.1
    trial.add(arm, 0.0)
    assert trial.share == 0.5


def test_a_trial_goes_on_where_no_agent_is_among_the_first_share():
    """Of the 16 agents of a default run, deploy-2 gets none at first."""
    trial = Trial(dataclasses.replace(NEW, number=2), AbTestConfig())
    agents = [f"agent-{number}" for number in range(1, 17)]
    assert {trial.arm(agent) for agent in agents} == {"current"}
    draw = np.random.default_rng(0)
    for episode in range(100):
        for agent in agents * 24:
            if trial.ending is not None:
                break
            arm = trial.arm(agent)
            reward = draw.normal(0.2 * (arm == "new"), 0.35)
            trial.add(arm, reward, cluster=f"{agent}/{episode}", stage=str(episode))
    assert trial.ending == "promote"
    assert trial.test.outcomes < 10_000


@given(number=st.integers(0, 10**6), agents=st.integers(1, 40))
def test_every_trial_ends_whatever_the_places_of_its_agents(number, agents):
    config = AbTestConfig(step_outcomes=20, max_outcomes=100)
    trial, shares = Trial(dataclasses.replace(NEW, number=number), config), set()
    outcomes = 0
    while trial.ending is None:
        agent = f"agent-{outcomes % agents + 1}"
        shares.add(trial.share)
        trial.add(trial.arm(agent), outcomes % 2, cluster=agent, stage=str(outcomes // 40))
        outcomes += 1
    assert outcomes <= 100
    assert outcomes < 100 or shares == {0.1, 0.25, 0.5}


def test_requests_without_a_user_are_divided_by_the_share():
    trial = _trial(shares=[0.5])
    arms = [trial.arm(None) for _ in range(400)]
    assert 120 < arms.count("new") < 280


def test_an_undecided_trial_ends_as_configured():
    for undecided, ending in (("keep", "roll_back"), ("promote", "promote")):
        trial = _trial(max_outcomes=4, undecided=undecided)
        for index in range(4):
            assert trial.ending is None
            trial.add("new", index % 2)
        assert trial.ending == ending
