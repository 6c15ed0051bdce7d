"""Windows are fixed, side by side, and named by their start."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlforge.errors import RlforgeError
from rlforge.trajectories.grid import WindowGrid, window_start

times = st.floats(-1e10, 1e11)
lengths = st.integers(1, 7 * 24 * 3600).map(lambda seconds: seconds / 60)


def test_ids_are_those_of_the_document() -> None:
    grid = WindowGrid(60)
    moment = datetime(2024, 11, 13, 10, 59, 59, 999999, tzinfo=UTC).timestamp()
    assert grid.id_of(moment) == "2024-11-13-10:00"
    assert grid.id_of(moment + 1) == grid.after("2024-11-13-10:00") == "2024-11-13-11:00"
    start, end = grid.span("2024-11-13-10:00")
    assert (datetime.fromtimestamp(start, UTC).hour, end - start) == (10, 3600)


def test_windows_that_start_between_minutes_say_so_and_stay_in_order() -> None:
    grid = WindowGrid(0.5)
    ids = [grid.id_of(second) for second in (0, 29.9, 30, 60)]
    assert ids == [
        "1970-01-01-00:00",
        "1970-01-01-00:00",
        "1970-01-01-00:00:30",
        "1970-01-01-00:01",
    ]
    assert sorted(ids) == ids


@given(lengths, times)
@example(1.0, -5e-324)
def test_every_time_lies_in_the_window_it_is_given(minutes: float, moment: float) -> None:
    grid = WindowGrid(minutes)
    start, end = grid.span(grid.id_of(moment))
    assert start <= moment < end
    assert grid.id_of(start) == grid.id_of(moment)
    assert grid.span(grid.after(grid.id_of(moment)))[0] == end


@given(lengths, times, times)
def test_ids_sort_as_their_windows_do(minutes: float, one: float, other: float) -> None:
    grid = WindowGrid(minutes)
    low, high = sorted((one, other))
    assert grid.id_of(low) <= grid.id_of(high)


@given(lengths, st.floats(0, 1e10), st.floats(0, 7200))
def test_the_newest_closed_window_is_over_and_the_next_is_not(
    minutes: float, now: float, grace: float
) -> None:
    grid = WindowGrid(minutes)
    closed = grid.closed_by(now, grace)
    assert grid.span(closed)[1] <= now - grace
    assert grid.span(grid.after(closed))[1] > now - grace


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf, 1e18])
def test_what_is_no_time_is_refused(moment: float) -> None:
    with pytest.raises(RlforgeError, match="is no time of a calendar"):
        WindowGrid(60).id_of(moment)


@pytest.mark.parametrize(
    "text", ["", "last", "2024-11-13", "2024-11-13-10:0", "2024-11-13-10:00:00", "2024-13-13-10:00"]
)
def test_what_is_no_window_id_is_refused(text: str) -> None:
    with pytest.raises(RlforgeError, match="want a form like 2024-11-13-10:00"):
        window_start(text)
