"""The main curves of a run as a picture, for READMEs and model cards; extra ``plots``."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

from rlforge.config.plugins import RUN_KINDS
from rlforge.show.formatting import LEARNER_LABELS
from rlforge.show.report import curves
from rlforge.show.report.charts import (
    SMOOTH_FROM,
    Chart,
    Series,
    tick_labels,
    trailing_mean,
    y_ticks,
)
from rlforge.show.report.data import RunData
from rlforge.system.packages import need_packages

#: Learner metrics that are drawn after the results.
_LEARNING = ("reward_mean", "entropy")

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
    """Results, reward and entropy as SVG, or None; ConfigError where matplotlib is missing."""
    charts = resolve_name(RUN_KINDS.find(run.kind).results)(run)
    charts += [curves.metric(run, key, LEARNER_LABELS[key]) for key in _LEARNING]
    drawn = [(chart, shown) for chart in charts if (shown := chart.shown)]
    if not drawn:
        return None
    need_packages("curves.svg", "plots", "matplotlib")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.3 * columns, 2.7 * rows))
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for n, (chart, shown) in enumerate(drawn):
            row = drawn[n - n % columns :][:columns]
            most = max(len(lines) for _, lines in row)  # one has no legend
            lines = -(-most // _NAMES) if most > 1 else 0
            places[n].set_title(chart.caption, pad=8 + 16 * lines)
            _draw(places[n], chart, shown)
        for axes in places[len(drawn) :]:
            axes.set_axis_off()
        page = io.StringIO()
        unsaid = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(page, format="svg", metadata=unsaid)
    document = page.getvalue()
    return document[document.index("<svg") :]  # without a document type, which is an address


def _draw(axes: Any, chart: Chart, shown: Sequence[Series]) -> None:
    """Draw the lines of ``chart`` that have points."""
    from matplotlib.ticker import MaxNLocator

    def measured(ys: Sequence[float | None]) -> list[float]:
        return [math.nan if y is None else y for y in ys]

    for one in shown:
        colour = _COLOURS[one.colour]
        ys = measured(one.ys)
        smoothed = chart.smooth and len(one.measured) >= SMOOTH_FROM
        if one.low is not None and one.high is not None:
            axes.fill_between(one.xs, one.low, one.high, color=colour, alpha=0.14, linewidth=0)
        marker = "o" if len(ys) <= _MARKED else ""
        look: dict[str, Any] = {"color": colour, "clip_on": False, "zorder": 3}
        if smoothed:
            axes.plot(one.xs, ys, **look, alpha=0.28, linewidth=1)
            ys = measured(trailing_mean(one.ys, max(len(one.xs) // 15, 5)))
        axes.plot(one.xs, ys, **look, label=one.name, marker=marker, markersize=4)
    if len(shown) > 1:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.01, 0.99),
            ncols=min(len(shown), _NAMES),
            borderaxespad=0,
            handlelength=1.2,
            columnspacing=1.4,
        )
    axes.set_xlabel(chart.x_name, loc="right")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ticks = y_ticks(chart, shown)
    axes.set_yticks(ticks, tick_labels(ticks, chart.shares))
    axes.set_ylim(ticks[0], ticks[-1])
