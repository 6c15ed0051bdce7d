"""Who won, and how sure a rate is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.tracking.stats import outcome, wilson_interval


@pytest.mark.parametrize(
    ("rewards", "player", "expected"),
    [
        ({0: 1.0, 1: -1.0}, 0, "win"),
        ({0: 1.0, 1: -1.0}, 1, "loss"),
        ({0: 0.0, 1: 0.0}, 1, "draw"),
        ({0: 0.5, 1: 0.5, 2: -1.0}, 0, "draw"),
        ({0: 0.5, 1: 1.0, 2: -1.0}, 0, "loss"),
        ({0: 1.0}, 0, "win"),
        ({0: 0.9}, 0, "loss"),
    ],
)
def test_outcome(rewards: dict[int, float], player: int, expected: str) -> None:
    assert outcome(rewards, player) == expected


def test_wilson_interval_agrees_with_a_published_value() -> None:
    # 81 of 263: Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    low, high = wilson_interval(81, 263)
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
    low, high = wilson_interval(0, 20)
    assert (low, round(high, 4)) == (0.0, 0.1611)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_solves_its_equation_and_holds_the_rate(
    trials: int, data: st.DataObject
) -> None:
    wins = data.draw(st.integers(0, trials))
    low, high = wilson_interval(wins, trials)
    rate, z = wins / trials, 1.959963984540054
    assert 0 <= low <= rate <= high <= 1
    for bound in (low, high):
        # Each bound p satisfies |rate - p| = z sqrt(p (1 - p) / n).
        assert abs(rate - bound) == pytest.approx(
            z * math.sqrt(bound * (1 - bound) / trials), abs=1e-9
        )


def test_nothing_is_known_without_trials() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
