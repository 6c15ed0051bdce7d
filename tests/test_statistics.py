"""Intervals of rates."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.statistics import significant, wilson_interval


def test_wilson_interval_agrees_with_a_published_value_and_without_trials_is_zero_to_one():
    # 81 of 263: Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = wilson_interval(0, 20)
    assert (low, round(high, 4)) == (0.0, 0.1611)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_solves_its_equation_and_holds_the_rate(trials, data):
    wins = data.draw(st.integers(0, trials))
    low, high = wilson_interval(wins, trials)
    rate, z = wins / trials, 1.959963984540054
    assert 0 <= low <= rate <= high <= 1
    for bound in (low, high):
        # Each bound p satisfies |rate - p| = z sqrt(p (1 - p) / n).
        assert abs(rate - bound) == pytest.approx(
            z * math.sqrt(bound * (1 - bound) / trials), abs=1e-9
        )


@pytest.mark.parametrize(
    ("first", "second", "differ"),
    [
        ((0.2, 0.4), (0.5, 0.6), True),
        ((0.5, 0.6), (0.2, 0.4), True),
        ((0.2, 0.4), (0.4, 0.6), False),
        ((-0.2, -0.1), (0.0, 0.0), True),
        ((-0.1, 0.1), (0.0, 0.0), False),
    ],
)
def test_intervals_differ_where_they_do_not_touch(first, second, differ):
    assert significant(first, second) == differ
