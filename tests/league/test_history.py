import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.config.pool import PoolConfig
from rlforge.league.history import RULES, History

UNRATED = {"mu": lambda uid: 25.0, "payoffs": lambda uids: np.zeros((len(uids), 0))}


def history_of(rule: str, size: int, keep_every: int = 1, **views) -> History:
    config = PoolConfig(history=rule, max_active_lora=size, keep_every=keep_every)
    return History(config, **{**UNRATED, **views})


def versions(history: History) -> list[int]:
    """Oldest first."""
    return [int(uid.removeprefix("step-")) for uid in reversed(history.uids)]


def play(history: History, *updates: int) -> list[str]:
    return [uid for version in updates for uid in history.add(f"step-{version}", version)]


gaps = st.lists(st.integers(1, 9), min_size=1, max_size=60)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(RULES)), st.integers(3, 9), st.integers(1, 12), gaps)
def test_the_newest_is_always_there_and_none_comes_back(rule, size, keep_every, steps):
    history, random = history_of(rule, size, keep_every), np.random.default_rng(sum(steps))
    rated = history_of(
        rule,
        size,
        keep_every,
        mu=lambda uid: float(uid.removeprefix("step-")) % 7,
        payoffs=lambda uids: random.integers(-1, 2, (len(uids), 3)).astype(float),
    )
    for each in (history, rated):
        before: set[int] = set()
        for version in np.cumsum([0, *steps]).tolist():
            gone = {int(uid.removeprefix("step-")) for uid in each.add(f"step-{version}", version)}
            active = versions(each)
            assert active == sorted(active)
            assert active[-1] == version
            assert len(active) <= size
            assert set(active) == (before | {version}) - gone
            before = set(active)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(2, 300), st.integers(1, 10))
def test_spaced_versions_are_at_most_twice_as_far_apart_as_evenly_spaced_ones(size, count, step):
    history = history_of("spaced", size)
    for version in range(0, count * step, step):
        play(history, version)
        active = versions(history)
        assert (active[0], active[-1]) == (0, version)
        assert len(active) == min(size, version // step + 1)
        even = max(version / (size - 1), step)
        assert max(np.diff(active), default=0) <= 2 * even


def test_spaced_versions_of_a_long_run():
    history = history_of("spaced", 5)
    play(history, *range(101))
    assert versions(history) == [0, 21, 52, 82, 100]


def test_the_strongest_stay_and_of_equal_ones_the_newer():
    mu = {"step-0": 20.0, "step-1": 30.0, "step-2": 25.0, "step-3": 20.0, "step-4": 10.0}
    history = history_of("strongest", 3, mu=mu.__getitem__)
    assert play(history, 0, 1, 2) == []
    assert play(history, 3) == ["step-0"]
    assert play(history, 4) == ["step-3"]
    assert history.uids == ["step-4", "step-2", "step-1"]


@pytest.mark.parametrize(
    ("places", "left"),
    [
        ((0.0, 0.7, 0.8, 1.0), "step-2"),
        ((0.0, 0.5, 1.0, 0.0), "step-0"),  # the current version stays where it is similar
    ],
)
def test_of_the_two_most_similar_versions_the_one_in_the_thick_of_the_others_leaves(places, left):
    history = history_of(
        "diverse", 3, payoffs=lambda uids: np.array([[places[int(uid[5:])]] for uid in uids])
    )
    assert play(history, 0, 1, 2, 3) == [left]


@pytest.mark.parametrize("rule", ["newest", "diverse"])
def test_versions_without_results_leave_in_order_of_age(rule):
    history = history_of(rule, 3)
    assert play(history, *range(5)) == ["step-0", "step-1"]
    assert history.uids == ["step-4", "step-3", "step-2"]


def test_versions_between_those_that_stay_leave_when_another_becomes_current():
    history = history_of("newest", 3, keep_every=4)
    assert play(history, 0, 2) == []
    assert play(history, 3) == ["step-2"]
    assert play(history, 5) == ["step-3"]  # 5 is the first that is 4 updates after 0
    assert play(history, 7, 9, 11) == ["step-7", "step-0"]
    assert history.uids == ["step-11", "step-9", "step-5"]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(RULES)), st.integers(3, 6), st.integers(1, 5), gaps, gaps)
def test_a_loaded_history_goes_on_like_one_that_never_stopped(rule, size, keep_every, first, then):
    history, resumed = history_of(rule, size, keep_every), history_of(rule, size, keep_every)
    so_far = np.cumsum([0, *first]).tolist()
    play(history, *so_far)
    resumed.load_state_dict(json.loads(json.dumps(history.state_dict())))
    later = (so_far[-1] + np.cumsum(then)).tolist()
    assert play(resumed, *later) == play(history, *later)
    assert resumed.uids == history.uids


@pytest.mark.parametrize(("rule", "left"), [("newest", [7, 8, 9]), ("spaced", [0, 6, 9])])
def test_a_history_that_has_become_too_large_is_thinned(rule, left):
    history, smaller = history_of(rule, 5), history_of(rule, 3)
    play(history, 0, 6, 7, 8, 9)
    smaller.load_state_dict(history.state_dict())
    assert versions(smaller) == left
