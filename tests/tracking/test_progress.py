"""A run's rates and the time left."""

from __future__ import annotations

import pytest

from rlforge.tracking.progress import Pace


def test_rates_cover_the_last_minute_only() -> None:
    pace = Pace(0.0, {"games": 0})
    assert pace.rates(0.0, {"games": 0}) == {"games": 0.0}
    assert pace.rates(50.0, {"games": 500}) == {"games": 10.0}
    for now in range(60, 200, 10):
        pace.rates(float(now), {"games": 500 + (now - 50)})
    assert pace.rates(200.0, {"games": 650})["games"] == pytest.approx(1.0)


def test_growth_is_measured_between_updates() -> None:
    pace = Pace(10.0, {"games": 100, "tokens": 0})
    assert pace.update(20.0, {"games": 150, "tokens": 40}) == {"games": 5.0, "tokens": 4.0}
    assert pace.update(22.0, {"games": 152, "tokens": 40}) == {"games": 1.0, "tokens": 0.0}


def test_time_left_follows_the_last_ten_updates() -> None:
    pace = Pace(0.0, {})
    assert pace.seconds_for(5, 3.0) is None
    pace.update(100.0, {})
    for now in range(110, 210, 10):
        pace.update(float(now), {})
    assert pace.seconds_for(4, 200.0) == pytest.approx(40.0)
    assert pace.seconds_for(4, 205.0) == pytest.approx(35.0)
    assert pace.seconds_for(4, 900.0) == 0.0
    assert pace.seconds_for(0, 200.0) == 0.0
