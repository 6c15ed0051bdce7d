"""Charts as one picture, for READMEs, model cards and studies."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rlforge.config.plugins import RUN_KINDS
from rlforge.show.formatting import LEARNER_LABELS
from rlforge.show.report import curves
from rlforge.show.report.charts import Chart
from rlforge.show.report.data import RunData
from rlforge.system.packages import need_packages

#: Most marked points of a line, and names in a line of a legend.
_MARKED, _NAMES = 24, 3

#: Colours beside ``c0`` …, which are the style's.
_COLOURS = {"win": "#0b7f5f", "draw": "#98a1ae", "loss": "#b4520a"}
_STYLE = Path(__file__).with_name("plots.mplstyle")


def draw_curves(run: RunData) -> str | None:
    """Results, reward and entropy of a run."""
    charts = resolve_name(RUN_KINDS.find(run.kind).results)(run)
    learning = ("reward_mean", "entropy")
    return draw([*charts, *(curves.metric(run, key, LEARNER_LABELS[key]) for key in learning)])


def draw(charts: Sequence[Chart], columns: int = 2, shared: bool = False) -> str | None:
    """Charts that have points as SVG, or None; ConfigError where matplotlib is missing.

    shared: all have the same axes.
    """
    drawn = [chart for chart in charts if chart.shown]
    if not drawn:
        return None
    need_packages("curves.svg", "plots", "matplotlib")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(columns, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(fname=_STYLE):
        figure = Figure(figsize=(4.3 * columns, 2.7 * rows))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
        places = list(grid.flat)
        named = [_draw(axes, chart) for axes, chart in zip(places, drawn, strict=False)]
        for n, chart in enumerate(drawn):
            # Titles of a row stand at one height, above its largest legend.
            most = max(named[n - n % columns :][:columns])
            lines = -(-most // _NAMES) if most > 1 else 0  # one has no legend
            places[n].set_title(chart.caption, pad=8 + 16 * lines)
        for axes in places[len(drawn) :]:
            axes.set_axis_off()
        page = io.StringIO()
        # Without a date the same run gives the same picture.
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(page, format="svg", metadata=unsaid)
    document = page.getvalue()
    return document[document.index("<svg") :]  # without a document type, which is an address


def _draw(axes: Any, chart: Chart) -> int:
    """Draw a chart; returns the number of names of its lines."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for one in chart.shown:
        # A line along the edge, as at 100 %, is not cut in half.
        look = {"color": _COLOURS.get(one.colour, one.colour.upper()), "clip_on": False}
        ys, mean = (
            [math.nan if y is None else y for y in ys or ()] for ys in (one.ys, chart.mean(one))
        )
        if one.low is not None and one.high is not None:
            axes.fill_between(one.xs, one.low, one.high, **look, alpha=0.14, linewidth=0)
        if mean or one.faint:
            axes.plot(one.xs, ys, **look, alpha=0.4, linewidth=1)
        if not one.faint:
            marker = "o" if len(ys) <= _MARKED else ""
            axes.plot(one.xs, mean or ys, **look, label=one.name, marker=marker, zorder=3)
    handles, names = axes.get_legend_handles_labels()
    entries = dict(zip(names, handles, strict=True))
    if len(entries) > 1:
        above = {"bbox_to_anchor": (-0.01, 0.99), "ncols": min(len(entries), _NAMES)}
        axes.legend(entries.values(), entries.keys(), **above)
    axes.set_xlabel(chart.x_name)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.log:
        axes.set_yscale("log")
    else:
        steps = 4 if chart.shares else 5
        axes.yaxis.set_major_locator(MaxNLocator(steps, steps=[1, 2, 2.5, 5, 10]))
    if chart.shares:
        highest = max(max(one.measured) for one in chart.shown)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1 if highest > 0.5 else max(highest, 0.01))  # not from 0 to 0
    return len(entries)
