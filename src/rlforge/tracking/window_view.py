"""Continuous training drawn with Rich: the windows, and who traded in the last one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from rlforge.tracking.formatting import count, number, percent, sparkline
from rlforge.tracking.panels import MIDDLE, WIDE, pair, section, table_of
from rlforge.tracking.progress import Progress, WindowRow

#: Windows of the table; the curve has all that are known.
_ROWS = 8


def window_sections(p: Progress, width: int) -> Iterator[Panel]:
    """The sections below the head, for a display of so many columns."""
    if not p.windows:
        yield section("Windows", Text("no window is done yet", style="dim"))
        return
    yield section("Windows", _windows(p, width))
    if p.traders:
        yield section(f"Decisions of {p.windows[-1].window_id}", _traders(p, width))


def _windows(p: Progress, width: int) -> RenderableType:
    titles = ["window", "reward", "to control", "version"]
    if width >= MIDDLE:
        titles = ["window", "reward", "to control", "95% CI", "trained", "version"]
    if width >= WIDE:
        titles = ["window", "decisions", "wins", *titles[1:]]
    table = table_of(*((title, "right") for title in titles))
    for row in p.windows[-_ROWS:]:
        cells: dict[str, RenderableType] = {
            "window": Text(row.window_id),
            "decisions": count(row.decisions),
            "reward": Text(number(row.reward, 3), style="bold"),
            "to control": _signed(row.difference),
            "95% CI": Text(_interval(row), style="dim"),
            "wins": percent(row.win_rate),
            "trained": count(row.trained),
            "version": _version(row),
        }
        table.add_row(*(cells[title] for title in titles))
    below: list[RenderableType] = []
    rewards = tuple(row.reward for row in p.windows if row.reward is not None)
    if len(rewards) > 1:
        below.append(pair("reward, 0 to 1", sparkline(rewards)))
    if reason := p.windows[-1].reason:
        below.append(Text(reason, style="yellow"))
    return Group(table, *below)


def _signed(difference: float | None) -> Text:
    if difference is None:
        return Text("–", style="dim")
    style = "green" if difference > 0 else "red" if difference < 0 else ""
    return Text(f"{difference:+.3f}", style=style)


def _interval(row: WindowRow) -> str:
    if row.low is None or row.high is None:
        return "–"
    return f"{row.low:+.3f} {row.high:+.3f}"


def _version(row: WindowRow) -> Text:
    if row.version is None:
        return Text("–", style="dim")
    states = {True: ("live", "green"), False: ("refused", "red"), None: ("on trial", "yellow")}
    word, style = states[row.deployed]
    return Text.assemble(row.version, " ", (word, style))


def _traders(p: Progress, width: int) -> RenderableType:
    titles = ["decisions", "refused", "trades", "wins", "reward", "pnl"]
    if width < MIDDLE:
        titles = ["decisions", "refused", "wins", "reward"]
    table = table_of(("agents", "left"), *((title, "right") for title in titles))
    for row in p.traders:
        cells = {
            "decisions": count(row.decisions),
            "refused": count(row.refused),
            "trades": count(row.trades),
            "wins": percent(row.win_rate),
            "reward": number(row.avg_reward, 3),
            "pnl": number(row.avg_pnl, 3),
        }
        table.add_row(Text(row.name), *(cells[title] for title in titles))
    return table
