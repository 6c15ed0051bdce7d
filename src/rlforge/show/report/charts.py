"""Line charts as values: pages draw them with uPlot, pictures with matplotlib."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from rlforge.show.formatting import number
from rlforge.types import value

#: Most points of a chart; longer series are averaged over equal stretches.
MOST_POINTS = 240
#: Points from which a smoothed line is drawn over the raw one.
SMOOTH_FROM = 30
#: Numbers and changes up to this are rounding errors of float32 sums.
NOISE = 1e-6
#: Colours of the style sheet, ``c0`` …
COLOURS = 8


@value
class Series:
    """A line, with gaps where ys is None. faint: drawn thin, and not named.

    colour: ``c0`` … ``c7``, ``win``, ``draw`` or ``loss``.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    colour: str = "c0"
    faint: bool = False

    @classmethod
    def banded(cls, name: str, points: Iterable[Sequence[float]], colour: str = "c0") -> Series:
        """A line with a band, of points x, y, and the bounds of y."""
        xs, ys, low, high = list(zip(*points, strict=True)) or [()] * 4
        return cls(name=name, xs=xs, ys=ys, low=low, high=high, colour=colour)

    @property
    def measured(self) -> list[float]:
        return [y for y in self.ys if y is not None and math.isfinite(y)]


@value
class Chart:
    """A line chart.

    Attributes:
        shares: y in percent, to 100 or, where no value is above one half, to the highest.
        smooth: Draw the trailing mean over the raw values.
        exact: Set or counted, so that nothing is noise.
        log: y on a scale of powers of ten.
    """

    title: str
    series: Sequence[Series]
    shares: bool = False
    smooth: bool = False
    exact: bool = False
    log: bool = False
    x_name: str = "update"

    @property
    def caption(self) -> str:
        """The title; of a single line with gaps also how much was measured."""
        drawn = [one for one in self.series if one.measured]
        if len(drawn) != 1 or len(drawn[0].measured) == len(drawn[0].ys):
            return self.title
        there, all_of_them = len(drawn[0].measured), len(drawn[0].ys)
        return f"{self.title}, measured in {there} of {all_of_them} {self.x_name}s"

    @property
    def unchanged(self) -> str | None:
        """Caption and value where no line changes by more than noise, else None.

        Example:
            >>> Chart(title="failed", series=[Series(name="a", xs=[1, 2], ys=[0, 0])]).unchanged
            'failed (0)'
        """
        drawn = [one.measured for one in self.series if one.measured]
        noise = 0.0 if self.exact else NOISE
        if not drawn or any(max(ys) - min(ys) > noise for ys in drawn):
            return None
        highest = max(abs(y) for ys in drawn for y in ys)
        if highest > noise and all(len(ys) == 1 for ys in drawn):
            return None  # of one point it is not known
        if 0 < highest <= noise:
            return f"{self.caption} (below {number(NOISE)})"
        said = (f"{number(100 * ys[0], 3)}%" if self.shares else number(ys[0]) for ys in drawn)
        return f"{self.caption} ({', '.join(dict.fromkeys(said))})"

    @property
    def shown(self) -> list[Series]:
        """The series that have points, thinned."""
        return [thin(one) for one in self.series if one.measured]

    def mean(self, one: Series) -> list[float | None] | None:
        """The line to draw over a noisy one, or None."""
        if not self.smooth or len(one.measured) < SMOOTH_FROM:
            return None
        return trailing_mean(one.ys, max(len(one.xs) // 15, 5))

    @property
    def plot(self) -> dict[str, Any]:
        """Data that ``page.js`` draws."""
        lines = [
            {
                "name": one.name,
                "colour": one.colour,
                "faint": one.faint,
                "xs": _rounded(one.xs),
                "ys": _rounded(one.ys),
                "mean": _rounded(self.mean(one)),
                "low": _rounded(one.low),
                "high": _rounded(one.high),
            }
            for one in self.shown
        ]
        return {"x": self.x_name, "shares": self.shares, "log": self.log, "lines": lines}


def thin(one: Series, most: int = MOST_POINTS) -> Series:
    """A series with at most ``most`` points, means of equal stretches."""
    step = -(-len(one.xs) // most)
    if step <= 1:
        return one
    stretches = [slice(start, start + step) for start in range(0, len(one.xs), step)]
    lines = {name: getattr(one, name) for name in ("xs", "ys", "low", "high")}
    means: dict[str, Any] = {
        name: [_mean(numbers[stretch]) for stretch in stretches]
        for name, numbers in lines.items()
        if numbers is not None
    }
    return dataclasses.replace(one, **means)


def trailing_mean(numbers: Sequence[float | None], window: int) -> list[float | None]:
    """Means of the last ``window`` numbers; a gap stays a gap.

    Example:
        >>> trailing_mean([1.0, 3.0, None, 5.0], window=2)
        [1.0, 2.0, None, 5.0]
    """
    return [
        None if last is None else _mean(numbers[max(end - window, 0) : end])
        for end, last in enumerate(numbers, 1)
    ]


def _mean(numbers: Sequence[float | None]) -> float | None:
    there = [number for number in numbers if number is not None]
    return sum(there) / len(there) if there else None


def _rounded(numbers: Sequence[float | None] | None) -> list[float | None] | None:
    # A chart shows no more digits; JSON has only null for what is not finite.
    if numbers is None:
        return None
    return [None if y is None or not math.isfinite(y) else float(f"{y:.7g}") for y in numbers]
