"""What the frames of a display are put together from."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

#: Minimum widths for three, and for two, sections side by side.
WIDE, MIDDLE = 110, 76
#: Width below which tables have only a name and two figures.
NARROW = 44

#: Colours of how runs stand.
STATUS_STYLE = {
    "running": "cyan",
    "done": "green",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "red",
    "not started": "dim",
}


class Fitting:
    """The first of several forms that is not too wide, else the last."""

    def __init__(self, *forms: RenderableType) -> None:
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        free = options.update(width=10_000)
        widths = (Measurement.get(console, free, form).maximum for form in self._forms)
        fitting = (
            form
            for form, width in zip(self._forms, widths, strict=True)
            if width <= options.max_width
        )
        yield next(fitting, self._forms[-1])


def section(title: str, body: RenderableType) -> Panel:
    """A frame with a title."""
    return Panel(body, title=Text(title, style="bold"), title_align="left", border_style="dim")


def side_by_side(*sections: Panel) -> Table:
    """Sections of equal width."""
    grid = Table.grid(expand=True)
    for _ in sections:
        grid.add_column(ratio=1)
    grid.add_row(*sections)
    return grid


def pair(name: str, text: str) -> Text:
    """A figure after its name."""
    return Text.assemble((f"{name} ", "dim"), text)


def flow(pairs: Iterable[Text], width: int) -> list[Text]:
    """Lines of at most ``width`` that break between pairs, not inside one."""
    lines: list[Text] = []
    for part in pairs:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1].append("   ").append(part)
        else:
            lines.append(part)
    return lines


def table_of(*columns: tuple[str, str]) -> Table:
    """A table without lines. columns: title, and ``left`` (names, which fold) or ``right``."""
    table = Table(box=None, expand=True, header_style="dim", padding=(0, 1), pad_edge=False)
    for title, side in columns:
        if side == "left":
            table.add_column(title, overflow="fold", ratio=1)
        else:
            table.add_column(title, justify="right", no_wrap=True)
    return table


def listing(*columns: tuple[str, str]) -> Table:
    """A table without lines, as wide as what is in it.

    columns: title, and ``left`` (long texts fold), ``whole`` (they do not) or ``right``.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, side in columns:
        if side == "left":
            table.add_column(Text(title), overflow="fold")
        else:
            justify: JustifyMethod = "right" if side == "right" else "left"
            table.add_column(Text(title), justify=justify, no_wrap=True)
    return table


def signed(text: str, change: float, sure: bool) -> Text:
    """``text`` about a ``change``, green or red where it is more than noise."""
    return Text(text, style="" if not sure else "green" if change > 0 else "red")
