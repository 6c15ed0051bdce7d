"""The paired test lets worse versions pass as rarely as it says, and good ones when it can see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlforge.errors import ConfigError
from rlforge.serving.noninferiority import TESTS, compare
from rlforge.serving.records import PairedOutcomes


def _outcomes(candidate: np.ndarray, current: np.ndarray) -> PairedOutcomes:
    return PairedOutcomes(candidate=tuple(candidate), current=tuple(current))


def _games(draw: np.random.Generator, number: int, loss: float) -> PairedOutcomes:
    """Games of two versions that share half of their luck; the new one earns ``loss`` less."""
    luck = draw.uniform(size=number)
    other = np.where(draw.uniform(size=number) < 0.5, luck, draw.uniform(size=number))
    current = np.where(luck < 0.5, 1.0, -1.0)
    candidate = np.where(other < 0.5 - loss / 2, 1.0, -1.0)
    return _outcomes(candidate, current)


@pytest.mark.parametrize("items", [40, 200])
def test_a_version_worse_by_the_margin_passes_as_rarely_as_alpha_says(items: int) -> None:
    draw, runs = np.random.default_rng(0), 800
    passed = sum(
        compare(_games(draw, items, loss=0.25), margin=0.25, alpha=0.05, test="t").passed
        for _ in range(runs)
    )
    # Three standard errors above the level.
    assert passed / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


@pytest.mark.parametrize("test", TESTS)
def test_symmetric_noise_around_the_margin_passes_as_rarely_as_alpha_says(test: str) -> None:
    draw, runs = np.random.default_rng(1), 500
    passed = 0
    for _ in range(runs):
        difference = draw.standard_t(3, size=60) - 0.25
        outcomes = _outcomes(difference, np.zeros(60))
        passed += compare(outcomes, margin=0.25, alpha=0.05, test=test).passed
    assert passed / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_an_equal_version_passes_with_enough_games() -> None:
    draw = np.random.default_rng(2)
    passed = [
        compare(_games(draw, 200, loss=0.0), margin=0.25, alpha=0.05, test="t").passed
        for _ in range(200)
    ]
    assert np.mean(passed) > 0.85


def test_the_p_value_is_that_of_students_distribution() -> None:
    outcomes = PairedOutcomes(candidate=(1.0, 0.5, 0.0, 2.0), current=(0.5, 1.0, 0.0, 1.0))
    result = compare(outcomes, margin=0.1, alpha=0.05, test="t")
    difference = np.array([0.5, -0.5, 0.0, 1.0])
    statistic = (difference.mean() + 0.1) / (difference.std(ddof=1) / 2)
    assert result.p_value == pytest.approx(stats.t.sf(statistic, df=3))
    assert result.difference == pytest.approx(0.25)


@given(difference=st.floats(-1, 1), margin=st.floats(0, 1), items=st.integers(1, 5))
def test_without_chance_the_difference_itself_decides(
    difference: float, margin: float, items: int
) -> None:
    outcomes = PairedOutcomes(candidate=(difference,) * items, current=(0.0,) * items)
    for test in TESTS:
        result = compare(outcomes, margin=margin, alpha=0.05, test=test)
        assert result.passed == (difference + margin >= 0)


def test_no_items_show_nothing() -> None:
    nothing = PairedOutcomes(candidate=(), current=())
    assert not compare(nothing, margin=1.0, alpha=0.5, test="sign").passed


def test_outcomes_that_are_no_numbers_are_refused() -> None:
    outcomes = PairedOutcomes(candidate=(math.nan,), current=(0.0,))
    with pytest.raises(ValueError, match="finite"):
        compare(outcomes, margin=0.1, alpha=0.05, test="t")


def test_an_unknown_test_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"deployment\.test=wilcoxn.*did you mean wilcoxon"):
        compare(PairedOutcomes(candidate=(), current=()), margin=0, alpha=0.05, test="wilcoxn")
