"""Line charts as inline SVG: light to load, readable in light and dark, values on hover."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from rlforge.show.formatting import elo, number
from rlforge.show.report.html import Html, el
from rlforge.types import value

WIDTH, HEIGHT = 360, 210
#: Least room on the left; long tick labels get as much as they need.
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 28
#: Pixels of a character of a tick label (11 px), and between label and axis.
_CHARACTER, _TO_AXIS = 6.4, 6
#: Most points of a chart; longer series are averaged over equal stretches.
MOST_POINTS = 240
#: Number of measured points from which a smoothed line is drawn over the raw one.
SMOOTH_FROM = 30
#: Ranges thinner than this share of their numbers are shown flat: ticks would be rounding errors.
_THINNEST = 1e-9
#: Numbers and ranges below this count as 0: floating point has too few digits for their parts.
_NOTHING = 1e-290
#: Numbers and changes up to this are rounding errors of float32 sums.
NOISE = 1e-6
#: Colours of the style sheet, ``c0`` …
COLOURS = 8


@value
class Series:
    """One line. ys and the bounds of its band are as long as xs; None leaves a gap.

    colour: ``c0`` … ``c7``, or a class of the style sheet such as ``win``.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: str = "c0"

    @property
    def measured(self) -> list[float]:
        """The values that are there."""
        return [y for y in self.ys if y is not None]


@value
class Chart:
    """A line chart.

    shares: y in percent, from 0 to 100 or, where no value is above one half, to the highest.
    smooth: draw the trailing mean over the raw values. exact: set or counted, so nothing is noise.
    """

    title: str
    series: Sequence[Series]
    shares: bool = False
    smooth: bool = False
    exact: bool = False
    x_name: str = "update"

    @property
    def caption(self) -> str:
        """The title and, where a single line has gaps, how much of it was measured."""
        drawn = [one for one in self.series if one.measured]
        if len(drawn) != 1 or len(drawn[0].measured) == len(drawn[0].ys):
            return self.title
        there, all_of_them = len(drawn[0].measured), len(drawn[0].ys)
        return f"{self.title}, measured in {there} of {all_of_them} {self.x_name}s"

    @property
    def unchanged(self) -> str | None:
        """Caption and value where no line changes by more than noise; None for any other chart.

        A single point is unchanged only where it is 0.

        Example:
            >>> Chart(title="failed", series=[Series(name="a", xs=[1, 2], ys=[0, 0])]).unchanged
            'failed (0)'
        """
        drawn = [one.measured for one in self.series if one.measured]
        noise = 0.0 if self.exact else NOISE
        say = _say_percent if self.shares else number
        if not drawn or any(max(ys) - min(ys) > noise for ys in drawn):
            return None
        highest = max(abs(y) for ys in drawn for y in ys)
        if highest > noise and all(len(ys) == 1 for ys in drawn):
            return None
        if 0 < highest <= noise:
            return f"{self.caption} (below {number(NOISE)})"
        return f"{self.caption} ({', '.join(dict.fromkeys(say(ys[0]) for ys in drawn))})"

    @property
    def shown(self) -> list[Series]:
        """The series that have points, thinned."""
        thinned = [thin(one) for one in self.series]
        return [one for one in thinned if any(y is not None for y in one.ys)]


def line_chart(title: str, series: Sequence[Series], **how: Any) -> Html | None:
    """``figure`` of the chart that the arguments describe."""
    return figure(Chart(title=title, series=series, **how))


def figure(chart: Chart) -> Html | None:
    """The chart with its title and legend; None when its series have no points at all."""
    shown = chart.shown
    if not shown:
        return None
    entries = [el("li", el("i", cls=f"key {one.colour}"), one.name) for one in shown]
    legend = el("ul", *entries, cls="legend") if len(shown) > 1 else None
    return el("figure", el("figcaption", chart.caption), legend, _plot(chart, shown))


def y_ticks(chart: Chart, shown: Sequence[Series]) -> list[float]:
    """Round numbers that cover the series ``shown`` with their bands."""
    drawn = [numbers for one in shown for numbers in (one.measured, one.low or (), one.high or ())]
    low, high = min(map(min, filter(None, drawn))), max(map(max, filter(None, drawn)))
    if chart.shares:
        low, high = 0.0, 1.0 if high > 0.5 else max(high, 0.01)
    return nice_ticks(low, high)


def _plot(chart: Chart, shown: Sequence[Series]) -> Html:
    """The lines and axes of a chart whose series ``shown`` has points, an ``svg`` element."""
    shares, x_name = chart.shares, chart.x_name
    xs = sorted({x for one in shown for x in one.xs})
    ticks = y_ticks(chart, shown)
    low, high = ticks[0], ticks[-1]
    first, last = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1
    labels = tick_labels(ticks, shares)
    left = max(_LEFT, math.ceil(max(map(len, labels)) * _CHARACTER) + 2 * _TO_AXIS)

    def at_x(x: float) -> float:
        return left + (x - first) / (last - first) * (WIDTH - left - _RIGHT)

    def at_y(y: float) -> float:
        return _TOP + (high - y) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    say = _say_percent if shares else number
    parts = [*_axes(zip(ticks, labels, strict=True), left, at_y), *_x_axis(xs, at_x, x_name)]
    for one in shown:
        parts += _band(one, at_x, at_y)
        window = max(len(one.xs) // 15, 5)
        smoothed = chart.smooth and len(one.measured) >= SMOOTH_FROM
        parts += _line(one.xs, one.ys, at_x, at_y, f"line {one.colour}{' raw' * smoothed}")
        if smoothed:
            parts += _line(one.xs, trailing_mean(one.ys, window), at_x, at_y, f"line {one.colour}")
    parts += _hover(shown, xs, at_x, say, x_name)
    label = f"{chart.title}: {len(xs)} points, {x_name} {number(first)} to {number(xs[-1])}"
    box = f"0 0 {WIDTH} {HEIGHT}"
    return el("svg", *parts, viewBox=box, role="img", aria_label=label)


def thin(one: Series, most: int = MOST_POINTS) -> Series:
    """``one`` with at most ``most`` points: means of equal stretches of the series."""
    step = -(-len(one.xs) // most)
    if step <= 1:
        return one
    starts = range(0, len(one.xs), step)

    def means(numbers: Sequence[float | None]) -> list[float | None]:
        return [_mean(numbers[start : start + step]) for start in starts]

    def sure(numbers: Sequence[float]) -> list[float]:
        return [sum(part) / len(part) for part in (numbers[s : s + step] for s in starts)]

    return dataclasses.replace(
        one,
        xs=sure(one.xs),
        ys=means(one.ys),
        low=None if one.low is None else sure(one.low),
        high=None if one.high is None else sure(one.high),
    )


def trailing_mean(numbers: Sequence[float | None], window: int) -> list[float | None]:
    """The mean of those of the last ``window`` numbers that are there; a gap stays a gap.

    Example:
        >>> trailing_mean([1.0, 3.0, None, 5.0], window=2)
        [1.0, 2.0, None, 5.0]
    """
    return [
        None if last is None else _mean(numbers[max(end - window, 0) : end])
        for end, last in enumerate(numbers, 1)
    ]


def nice_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers that cover ``low`` to ``high`` in about ``about`` steps.

    A range whose ticks floating point cannot distinguish is shown as a flat line.

    Example:
        >>> nice_ticks(0.0, 0.93)
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if high - low <= max(_THINNEST * max(abs(low), abs(high)), _NOTHING):
        half = abs(low) / 2 if abs(low) > _NOTHING else 0.5
        low, high = low - half, high + half
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough)
    start, stop = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(start, stop + 1)]


def tick_labels(ticks: Sequence[float], shares: bool = False) -> list[str]:
    """Each tick with as many decimals as the step needs; shares as percent.

    Example:
        >>> tick_labels([0.9975, 1.0, 1.0025]), tick_labels([0.0, 0.25], shares=True)
        (['0.9975', '1.0000', '1.0025'], ['0%', '25%'])
        >>> tick_labels([-2e-5, 0.0, 2e-5]), tick_labels([0.0, 2.5e6, 5e6])
        (['-2e-5', '0', '2e-5'], ['0', '2.5M', '5.0M'])
    """
    highest = max(abs(tick) for tick in ticks)
    if shares:
        unit, end = 0.01, "%"
    elif highest < 1e-3:
        # Just below the highest, so that 1e-4 in steps of 2.5e-5 reads 10.0e-5, not 1.00e-4.
        power = math.floor(math.log10(0.999 * highest))
        unit, end = 10.0**power, f"e{power}"
    else:
        sizes = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
        unit, end = next((size for size in sizes if highest >= size[0]), (1.0, ""))
    step = (ticks[1] - ticks[0]) / unit
    decimals = next(n for n in range(20) if _is_whole(step * 10**n))
    return [
        "0" + "%" * shares if tick == 0 else f"{tick / unit:,.{decimals}f}{end}" for tick in ticks
    ]


def _is_whole(amount: float) -> bool:
    return round(amount) > 0 and abs(amount - round(amount)) < 1e-3


def _mean(numbers: Sequence[float | None]) -> float | None:
    there = [number for number in numbers if number is not None]
    return sum(there) / len(there) if there else None


def _say_percent(share: float) -> str:
    return f"{number(100 * share, 3)}%"


_Place = Callable[[float], float]


def _axes(ticks: Iterable[tuple[float, str]], left: int, at_y: _Place) -> list[Html]:
    """A line and a label per tick."""
    parts = []
    for tick, label in ticks:
        y = at_y(tick)
        parts.append(el("line", x1=left, x2=WIDTH - _RIGHT, y1=_px(y), y2=_px(y), cls="grid"))
        parts.append(el("text", label, x=left - _TO_AXIS, y=_px(y + 4), cls="tick end"))
    return parts


def _x_axis(xs: Sequence[float], at_x: _Place, name: str) -> list[Html]:
    """Whole-number ticks inside the range; the name of the axis under its end."""
    ticks = [tick for tick in nice_ticks(xs[0], xs[-1], 6) if xs[0] <= tick <= xs[-1]]
    whole = sorted({round(tick) for tick in ticks}) or [round(xs[0])]
    parts = [
        el("text", number(tick), x=_px(at_x(tick)), y=HEIGHT - 10, cls="tick middle")
        for tick in whole
        if at_x(tick) < WIDTH - 60 or len(whole) == 1
    ]
    return [*parts, el("text", name, x=WIDTH - _RIGHT, y=HEIGHT - 10, cls="tick end")]


def _line(
    xs: Sequence[float], ys: Sequence[float | None], at_x: _Place, at_y: _Place, cls: str
) -> list[Html]:
    """One polyline per stretch without gaps; a single point becomes a dot."""
    points = list(zip(xs, ys, strict=True))
    parts = []
    for there, run in groupby(points, key=lambda point: point[1] is not None):
        if not there:
            continue
        places = [(_px(at_x(x)), _px(at_y(y))) for x, y in run if y is not None]
        if len(places) == 1:
            parts.append(el("circle", cx=places[0][0], cy=places[0][1], r=3, cls=cls))
        else:
            parts.append(el("polyline", points=" ".join(f"{x},{y}" for x, y in places), cls=cls))
    return parts


def _band(one: Series, at_x: _Place, at_y: _Place) -> list[Html]:
    if one.low is None or one.high is None or len(one.xs) < 2:
        return []
    upper = [f"{_px(at_x(x))},{_px(at_y(y))}" for x, y in zip(one.xs, one.high, strict=True)]
    lower = [f"{_px(at_x(x))},{_px(at_y(y))}" for x, y in zip(one.xs, one.low, strict=True)]
    return [el("polygon", points=" ".join([*upper, *reversed(lower)]), cls=f"band {one.colour}")]


def _hover(
    shown: Sequence[Series],
    xs: Sequence[float],
    at_x: _Place,
    say: Callable[[float], str],
    x_name: str,
) -> list[Html]:
    """An invisible strip per x, which shows all values there under the pointer."""
    rows: dict[float, list[str]] = {}
    for one in shown:
        bands = zip(one.low, one.high, strict=True) if one.low and one.high else None
        for x, y in zip(one.xs, one.ys, strict=True):
            band = next(bands) if bands else None
            if y is not None:
                sure = f" ({say(band[0])} to {say(band[1])})" if band else ""
                rows.setdefault(x, []).append(f"{one.name}: {say(y)}{sure}")
    edges = [at_x(x) for x in xs]
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    starts, ends = [edges[0] - 6, *middles], [*middles, edges[-1] + 6]
    return [
        el(
            "rect",
            el("title", "\n".join([f"{x_name} {number(x)}", *rows[x]])),
            x=_px(start),
            y=_TOP,
            width=_px(end - start),
            height=HEIGHT - _TOP - _BOTTOM,
            cls="strip",
        )
        for x, start, end in zip(xs, starts, ends, strict=True)
        if x in rows
    ]


def _px(place: float) -> str:
    return f"{place:.1f}".removesuffix(".0")


#: Pixels of the plot of strengths: width, of a row, of the names, of the axis below.
_WIDTH, _ROW, _NAMES, _AXIS = 720, 30, 220, 30
#: Most characters of a name beside its interval.
_LONGEST = 30


def plot_of_strengths(rows: Sequence[tuple[str, float, float, float]]) -> Html:
    """Strengths in Elo points, one row each: name, strength, and the bounds of its interval."""
    low, high = min(row[2] for row in rows), max(row[3] for row in rows)
    ticks = nice_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    span, height = max(high - low, 1e-9), _ROW * len(rows)

    def at(points: float) -> str:
        return f"{_NAMES + (points - low) / span * (_WIDTH - _NAMES - 20):.1f}"

    parts = []
    for tick in ticks:
        parts += [
            el("line", x1=at(tick), x2=at(tick), y1=0, y2=height, cls="grid"),
            el("text", elo(tick), x=at(tick), y=height + 18, cls="tick middle"),
        ]
    for place, (name, points, least, most) in enumerate(rows):
        y = _ROW * (place + 0.5)
        short = name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
        about = f"{name}: {elo(points)} ({elo(least)} to {elo(most)})"
        row = [
            el("title", about),
            el("text", short, x=_NAMES - 12, y=y + 4, cls="tick end"),
            el("line", x1=at(least), x2=at(most), y1=y, y2=y, cls="line"),
            el("circle", cx=at(points), cy=y, r=4, cls="line"),
        ]
        parts.append(el("g", *row, cls="c0"))
    box = f"0 0 {_WIDTH} {height + _AXIS}"
    label = "Strength of each member in Elo points, with 95 % intervals"
    drawn = el("svg", *parts, viewBox=box, role="img", aria_label=label)
    return el("figure", drawn, style="max-width:none;margin-bottom:1rem")
