import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.plugins import MODES
from rlforge.errors import ConfigError, RunError
from rlforge.league.modes import PoolView, probabilities, softmax

MUS = {"step-9": 30.0, "step-8": 28.0, "step-7": 29.0, "step-6": 20.0, "scripted": 31.5}


def view(**changes) -> PoolView:
    plain = PoolView(
        current="step-9",
        past=("step-8", "step-7", "step-6"),
        fixed=("scripted",),
        lag_range=(1, 2),
        temperature=1.0,
        mu=MUS.__getitem__,
        quality=lambda uid: MUS[uid] / 100,
        diversity=lambda uid: MUS[uid] / 50,
    )
    return dataclasses.replace(plain, **changes)


scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(scores, st.floats(1e-3, 1e3))
def test_softmax_is_a_distribution_ordered_as_its_scores(scores, temperature):
    weights = softmax(scores, temperature)
    assert math.fsum(weights) == pytest.approx(1.0)
    assert all(0 <= weight <= 1 for weight in weights)
    by_score = [weight for _, weight in sorted(zip(scores, weights, strict=True))]
    assert by_score == sorted(weights)


@given(st.lists(st.integers(-50, 50), min_size=1), st.integers(-(10**6), 10**6))
def test_softmax_does_not_change_with_a_shift_of_the_scores(scores, shift):
    shifted = [float(score + shift) for score in scores]
    assert softmax(shifted, 3.0) == softmax([float(score) for score in scores], 3.0)


@given(st.sampled_from(MODES.names()), st.floats(0.01, 100), st.integers(0, 3), st.integers(0, 3))
def test_every_mode_gives_a_distribution_over_known_uids(name, temperature, low, width):
    weights = MODES.find(name)(view(temperature=temperature, lag_range=(low, low + width)))
    assert math.fsum(weights.values()) == pytest.approx(1.0)
    assert set(weights) <= set(MUS)


def test_fixed_mirror_and_fictitious_by_hand():
    assert MODES.find("fixed")(view(fixed=("a", "b"))) == {"a": 0.5, "b": 0.5}
    assert MODES.find("mirror")(view()) == {"step-9": 1.0}
    assert MODES.find("random")(view()) == dict.fromkeys(OTHERS, 0.25)
    weights = MODES.find("fictitious")(view(past=("step-5", "step-0")))
    assert weights == dict.fromkeys(("step-9", "step-5", "step-0"), 1 / 3)


@pytest.mark.parametrize(
    ("lag_range", "expected"),
    [
        ((1, 2), {"step-8", "step-7"}),
        ((2, 9), {"step-7", "step-6"}),
        ((3, 3), {"step-6"}),
        ((0, 1), {"step-9", "step-8"}),
        ((4, 6), {"step-6"}),  # none so old: the oldest there is
    ],
)
def test_lagged_is_uniform_over_versions_in_range(lag_range, expected):
    weights = MODES.find("lagged")(view(lag_range=lag_range))
    assert set(weights) == expected
    assert set(weights.values()) == {1 / len(expected)}
    assert MODES.find("lagged")(view(past=(), lag_range=lag_range)) == {"step-9": 1.0}


OTHERS = MUS.keys() - {"step-9"}
WITHOUT_CHOICE = {"fixed", "mirror", "lagged", "fictitious"}


@pytest.mark.parametrize("name", sorted({*MODES.names()} - WITHOUT_CHOICE))
def test_the_current_version_is_an_opponent_if_asked_for_or_if_there_is_no_other(name):
    mode = MODES.find(name)
    assert mode(view()).keys() == OTHERS
    assert mode(view(include_current=True)).keys() == MUS.keys()
    assert mode(view(past=(), fixed=())) == {"step-9": 1.0}


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("match_quality", lambda uid: MUS[uid] / 100),
        ("ts_dist", lambda uid: -abs(MUS[uid] - 30.0)),
        ("exploration", lambda uid: MUS[uid] / 50),
    ],
)
@pytest.mark.parametrize("temperature", [0.1, 1.0, 7.0])
def test_softmax_modes_weigh_by_their_score(name, score, temperature):
    weights = MODES.find(name)(view(temperature=temperature))
    total = sum(math.exp(score(uid) / temperature) for uid in OTHERS)
    assert weights == pytest.approx(
        {uid: math.exp(score(uid) / temperature) / total for uid in OTHERS}
    )


CHANCES = {"step-8": 0.5, "step-7": 0.8, "step-6": 0.9, "scripted": 0.1}


@pytest.mark.parametrize(
    ("weighting", "power", "unnormalised"),
    [
        ("hard", 2.0, {"step-8": 0.25, "step-7": 0.04, "step-6": 0.01, "scripted": 0.81}),
        ("hard", 1.0, {"step-8": 0.5, "step-7": 0.2, "step-6": 0.1, "scripted": 0.9}),
        ("even", 2.0, {"step-8": 0.25, "step-7": 0.16, "step-6": 0.09, "scripted": 0.09}),
    ],
)
def test_prioritized_by_hand(weighting, power, unnormalised):
    seen = view(weighting=weighting, power=power, win_probability=CHANCES.__getitem__)
    total = sum(unnormalised.values())
    assert MODES.find("prioritized")(seen) == pytest.approx(
        {uid: weight / total for uid, weight in unnormalised.items()}
    )


@given(
    st.lists(st.floats(0.001, 0.999), min_size=4, max_size=4),
    st.sampled_from(["hard", "even"]),
    st.floats(0.01, 1000),
)
def test_prioritized_is_a_distribution_that_does_not_depend_on_the_order(chances, weighting, power):
    chance = dict(zip(CHANCES, chances, strict=True)).__getitem__
    seen = view(weighting=weighting, power=power, win_probability=chance)
    weights = MODES.find("prioritized")(seen)
    assert math.fsum(weights.values()) == pytest.approx(1)
    turned = dataclasses.replace(seen, past=seen.past[::-1])
    assert MODES.find("prioritized")(turned) == pytest.approx(weights)
    if weighting == "hard":
        assert weights[max(CHANCES, key=chance)] == min(weights.values())


def circle(first: str, second: str) -> float:
    """Rock, paper, scissors between the past versions; the scripted player loses to all."""
    if "scripted" in (first, second):
        return 0.0 if first == second else -0.5 if first == "scripted" else 0.5
    turn = (int(first[-1]) - int(second[-1])) % 3
    return (0.0, 0.4, -0.4)[turn]


@pytest.mark.parametrize("name", ["nash", "alpha_rank"])
def test_meta_strategies_leave_out_who_loses_to_all_and_share_among_the_rest(name):
    weights = MODES.find(name)(view(payoff=circle))
    assert weights == pytest.approx(
        {"scripted": 0, "step-8": 1 / 3, "step-7": 1 / 3, "step-6": 1 / 3}, abs=1e-9
    )


def test_a_low_temperature_makes_alpha_rank_sharp():
    def payoff(first: str, second: str) -> float:
        return (MUS[first] - MUS[second]) / 1000

    sharp, flat = (
        MODES.find("alpha_rank")(view(payoff=payoff, temperature=t)) for t in (0.001, 100.0)
    )
    assert sharp["scripted"] == pytest.approx(1)
    assert flat == pytest.approx(dict.fromkeys(OTHERS, 0.25), abs=0.02)


def test_an_unknown_mode_is_refused_with_the_nearest_names():
    with pytest.raises(ConfigError, match=r"'match-quality'.*did you mean match_quality"):
        MODES.find("match-quality")


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ({"nobody": 1.0}, "draws 'nobody', which is not in the pool"),
        ({"a": -1.0}, r"gives a the weight -1\.0"),
        ({"a": math.nan}, "gives a the weight nan"),
        ({"a": 0.0}, "gives every opponent the weight 0"),
        ({}, "gives every opponent the weight 0"),
    ],
)
def test_weights_that_draw_no_opponent_are_refused(weights, problem):
    with pytest.raises(RunError, match=rf"pool\.mode=mine:odd {problem}"):
        probabilities(weights, view(fixed=("a",)), "mine:odd")
    drawn = probabilities({"a": 3.0, "b": 1.0}, view(fixed=("a", "b")), "m")
    assert drawn == {"a": 0.75, "b": 0.25}  # divided by their sum
