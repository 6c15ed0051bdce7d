"""Parts of views in a terminal, with Rich: sections, pairs and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

STATUS_STYLE = {
    "running": "cyan",
    "done": "green",
    "interrupted": "yellow",
    "failed": "red",
    "killed": "red",
    "damaged": "red",
}


class Fitting:
    """The first form that is not too wide, else the last."""

    def __init__(self, *forms: RenderableType) -> None:
        self._forms = forms

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Within its limit Rich would fold and shrink a form until it fits.
        free = options.update(width=10_000)
        widths = (Measurement.get(console, free, form).maximum for form in self._forms)
        fitting = (
            form
            for form, width in zip(self._forms, widths, strict=True)
            if width <= options.max_width
        )
        yield next(fitting, self._forms[-1])


def section(title: str, body: RenderableType) -> Panel:
    return Panel(body, title=Text(title, style="bold"), title_align="left", border_style="dim")


class SideBySide(Columns):
    """Parts of at least ``width`` in as many columns as fit; sections: 2 in 80, 3 in 120."""

    def __init__(self, *parts: RenderableType, width: int = 38, gap: int = 0) -> None:
        super().__init__(parts, padding=(0, gap, 0, 0), expand=True)
        self._least, self._gap = width, gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.width = min(self._least, options.max_width - self._gap)  # Rich fails if none fits
        return super().__rich_console__(console, options)


def pair(name: str, text: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), text)


def pairs(*figures: Text) -> Columns:
    return Columns(figures, padding=(0, 3, 0, 0))


class Listing(Table):
    """A table without lines, as wide as its cells.

    left, whole: titles of texts that fold, and of texts that do not; all others are of figures.
    """

    def __init__(
        self, *titles: str, left: Collection[str] = (), whole: Collection[str] = ()
    ) -> None:
        super().__init__(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        for title in titles:
            if title in left:
                # Columns of figures keep their width: without a least one, texts would get none.
                self.add_column(Text(title), overflow="fold", min_width=min(len(title), 8))
            else:
                side: JustifyMethod = "left" if title in whole else "right"
                self.add_column(Text(title), justify=side, no_wrap=True)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        # Brackets of moves and names would be read as markup.
        texts = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*texts, **options)


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names with texts, which fold."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, content in rows:
        table.add_row(Text(name), Text(content) if isinstance(content, str) else content)
    return table


def cut(rows: RenderableType, left: int, what: str) -> RenderableType:
    return Group(rows, Text(f"and {left:,} more {what}", style="dim")) if left > 0 else rows


def signed(text: str, change: float, sure: bool) -> Text:
    """``text`` about a ``change``, green or red where it is sure."""
    return Text(text, style="" if not sure else "green" if change > 0 else "red")
