"""Numbers and durations as text."""

import math

import pytest

from rlforge.show import formatting as f


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (f.duration(None), "–"),
        (f.duration(0), "0:00"),
        (f.duration(65.4), "1:05"),
        (f.duration(3845), "1:04:05"),
        (f.duration(90061), "1 d 01:01"),
        (f.number(None), "–"),
        (f.number(0.0), "0"),
        (f.number(0.012345), "0.01235"),
        (f.number(0.592171, 2), "0.59"),
        (f.number(2.17e-6), "2.17e-6"),
        (f.number(1e-5), "1e-5"),
        (f.number(-0.5), "-0.5"),
        (f.number(21034.4), "21,034"),
        (f.number(2.5e6), "2.50M"),
        (f.number(math.nan), "nan"),
        (f.percent(0.6789), "68%"),
        (f.percent(0.6789, 1), "67.9%"),
        (f.percent(None), "–"),
        (f.points(-0.125), "-12.5"),
        (f.points(-0.0001), "+0.0"),
        (f.percent(-0.001), "0%"),
        (f.elo(-0.2), "+0"),
        (f.number(-0.0), "0"),
        (f.count(-0.3), "0"),
        (f.count(12345), "12,345"),
        (f.count(3.21e9), "3.21G"),
        (f.per_second(42.13), "42.1/s"),
        (f.per_second(4213.4), "4,213/s"),
        (f.sparkline((0.0, 0.5, 1.0, 1.2)), "▁▅██"),
    ],
)
def test_numbers_and_durations_are_short_texts(shown, text):
    assert shown == text
