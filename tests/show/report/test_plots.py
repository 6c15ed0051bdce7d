"""Pictures: one entry of a legend per name, and scales of powers of ten."""

import re

from rlforge.show.report.charts import Chart, Series
from rlforge.show.report.plots import draw


def texts(picture):
    return re.findall(r"<text[^>]*>([^<]*)</text>", picture)


def test_lines_of_one_name_have_one_entry_and_faint_ones_none():
    lines = [
        Series(name=name, xs=[0, 1], ys=[0.2, place / 4], faint=name == "raw")
        for place, name in enumerate(["a", "a", "b", "raw"])
    ]
    said = texts(draw([Chart(title="won", series=lines, shares=True)]))
    assert (said.count("a"), said.count("b"), said.count("raw")) == (1, 1, 0)
    assert {"won", "75%", "update"} <= {*said}


def test_a_chart_without_points_is_left_out():
    empty = Chart(title="empty", series=[Series(name="a", xs=[], ys=[])])
    assert draw([empty]) is None
    full = Chart(title="full", series=[Series(name="a", xs=[0, 9], ys=[1e-3, 10])], log=True)
    said = texts(draw([empty, full]))
    assert "full" in said
    assert "empty" not in said
