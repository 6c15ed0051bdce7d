"""Charts as one picture, for READMEs, model cards and studies; extra ``plots``."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from rlforge.config.plugins import RUN_KINDS
from rlforge.show.formatting import LEARNER_LABELS
from rlforge.show.report import curves
from rlforge.show.report.charts import Chart
from rlforge.show.report.data import RunData
from rlforge.system.packages import need_packages

#: Most points of a line that are marked one by one, and names in a line of a legend.
_MARKED, _NAMES = 24, 3

#: The light colours of the report's style sheet.
_COLOURS = {"win": "#0b7f5f", "draw": "#98a1ae", "loss": "#b4520a"} | dict(
    zip(
        (f"c{index}" for index in range(8)),
        ["#2463c9", "#c96a12", "#0e8a68", "#b23a86", "#6d54c0", "#8a6d0b", "#4c7d1f", "#5c6675"],
        strict=True,
    )
)
_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "rlforge",  # the same curves are the same file
    "font.size": 9.5,
    "text.color": "#1c2430",
    "axes.edgecolor": "#98a1ae",
    "axes.labelcolor": "#5c6675",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#e6e9ee",
    "xtick.color": "#98a1ae",
    "xtick.labelcolor": "#5c6675",
    "ytick.labelcolor": "#5c6675",
    "ytick.left": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def draw_curves(run: RunData) -> str | None:
    """Results, reward and entropy of a run as ``draw`` draws them."""
    charts = resolve_name(RUN_KINDS.find(run.kind).results)(run)
    learning = ("reward_mean", "entropy")
    return draw([*charts, *(curves.metric(run, key, LEARNER_LABELS[key]) for key in learning)])


def draw(charts: Sequence[Chart], columns: int = 2) -> str | None:
    """The charts that have points as SVG, or None; ConfigError where matplotlib is missing."""
    drawn = [chart for chart in charts if chart.shown]
    if not drawn:
        return None
    need_packages("curves.svg", "plots", "matplotlib")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(columns, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.3 * columns, 2.7 * rows))
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for n, chart in enumerate(drawn):
            row = drawn[n - n % columns :][:columns]
            most = max(sum(not one.faint for one in other.shown) for other in row)
            lines = -(-most // _NAMES) if most > 1 else 0  # one has no legend
            places[n].set_title(chart.caption, pad=8 + 16 * lines)
            _draw(places[n], chart)
        for axes in places[len(drawn) :]:
            axes.set_axis_off()
        page = io.StringIO()
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(page, format="svg", metadata=unsaid)
    document = page.getvalue()
    return document[document.index("<svg") :]  # without a document type, which is an address


def _draw(axes: Any, chart: Chart) -> None:
    """Draw the lines of ``chart`` that have points."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    for one in chart.shown:
        colour = _COLOURS[one.colour]
        look: dict[str, Any] = {"color": colour, "clip_on": False, "zorder": 3}
        pale = look | {"alpha": 0.28, "linewidth": 1}
        ys, mean = (
            [math.nan if y is None else y for y in ys or ()] for ys in (one.ys, chart.mean(one))
        )
        if one.low is not None and one.high is not None:
            axes.fill_between(one.xs, one.low, one.high, color=colour, alpha=0.14, linewidth=0)
        if mean or one.faint:
            axes.plot(one.xs, ys, **pale)
        if not one.faint:
            marker = "o" if len(ys) <= _MARKED else ""
            axes.plot(one.xs, mean or ys, **look, label=one.name, marker=marker, markersize=4)
    names = sum(not one.faint for one in chart.shown)
    if names > 1:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.01, 0.99),
            ncols=min(names, _NAMES),
            borderaxespad=0,
            handlelength=1.2,
            columnspacing=1.4,
        )
    axes.set_xlabel(chart.x_name, loc="right")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if chart.log:
        axes.set_yscale("log")
        return
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if chart.shares:
        highest = max(max(one.measured) for one in chart.shown)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0, 1 if highest > 0.5 else max(highest, 0.01))
