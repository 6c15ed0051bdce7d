"""Charts: what counts as a change, thinning, smoothing, and what a page draws of them."""

import json
import math

import pytest

from rlforge.show.report.charts import MOST_POINTS, Chart, Series, thin, trailing_mean


def chart_of(ys, **how):
    return Chart(title="x", series=[Series(name="x", xs=range(len(ys)), ys=ys)], **how)


def test_a_line_with_gaps_says_how_much_of_it_was_measured():
    gaps = chart_of([0.5 if step % 10 == 0 else None for step in range(80)], smooth=True)
    assert gaps.caption == "x, measured in 8 of 80 updates"
    (line,) = gaps.plot["lines"]
    assert line["ys"].count(None) == 72
    assert line["mean"] is None, "of few values no mean is drawn"
    assert chart_of([0.5] * 80).caption == "x"


@pytest.mark.parametrize(
    ("ys", "said"),
    [
        ([0.0, 0.0], "x (0)"),
        ([3e-9, -2e-9, 1e-9], "x (below 1e-6)"),
        ([4.0, 4.0, 4.0], "x (4)"),
        ([0.0], "x (0)"),
        ([4.0], None),
        ([4.0, 4.5], None),
        ([None, None], None),
    ],
)
def test_lines_without_a_change_are_named_with_their_value(ys, said):
    assert chart_of(ys).unchanged == said


def test_small_values_that_are_set_are_no_noise_and_several_lines_change_where_one_does():
    schedule = [5e-7, 2e-7]
    assert chart_of(schedule, exact=True).unchanged is None
    assert chart_of(schedule).unchanged is not None
    still, other, moving = (
        Series(name="x", xs=[0, 1], ys=ys) for ys in ([0.5, 0.5], [1.0, 1.0], [0.5, 0.6])
    )
    assert Chart(title="x", series=[still, other], shares=True).unchanged == "x (50%, 100%)"
    assert Chart(title="x", series=[still, moving]).unchanged is None


def test_series_without_points_are_not_drawn():
    assert chart_of([]).shown == []
    assert chart_of([None, None]).shown == []


def test_a_page_draws_numbers_and_leaves_a_gap_where_one_is_not_finite():
    drawn = chart_of([1 / 3, None, math.nan, math.inf, 2e-7]).plot
    (line,) = json.loads(json.dumps(drawn, allow_nan=False))["lines"]
    assert line["ys"] == [0.3333333, None, None, None, 2e-7]
    assert line["xs"] == [0, 1, 2, 3, 4]


def test_long_series_are_smoothed_over_the_raw_line():
    ys = [float(x % 2) for x in range(60)]
    (line,) = chart_of(ys, smooth=True).plot["lines"]
    assert line["ys"] == ys
    assert max(line["mean"][10:]) - min(line["mean"][10:]) < 0.25
    assert chart_of(ys).plot["lines"][0]["mean"] is None


def test_trailing_mean_by_hand():
    assert trailing_mean([1.0, 3.0, None, 5.0], 2) == [1.0, 2.0, None, 5.0]
    assert trailing_mean([None], 3) == [None]


def test_thinning_keeps_means_and_the_range():
    count = 5 * MOST_POINTS
    long = Series(name="x", xs=range(count), ys=[1.0, 3.0] * (count // 2), low=[0.0] * count)
    short = thin(long)
    assert len(short.xs) == MOST_POINTS
    assert short.low == [0.0] * MOST_POINTS
    assert sum(y or 0 for y in short.ys) / MOST_POINTS == pytest.approx(2.0)
    assert thin(short) is short
