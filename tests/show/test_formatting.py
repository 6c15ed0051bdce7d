"""Numbers and durations as text."""

import math

import pytest

from rlforge.show import formatting as f


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (0, "0:00"), (65.4, "1:05"), (3845, "1:04:05"), (90061, "1 d 01:01")],
)
def test_duration(seconds, text):
    assert f.duration(seconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.012345, "0.01235"),
        (2.17e-6, "2.17e-6"),
        (1e-5, "1e-5"),
        (-0.5, "-0.5"),
        (21034.4, "21,034"),
        (2.5e6, "2.50M"),
        (math.nan, "nan"),
    ],
)
def test_number(amount, text):
    assert f.number(amount) == text


def test_digits_shares_counts_and_curves():
    assert f.number(0.592171, 2) == "0.59"
    assert f.percent(0.6789) == "68%"
    assert f.percent(0.6789, 1) == "67.9%"
    assert f.percent(None) == "–"
    assert f.points(-0.125) == "-12.5"
    assert f.count(12345) == "12,345"
    assert f.count(3.21e9) == "3.21G"
    assert f.per_second(42.13) == "42.1/s"
    assert f.per_second(4213.4) == "4,213/s"
    assert f.sparkline((0.0, 0.5, 1.0, 1.2)) == "▁▅██"
