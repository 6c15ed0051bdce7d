"""Charts: scales, thinning, smoothing and values under the pointer."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlforge.show.report.charts import (
    HEIGHT,
    MOST_POINTS,
    WIDTH,
    Chart,
    Series,
    line_chart,
    nice_ticks,
    thin,
    tick_labels,
    trailing_mean,
)


def parsed(chart):
    assert chart is not None
    return ET.fromstring(chart)


def points_of(chart, tag="polyline"):
    lines = [node.get("points", "").split() for node in parsed(chart).iter(tag)]
    return [[(float(x), float(y)) for x, y in (at.split(",") for at in line)] for line in lines]


@example(low=1024.0, width=1e-9)
@example(low=0.0, width=5e-324)
@example(low=1e-323, width=0.0)
@example(low=-3e-290, width=2e-290)
@given(low=st.floats(-1e6, 1e6), width=st.floats(0, 1e6))
def test_ticks_cover_the_range_with_a_round_step(low, width):
    ticks = nice_ticks(low, low + width)
    slack = 1e-6 * max(abs(low), width, 1e-6)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + width - slack
    assert 2 <= len(ticks) <= 8
    steps = {round((b - a) / (ticks[1] - ticks[0]), 3) for a, b in pairwise(ticks)}
    assert steps == {1.0}


@example(low=1e14, width=1e6)
@example(low=-9.9e-4, width=1e-11)
@given(low=st.floats(-1e7, 1e7), width=st.floats(0, 1e7))
def test_labels_of_ticks_are_as_far_apart_as_the_ticks(low, width):
    ticks = nice_ticks(low, low + width)
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(ticks)
    read = [float(one.replace(",", "").replace("M", "e6").replace("T", "e12")) for one in labels]
    assert read == pytest.approx(ticks, rel=1e-9, abs=1e-3 * (ticks[1] - ticks[0]))


def test_labels_have_the_decimals_of_the_step():
    steps = [0.9975, 1.0, 1.0025, 1.005, 1.0075, 1.01]
    assert tick_labels(steps) == ["0.9975", "1.0000", "1.0025", "1.0050", "1.0075", "1.0100"]
    assert tick_labels([-0.03888, -0.03886]) == ["-0.03888", "-0.03886"]
    assert tick_labels([0, 500, 1000]) == ["0", "500", "1,000"]


def test_the_longest_label_is_not_cut_at_the_left_edge():
    chart = line_chart("loss", [Series(name="x", xs=[0, 1], ys=[-0.0388825, -0.0388925])])
    labels = [node for node in parsed(chart).iter("text") if node.get("class") == "tick end"]
    longest = max(labels, key=lambda node: len(node.text or ""))
    assert len(longest.text or "") >= 9
    assert float(longest.get("x", "0")) >= 6.2 * len(longest.text or "")  # 6.2 pixels a digit
    ((start, end),) = points_of(chart)
    assert start[0] > float(longest.get("x", "0"))
    assert end[0] < WIDTH


def caption(chart):
    return parsed(chart).findtext("figcaption")


def test_a_line_with_gaps_says_how_much_of_it_was_measured():
    ys = [0.5 if step % 10 == 0 else None for step in range(80)]
    gaps = line_chart("gap", [Series(name="x", xs=range(80), ys=ys)], smooth=True)
    assert caption(gaps) == "gap, measured in 8 of 80 updates"
    assert points_of(gaps) == [], "no line between points that are not neighbours"
    assert len(list(parsed(gaps).iter("circle"))) == 8
    whole = line_chart("gap", [Series(name="x", xs=range(80), ys=[0.5] * 80)])
    assert caption(whole) == "gap"


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
    chart = Chart(title="x", series=[Series(name="x", xs=range(len(ys)), ys=ys)])
    assert chart.unchanged == said


def test_small_values_that_are_set_are_no_noise_and_several_lines_change_where_one_does():
    schedule = [Series(name="x", xs=[0, 1], ys=[5e-7, 2e-7])]
    assert Chart(title="learning rate", series=schedule, exact=True).unchanged is None
    assert Chart(title="advantage", series=schedule).unchanged is not None
    still, other, moving = (
        Series(name="x", xs=[0, 1], ys=ys) for ys in ([0.5, 0.5], [1.0, 1.0], [0.5, 0.6])
    )
    assert Chart(title="x", series=[still, other], shares=True).unchanged == "x (50%, 100%)"
    assert Chart(title="x", series=[still, moving]).unchanged is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (3, 17, [0, 5, 10, 15, 20]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (2, 2, [1, 1.5, 2, 2.5, 3]),
        (0, 0, [-0.5, -0.25, 0, 0.25, 0.5]),
    ],
)
def test_ticks_by_hand(low, high, ticks):
    assert nice_ticks(low, high) == pytest.approx(ticks)


def test_the_line_goes_through_its_points():
    chart = line_chart("loss", [Series(name="loss", xs=[0, 5, 10], ys=[0.0, 1.0, 0.5])])
    ((first, second, third),) = points_of(chart)
    assert first[0] < second[0] < third[0]
    assert second[0] == pytest.approx((first[0] + third[0]) / 2, abs=0.1)
    assert third[1] == pytest.approx((first[1] + second[1]) / 2, abs=0.1)  # half-way up
    assert second[1] < first[1]
    for x, y in (first, second, third):
        assert 0 < x < WIDTH
        assert 0 < y < HEIGHT


def test_a_gap_splits_the_line_and_a_single_point_is_a_dot():
    chart = line_chart("x", [Series(name="x", xs=range(5), ys=[1.0, 2.0, None, 3.0, None])])
    assert [len(line) for line in points_of(chart)] == [2]
    assert len(list(parsed(chart).iter("circle"))) == 1
    alone = line_chart("x", [Series(name="x", xs=[3], ys=[0.5])], shares=True)
    assert "nan" not in str(alone)
    assert len(list(parsed(alone).iter("circle"))) == 1


def test_a_chart_without_points_is_none():
    assert line_chart("x", []) is None
    assert line_chart("x", [Series(name="x", xs=[], ys=[])]) is None
    assert line_chart("x", [Series(name="x", xs=[1, 2], ys=[None, None])]) is None


def test_hovering_shows_every_value_with_its_band():
    chart = line_chart(
        "win rate",
        [
            Series(name="win", xs=[0, 10], ys=[0.3, 0.71], low=[0.2, 0.65], high=[0.4, 0.77]),
            Series(name="loss", xs=[10], ys=[0.125]),
        ],
        shares=True,
    )
    titles = [node.text for node in parsed(chart).iter("title")]
    assert titles == [
        "update 0\nwin: 30% (20% to 40%)",
        "update 10\nwin: 71% (65% to 77%)\nloss: 12.5%",
    ]
    assert len(points_of(chart, "polygon")) == 1


def test_shares_read_as_percent_up_to_what_is_needed():
    def ticks(highest):
        chart = line_chart("x", [Series(name="x", xs=[0, 1], ys=[0, highest])], shares=True)
        return [str(node.text) for node in parsed(chart).iter("text") if "%" in str(node.text)]

    assert ticks(0.9) == ["0%", "25%", "50%", "75%", "100%"]
    assert ticks(0.04) == ["0%", "1%", "2%", "3%", "4%"]
    assert ticks(0.0)[-1] == "1.00%"


def test_several_lines_have_a_legend_and_one_has_none():
    one = Series(name="<b>", xs=[0, 1], ys=[0, 1])
    two = Series(name="two", xs=[0, 1], ys=[1, 0])
    assert 'class="legend"' not in str(line_chart("x", [one]))
    both = str(line_chart("x", [one, two]))
    assert 'class="legend"' in both
    assert "&lt;b&gt;" in both
    assert "<b>" not in both


def test_long_series_are_smoothed_over_the_raw_line():
    series = Series(name="x", xs=range(60), ys=[float(x % 2) for x in range(60)])
    raw, smooth = points_of(line_chart("x", [series], smooth=True))
    assert len(raw) == len(smooth) == 60
    spread = max(y for _, y in smooth[10:]) - min(y for _, y in smooth[10:])
    assert spread < (max(y for _, y in raw) - min(y for _, y in raw)) / 4
    assert len(points_of(line_chart("x", [series]))) == 1


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
