"""Windows are fixed, adjacent, and named by their start."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlforge.continuous.decisions.records import WindowGrid, window_start
from rlforge.errors import RlforgeError

times = st.floats(-1e10, 1e11)
lengths = st.integers(1, 7 * 24 * 3600).map(lambda seconds: seconds / 60)


def test_ids_have_the_documented_form():
    grid = WindowGrid(60)
    moment = datetime(2024, 11, 13, 10, 59, 59, 999999, tzinfo=UTC).timestamp()
    assert grid.id_of(moment) == "2024-11-13-10:00"
    assert grid.id_of(moment + 1) == grid.after("2024-11-13-10:00") == "2024-11-13-11:00"
    start, end = grid.span("2024-11-13-10:00")
    assert (datetime.fromtimestamp(start, UTC).hour, end - start) == (10, 3600)


def test_ids_of_windows_that_start_between_minutes_have_seconds_and_sort():
    grid = WindowGrid(0.5)
    ids = [grid.id_of(second) for second in (0, 29.9, 30, 60)]
    assert ids == [f"1970-01-01-00:{minute}" for minute in ("00", "00", "00:30", "01")]
    assert sorted(ids) == ids


@given(lengths, times)
@example(1.0, -5e-324)
def test_every_time_lies_in_its_window(minutes, moment):
    grid = WindowGrid(minutes)
    start, end = grid.span(grid.id_of(moment))
    assert start <= moment < end
    assert grid.id_of(start) == grid.id_of(moment)
    assert grid.span(grid.after(grid.id_of(moment)))[0] == end


@given(lengths, times, times)
def test_ids_sort_as_their_windows_do(minutes, one, other):
    grid = WindowGrid(minutes)
    low, high = sorted((one, other))
    assert grid.id_of(low) <= grid.id_of(high)


@pytest.mark.parametrize("moment", [math.nan, math.inf, -math.inf, 1e18])
def test_a_number_outside_the_calendar_is_refused(moment):
    with pytest.raises(RlforgeError, match="is not a time of the calendar"):
        WindowGrid(60).id_of(moment)


@pytest.mark.parametrize(
    "text", ["", "last", "2024-11-13", "2024-11-13-10:0", "2024-11-13-10:00:00", "2024-13-13-10:00"]
)
def test_a_text_that_is_not_a_window_id_is_refused(text):
    with pytest.raises(RlforgeError, match="want a form like 2024-11-13-10:00"):
        window_start(text)
