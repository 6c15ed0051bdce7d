"""Continuous training drawn with Rich: the windows, and who traded in the last one."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from rlforge.record.progress import Progress, WindowRow
from rlforge.show.formatting import count, number, percent, sparkline
from rlforge.show.panels import Listing, pair, pairs, section, signed
from rlforge.statistics import significant

#: Whether a version is deployed, in a word and its colour.
_STATES = {True: ("live", "green"), False: ("refused", "red"), None: ("on trial", "yellow")}
#: Windows of the table; the curve has all that are known.
_ROWS = 8


def window_sections(p: Progress) -> Iterator[RenderableType]:
    if not p.windows:
        yield section("Windows", Text("no window is done yet", style="dim"))
        return
    yield section("Windows", _windows(p))
    last = p.windows[-1]
    if p.traders:
        yield section(f"Decisions of {last.window_id}", _traders(p))
    if last.scores:
        scores = (
            pair(name.replace("_", " "), number(score, 3)) for name, score in last.scores.items()
        )
        yield section(f"Scores of {last.window_id}", pairs(*scores))


def _windows(p: Progress) -> RenderableType:
    titles = ("window", "reward", "to control  95% CI", "wins", "trained", "version")
    table = Listing(*titles, whole=["window"], left=["version"])
    for row in p.windows[-_ROWS:]:
        version = Text("–", style="dim")
        if row.version is not None:
            version = Text.assemble(row.version, " ", _STATES[row.deployed])
        table.add_row(
            row.window_id,
            Text(number(row.reward, 3), style="bold"),
            _difference(row),
            percent(row.win_rate),
            f"{count(row.trained)}/{count(row.decisions)}",
            version,
        )
    below: list[RenderableType] = []
    rewards = tuple(row.reward for row in p.windows if row.reward is not None)
    # One point is no curve.
    if len(rewards) > 1:
        below.append(pair("reward, 0 to 1", sparkline(rewards)))
    if reason := p.windows[-1].reason:
        below.append(Text(reason, style="yellow"))
    return Group(table, *below)


def _difference(row: WindowRow) -> Text:
    if row.difference is None:
        return Text("–", style="dim")
    if row.low is None or row.high is None:
        return Text(f"{row.difference:+.3f}")
    sure = significant((row.low, row.high))
    interval = (f"  {row.low:+.3f} {row.high:+.3f}", "dim")
    return Text.assemble(signed(f"{row.difference:+.3f}", row.difference, sure), interval)


def _traders(p: Progress) -> RenderableType:
    titles = ("agents", "decisions", "refused", "trades", "wins", "reward", "pnl")
    table = Listing(*titles, left=["agents"])
    for row in p.traders:
        table.add_row(
            row.name,
            count(row.decisions),
            count(row.refused),
            count(row.trades),
            percent(row.win_rate),
            number(row.avg_reward, 3),
            number(row.avg_pnl, 3),
        )
    return table
