"""Continuous training drawn with Rich: the windows, and who traded in the last one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rlforge.record.progress import Progress, WindowRow
from rlforge.show.formatting import count, number, percent, sparkline
from rlforge.show.panels import MIDDLE, NARROW, WIDE, flow, pair, section, signed, table_of
from rlforge.statistics import significant

#: Columns of the table of windows, each with the width from which it fits.
_COLUMNS = {
    "window": 0,
    "decisions": WIDE,
    "wins": WIDE,
    "reward": NARROW,
    "to control": 0,
    "95% CI": MIDDLE,
    "trained": 80,
    "version": 56,
}
#: Whether a version is deployed, in a word and its colour.
_STATES = {True: ("live", "green"), False: ("refused", "red"), None: ("on trial", "yellow")}
#: Windows of the table; the curve has all that are known.
_ROWS = 8


def window_sections(p: Progress, width: int) -> Iterator[RenderableType]:
    """The sections below the head, for a display of so many columns."""
    if not p.windows:
        yield section("Windows", Text("no window is done yet", style="dim"))
        return
    yield section("Windows", _windows(p, width))
    last = p.windows[-1]
    if p.traders:
        yield section(f"Decisions of {last.window_id}", _traders(p, width))
    if last.scores:
        scores = (
            pair(name.replace("_", " "), number(score, 3)) for name, score in last.scores.items()
        )
        yield section(f"Scores of {last.window_id}", Group(*flow(scores, width - 4)))


def _windows(p: Progress, width: int) -> RenderableType:
    titles = [title for title, least in _COLUMNS.items() if width >= least]
    table = table_of(("window", "left"), *((title, "right") for title in titles[1:]))
    for row in p.windows[-_ROWS:]:
        version = Text("–", style="dim")
        if row.version is not None:
            version = Text.assemble(row.version, " ", _STATES[row.deployed])
        unknown = row.low is None or row.high is None
        interval = "–" if unknown else f"{row.low:+.3f} {row.high:+.3f}"
        cells: dict[str, RenderableType] = {
            "window": Text(row.window_id),
            "decisions": count(row.decisions),
            "reward": Text(number(row.reward, 3), style="bold"),
            "to control": _difference(row),
            "95% CI": Text(interval, style="dim"),
            "wins": percent(row.win_rate),
            "trained": count(row.trained),
            "version": version,
        }
        table.add_row(*(cells[title] for title in titles))
    below: list[RenderableType] = []
    rewards = tuple(row.reward for row in p.windows if row.reward is not None)
    if len(rewards) > 1:
        below.append(pair("reward, 0 to 1", sparkline(rewards)))
    if reason := p.windows[-1].reason:
        below.append(Text(reason, style="yellow"))
    return Group(table, *below)


def _difference(row: WindowRow) -> Text:
    """Coloured where its interval excludes 0."""
    if row.difference is None:
        return Text("–", style="dim")
    sure = row.low is not None and row.high is not None and significant((row.low, row.high))
    return signed(f"{row.difference:+.3f}", row.difference, sure)


def _traders(p: Progress, width: int) -> RenderableType:
    titles = ["decisions", "refused", "trades", "wins", "reward", "pnl"]
    if width < MIDDLE:
        titles = ["decisions", "wins", "reward"]
    if width < NARROW:
        titles = ["wins", "reward"]
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
