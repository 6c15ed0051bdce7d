"""The main curves of a run as one SVG file, for pages that show pictures, such as model cards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlforge.tracking.formatting import LEARNER_LABELS
from rlforge.tracking.report import curves, windows
from rlforge.tracking.report.charts import HEIGHT, WIDTH, Chart, Series, plot
from rlforge.tracking.report.data import RunData
from rlforge.tracking.report.html import Html, el

#: Charts in a row, pixels between them, and pixels above each for title and legend.
_COLUMNS, _GAP, _HEAD = 2, 16, 42

#: Learner metrics that are drawn after the results.
_LEARNING = ("reward_mean", "entropy")

_STYLE = Path(__file__).with_name("style.css")


def picture(run: RunData) -> str | None:
    """Results, reward and entropy over the run, as an SVG document; None without any of them.

    Its colours are those of the report, light or dark as the reader's system.
    """
    charts = windows.results(run) if run.continuous else curves.outcomes(run)
    charts += [curves.metric(run, key, LEARNER_LABELS[key]) for key in _LEARNING]
    drawn = [(chart, shown) for chart in charts if (shown := chart.shown)]
    if not drawn:
        return None
    step_x, step_y = WIDTH + _GAP, _HEAD + HEIGHT + _GAP
    columns = min(_COLUMNS, len(drawn))
    width, height = _GAP + columns * step_x, _GAP - (-len(drawn) // columns) * step_y
    cells = [
        el(
            "g",
            *_head(chart, shown),
            plot(chart, shown, x=0, y=_HEAD, width=WIDTH, height=HEIGHT),
            transform=f"translate({_GAP + n % columns * step_x} {_GAP + n // columns * step_y})",
        )
        for n, (chart, shown) in enumerate(drawn)
    ]
    return el(
        "svg",
        el("style", Html(_STYLE.read_text(encoding="utf-8"))),
        el("rect", width=width, height=height, style="fill:var(--card)"),
        *cells,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        font_family="system-ui, sans-serif",
    )


def _head(chart: Chart, shown: Sequence[Series]) -> list[Html]:
    """The title, and a legend where there are several lines."""
    title = el(
        "text", chart.caption, x=4, y=14, style="fill:var(--ink);font-size:14px;font-weight:600"
    )
    if len(shown) < 2:
        return [title]
    entries = [
        part
        for one in shown
        for part in (
            el("tspan", "■ ", cls=one.colour, fill="currentColor", dx=10),
            el("tspan", one.name),
        )
    ]
    return [title, el("text", *entries, y=32, style="fill:var(--soft);font-size:12px")]
