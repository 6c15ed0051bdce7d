"""A ``Why`` in the terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from rlforge.config.overrides import assignments
from rlforge.errors import command_line
from rlforge.record.signals import Signal
from rlforge.show.formatting import number, percent, sparkline
from rlforge.show.panels import Listing
from rlforge.show.replay import excerpt, title
from rlforge.show.why import Curve, Telling, Why

#: Turns of a game that are shown in full.
_TURNS = 2


def pieces(why: Why, run_dir: Path) -> Iterator[RenderableType]:
    """Parts of a page, the verdict first; commands stand in one line, however wide."""
    open_ones = [one for one, _, _ in why.signals if one.until is None]
    barren = any(one.weight != "slow" for one in open_ones)
    style = "bold red" if barren else "bold yellow" if open_ones or not why.usual else "bold green"
    yield Text(f"{why.verdict[:1].upper()}{why.verdict[1:]}.", style)
    yield Text(why.about, "dim")
    yield from (Text(sentence, "yellow") for sentence in why.damage)
    if why.results:
        yield ""
        yield _table("evaluation", why.results)
    if why.usual:
        yield Text("\nNo signal that the run learns less than it could.")
    for signal, when, curves in why.signals:
        yield ""
        yield from _signal(signal, when, why.causes.get(signal.name, ()), run_dir)
        if curves:
            yield _table("figure", curves)
    if why.usual:
        yield _table("figure", why.usual)
    if why.no_games:
        yield Text(f"\nNo games to show: {why.no_games}.")
    for game in why.games:
        yield from _game(game, run_dir)
    yield from _next(why, open_ones, run_dir)


def _signal(
    signal: Signal, when: str, brought: Sequence[str], run_dir: Path
) -> Iterator[RenderableType]:
    ended = signal.until is not None
    style = "dim" if ended else "yellow" if signal.weight == "slow" else "bold red"
    yield Text.assemble((f" {signal.name} ", f"{style} reverse"), (f"  {when}", "dim"))
    yield Text(f"{signal.text[:1].upper()}{signal.text[1:]}.", "dim" if ended else "")
    if brought and not ended:
        yield Text(f"follows from: {', '.join(brought)}")
        return
    yield Text(f"what to change: {_mend(signal, run_dir)}", "dim" if ended else "")
    if signal.change and not ended:
        yield _command(assignments(signal.change))


def _mend(signal: Signal, run_dir: Path) -> str:
    """The mend, whose commands are of this run."""
    return re.sub(r"\bRUN(?=`| )", lambda _: shlex.quote(str(run_dir)), signal.mend)


def _table(name: str, curves: Sequence[Curve]) -> RenderableType:
    table = Listing(name, "curve", "first", "last", "least", "most", left=[name], whole=["curve"])
    for curve in curves:
        low, width = (0.0, 1.0) if curve.shares else (curve.least, curve.most - curve.least)
        shares = [None if y is None else (y - low) / width if width else 0.0 for y in curve.points]
        figures = (curve.first, curve.last, curve.least, curve.most)
        texts = (percent(x) if curve.shares else number(x, 3) for x in figures)
        table.add_row(curve.name, sparkline(shares), *texts)
    return table


def _game(game: Telling, run_dir: Path) -> Iterator[RenderableType]:
    spec = game.record.spec
    yield ""
    yield Rule(Text(game.why, "bold"), align="left", characters="━")
    yield Text(title(spec))
    yield from excerpt(game.record, game.turns[:_TURNS])
    yield _command(command_line("replay", run_dir, spec.game_id))


def _next(why: Why, open_ones: Sequence[Signal], run_dir: Path) -> Iterator[RenderableType]:
    yield ""
    name = "what to change" if open_ones else "further"
    yield Rule(Text(name, "bold"), align="left", characters="━")
    for signal in open_ones:
        brought = why.causes.get(signal.name)
        said = f"follows from {', '.join(brought)}" if brought else _mend(signal, run_dir)
        values = f" ({assignments(signal.change)})" if signal.change and not brought else ""
        yield Text.assemble((f"{signal.name}: ", "bold"), said, (values, "cyan"))
    if open_ones and not why.change:
        yield Text(f"No value of a key mends {open_ones[0].name}: it takes the step above.")
    if why.again:
        yield Text("to try it:")
        yield _command(why.again)
    elif why.change:
        yield _command(assignments(why.change))
    if not open_ones:
        yield _command(command_line("report", run_dir))
        yield _command(command_line("replay", run_dir))


def _command(text: str) -> RenderableType:
    # A line that is broken cannot be pasted.
    return Group(Text(f"  {text}", "cyan", no_wrap=True, overflow="ignore"))
