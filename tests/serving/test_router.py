"""Trials: places of users are fixed and uniform, and a growing share moves users one way only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.serving import AbTestConfig
from rlforge.serving.records import Deployment
from rlforge.serving.router import Trial, place

NEW = Deployment(number=3, phase="trial", strategy="ab_test", source="somewhere")


def _trial(**settings: object) -> Trial:
    return Trial(NEW, AbTestConfig(**settings))  # type: ignore[arg-type]


def test_places_are_spread_evenly() -> None:
    places = [place(f"agent-{index}", "deploy-1") for index in range(4000)]
    counts, _ = np.histogram(places, bins=10, range=(0, 1))
    assert counts.min() > 300
    assert counts.max() < 500


def test_places_in_two_trials_are_independent() -> None:
    first, second = (
        np.array([place(f"agent-{index}", salt) for index in range(2000)]) for salt in ("a", "b")
    )
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


@given(user=st.text(min_size=1))
def test_a_user_changes_to_the_new_version_once_and_never_back(user: str) -> None:
    trial = _trial(shares=[0.2, 0.5, 0.9], step_outcomes=10, min_outcomes=1000)
    arms = []
    for _ in range(40):
        arms.append(trial.arm(user))
        trial.add("new", 0.0)
    assert arms == sorted(arms)  # "current" comes before "new"
    expected = ["new" if place(user, NEW.uid) < share else "current" for share in (0.2, 0.5, 0.9)]
    assert [arms[0], arms[10], arms[20]] == expected


def test_the_share_grows_with_outcomes_of_the_new_version_only() -> None:
    trial = _trial(shares=[0.1, 0.5], step_outcomes=5, min_outcomes=1000)
    for _ in range(100):
        trial.add("current", 0.0)
    assert trial.share == 0.1
    for _ in range(5):
        trial.add("new", 0.0)
    assert trial.share == 0.5


def test_requests_without_a_user_are_divided_by_the_share() -> None:
    trial = _trial(shares=[0.5])
    arms = [trial.arm(None) for _ in range(400)]
    assert 120 < arms.count("new") < 280


def test_an_undecided_trial_ends_as_configured() -> None:
    for undecided, ending in (("keep", "roll_back"), ("promote", "promote")):
        trial = _trial(max_outcomes=4, min_outcomes=1000, undecided=undecided)
        for index in range(4):
            assert trial.ending is None
            trial.add("new", index % 2)
        assert trial.ending == ending
