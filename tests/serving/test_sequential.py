"""The sequential test against its formula, and against thousands of trials without a difference."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlforge.serving.sequential import MixtureSprt, Moments, p_value


@given(difference=st.floats(-0.5, 0.5), variance=st.floats(1e-3, 0.2), effect=st.floats(0.05, 0.5))
def test_the_p_value_is_one_over_the_averaged_likelihood_ratio(
    difference: float, variance: float, effect: float
) -> None:
    # A difference drawn from N(0, effect²) and seen through N(·, variance) is N(0, their sum).
    averaged = stats.norm.logpdf(difference, 0, math.sqrt(variance + effect**2))
    ratio = math.exp(averaged - stats.norm.logpdf(difference, 0, math.sqrt(variance)))
    assert p_value(difference, variance, effect) == pytest.approx(min(1, 1 / ratio), rel=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=50))
def test_moments_are_those_of_all_numbers(numbers: list[float]) -> None:
    moments = Moments()
    for number in numbers:
        moments.add(number)
    assert moments.mean == pytest.approx(np.mean(numbers), abs=1e-9, rel=1e-9)
    expected = np.var(numbers, ddof=1) / len(numbers)
    assert moments.variance_of_mean == pytest.approx(expected, abs=1e-6, rel=1e-6)


def _verdict(draw: np.random.Generator, new: float, outcomes: int, share: float) -> str | None:
    """A trial looked at after every outcome: rewards of 0 or 1, the current version wins half."""
    test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=50)
    chances = {"current": 0.5, "new": new}
    for on_new, luck in zip(draw.uniform(size=outcomes), draw.uniform(size=outcomes), strict=True):
        arm = "new" if on_new < share else "current"
        test.add(arm, float(luck < chances[arm]))  # type: ignore[arg-type]
        if test.verdict is not None:
            return test.verdict
    return None


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_without_a_difference_looking_all_the_time_decides_as_rarely_as_alpha_says(
    share: float,
) -> None:
    draw, runs = np.random.default_rng(0), 300
    decided = sum(_verdict(draw, 0.5, 1500, share) is not None for _ in range(runs))
    assert decided / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize(("new", "verdict"), [(0.65, "new_is_better"), (0.35, "new_is_worse")])
def test_a_difference_is_found_and_in_the_right_direction(new: float, verdict: str) -> None:
    draw = np.random.default_rng(1)
    found = [_verdict(draw, new, 2000, 0.5) for _ in range(50)]
    assert found.count(verdict) >= 48


def test_outcomes_without_spread_decide_at_once_when_they_differ() -> None:
    test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=3)
    for _ in range(3):
        test.add("current", 0.0)
        assert test.verdict is None
        test.add("new", 1.0)
    assert test.verdict == "new_is_better"
    same = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=3)
    for _ in range(100):
        same.add("current", 1.0)
        same.add("new", 1.0)
    assert same.verdict is None
    assert same.p_value == 1.0


def test_a_reward_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="finite"):
        MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=1).add("new", math.nan)
