"""A ``Progress`` drawn with Rich; complete at 80 columns, three sections side by side from 110."""

from __future__ import annotations

from pkgutil import resolve_name

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlforge.config.plugins import RUN_KINDS
from rlforge.record.bottleneck import bottleneck
from rlforge.record.progress import Progress, WinRateRow
from rlforge.show.formatting import (
    LEARNER_LABELS,
    NOTHING,
    count,
    dollars,
    duration,
    elo,
    number,
    per_second,
    percent,
    points,
    sparkline,
)
from rlforge.show.panels import (
    MIDDLE,
    NARROW,
    STATUS_STYLE,
    WIDE,
    flow,
    pair,
    section,
    side_by_side,
    signed,
    table_of,
)
from rlforge.statistics import significant, wilson_interval
from rlforge.system.hardware import GpuLoad

#: Most rows of a table, and rows that are shown even on the smallest terminal.
MOST_ROWS, LEAST_ROWS = 12, 3
#: Age of the last report, in seconds, after which a running run is shown as silent.
SILENT_AFTER_S = 60.0


class ProgressView:
    """Renders ``progress``; ``now``: Unix time, to show the age of an old one."""

    def __init__(self, progress: Progress, now: float | None = None) -> None:
        self.progress = progress
        self.now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        p, width = self.progress, options.max_width

        def lines(section: RenderableType) -> int:
            return len(console.render_lines(section, options, pad=False))

        sections: list[RenderableType] = []
        if p.unit != "update":
            kinds = map(RUN_KINDS.find, RUN_KINDS.own)
            kind = next(kind for kind in kinds if kind.unit == p.unit)
            first, *sections = resolve_name(kind.progress)(p, width)
        else:
            first = section("Win rate", _win_rates(p, width))
            if p.alarms:
                newest = [
                    Text.assemble((f"{alarm.step}  ", "dim"), (alarm.text, "yellow"))
                    for alarm in reversed(p.alarms[-LEAST_ROWS:])
                ]
                rest = len(p.alarms) - LEAST_ROWS
                alarms = _with_rest(Group(*newest), rest, "alarms")
                first = Group(first, section("Sentinel", alarms))
            if p.exact:
                first = Group(first, section("Distance from equilibrium", _exact(p, width)))
        top = Group(self._head(width), first)
        yield top
        # A live frame taller than the terminal flickers: tables are cut, extra sections left out.
        room = console.height - 1 - lines(top) if console.is_terminal else 1000
        if p.unit == "update":
            middle, *sections = _of_games(p, width, rows=min(max(room - 4, LEAST_ROWS), MOST_ROWS))
            yield middle
            room -= lines(middle)
        for part in sections:
            room -= lines(part)
            if room < 0:
                break
            yield part

    def _head(self, width: int) -> Panel:
        p = self.progress
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(no_wrap=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        done = ProgressBar(total=max(p.total_updates, 1), completed=p.update)
        if p.total_updates or p.unit == "update":
            share = p.update / p.total_updates if p.total_updates else 1.0
            left = f"  ETA {duration(p.eta_s)}" if p.status == "running" else ""
            bar.add_row(f"{p.unit}s", done, f"{p.update}/{p.total_updates}  {percent(share)}{left}")
        else:  # continuous training without an end
            bar.add_row("windows", str(p.update), "")
        counts = [
            pair("games", f"{count(p.games)} ({per_second(p.games_per_s)})"),
            pair("tokens", f"{count(p.tokens)} ({per_second(p.tokens_per_s)})"),
            pair("samples", count(p.samples)),
        ]
        if p.unit == "window":
            live = [row.version for row in p.windows if row.deployed and row.version]
            counts = [
                pair("now", p.activity or p.status),
                pair("serving", live[-1] if live else NOTHING),
                pair("samples", count(p.samples)),
            ]
        shown = ("loss", "reward_mean", "entropy", "kl", "grad_norm", "lr")
        learner = [
            pair(LEARNER_LABELS[key], number(p.learner[key], 3))
            for key in shown
            if key in p.learner
        ]
        body = Group(bar, *flow(counts, width - 4), *flow(learner, width - 4))
        state = Text.assemble((p.status, STATUS_STYLE[p.status]), f" · {duration(p.elapsed_s)}")
        if self.now is not None and p.status == "running":
            age = self.now - p.updated_at
            if age > SILENT_AFTER_S:
                state.append(f" · no report for {duration(age)}", style="yellow")
        title = Text(p.run_name, style="bold")
        title.truncate(max(width - 8, 8), overflow="ellipsis")
        return Panel(body, title=title, title_align="left", subtitle=state, subtitle_align="right")


def _of_games(p: Progress, width: int, rows: int) -> list[RenderableType]:
    """The sections below the win rates, the first of which is always shown."""
    ladder = section("Ladder", _ladder(p, rows))
    ratings = section("Ratings", _ratings(p, rows))
    machine = section("Engine and learner", _machine(p))
    matches = section("Games between", _matches(p, rows))
    games = [section("Training games", _collection(p, width))] if p.collection else []
    if width >= WIDE:
        return [side_by_side(ladder, ratings, machine), *games, matches]
    if width >= MIDDLE:
        return [side_by_side(ladder, machine), *games, side_by_side(ratings, matches)]
    return [Group(ladder, machine), *games, ratings, matches]


def _win_rates(p: Progress, width: int) -> RenderableType:
    if not p.win_rates:
        return Text("no evaluation yet", style="dim")
    titles = ["opponent", "win", "change"]
    if width >= NARROW:
        titles = ["opponent", "win  95% CI", "change", "at"]
    if width >= MIDDLE:
        titles = ["environment", "opponent", "win  95% CI", "draw", "loss", "change", "at"]
    if width >= WIDE:
        titles.append("curve")
    alone = width < NARROW and len({row.env_id for row in p.win_rates}) == 1
    named = ("environment", "opponent")
    table = table_of(*((title, "left" if title in named else "right") for title in titles))
    for row in p.win_rates:
        low, high = (percent(bound) for bound in row.ci95)
        opponent = row.opponent if width >= MIDDLE or alone else f"{row.opponent} in {row.env_id}"
        win = Text(percent(row.win_rate), style="bold")
        cells: dict[str, RenderableType] = {
            "environment": Text(row.env_id),  # Rich interprets markup in plain strings
            "opponent": Text(opponent),
            "win": win,
            "win  95% CI": Text.assemble(win, (f"  {low}–{high}", "dim")),
            "draw": percent(row.draw_rate),
            "loss": percent(row.loss_rate),
            "change": _change(row),
            "at": str(row.step),
            "curve": sparkline(row.history),
        }
        table.add_row(*(cells[title] for title in titles))
    return table


def _exact(p: Progress, width: int) -> RenderableType:
    titles = ["environment", "NashConv", "start", "at", *(["curve"] if width >= MIDDLE else [])]
    table = table_of(*((title, "left" if title == "environment" else "right") for title in titles))
    for row in p.exact:
        cells: list[RenderableType] = [
            Text(row.env_id),
            Text(f"{row.nash_conv:.4f}", style="bold"),
            f"{row.start:.4f}",
            str(row.step),
            *([sparkline(row.history)] if width >= MIDDLE else []),
        ]
        table.add_row(*cells)
    return table


def _change(row: WinRateRow) -> Text:
    """Coloured where the intervals of start and end do not overlap, with as many games each."""
    if row.step == row.start_step:
        return Text("start", style="dim")
    change = row.win_rate - row.start_win_rate
    start = wilson_interval(round(row.start_win_rate * row.games), row.games)
    return signed(points(change), change, significant(start, row.ci95))


def _ladder(p: Progress, most: int) -> RenderableType:
    """Strengths by games alone, whatever their order; policies of equal weights on one row."""
    if not p.ladder:
        return Text("no rated games yet", style="dim")
    table = table_of(("policy", "left"), ("Elo, 95%", "right"), ("games", "right"))
    for row in p.ladder[:most]:
        half = (row.high - row.low) / 2
        points = Text.assemble(elo(row.elo), (f" ± {half:.0f}", "dim"))
        table.add_row(Text(row.name), points, count(row.games))
    return _with_rest(table, len(p.ladder) - most, "policies")


def _ratings(p: Progress, most: int) -> RenderableType:
    """Policies that have been rated; the others have only inherited their ratings."""
    rated = [row for row in p.ratings if row.rated_games != 0]
    if not rated:
        return Text("no rated games yet", style="dim")
    table = table_of(("policy", "left"), ("rating", "right"), ("games", "right"))
    for row in rated[:most]:
        style = "" if row.active else "dim"
        rating = Text.assemble(f"{row.mu:.1f}", (f" ± {row.sigma:.1f}", "dim"))
        table.add_row(Text(row.uid, style=style), rating, count(row.rated_games))
    return _with_rest(table, len(p.ratings) - min(len(rated), most), "policies")


def _matches(p: Progress, most: int) -> RenderableType:
    if not p.matches:
        return Text("no rated games yet", style="dim")
    table = table_of(("policies", "left"), ("games", "right"))
    for row in p.matches[:most]:
        table.add_row(Text(f"{row.first} – {row.second}"), count(row.games))
    return _with_rest(table, len(p.matches) - most, "pairs")


def _with_rest(table: RenderableType, left: int, what: str) -> RenderableType:
    return Group(table, Text(f"and {left} more {what}", style="dim")) if left > 0 else table


def _machine(p: Progress) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(ratio=1, overflow="fold")
    for name, key in (
        ("engine busy", "engine_share"),
        ("learner busy", "learner_share"),
        ("neither", "idle_share"),
    ):
        table.add_row(name, _share_bar(p.shares.get(key)))
    for engine in p.engines:
        table.add_row(
            Text(engine.name, overflow="fold"),
            f"{engine.running} running, {engine.queued} queued\n"
            f"{count(engine.tokens)} tokens ({per_second(engine.tok_s)})",
        )
    for one in p.api:
        taken = f"{count(one.prompt_tokens + one.answer_tokens)} tokens, {dollars(one)}"
        asked = f"{count(one.games)} games, {count(one.requests)} requests ({one.latency_s:.1f} s)"
        table.add_row(Text(one.uid, overflow="fold"), f"{asked}\n{taken}")
    for gpu in p.gpus:
        table.add_row(f"GPU {gpu.index}", _load(gpu))
    if (playing := p.shares.get("games_in_progress")) is not None:
        wanted, limit = p.shares["games_wanted"], p.shares["games_most"]
        table.add_row(
            "in progress", f"{playing:.0f} games, {wanted:.0f} wanted, {limit:.0f} at most"
        )
    if (slowest := bottleneck(p.shares)) is not None:
        table.add_row("bottleneck", str(slowest))
    if (staleness := p.learner.get("lag_mean")) is not None:
        expected = p.shares.get("expected_age")
        besides = (
            "" if expected is None else f"; {number(expected, 2)} expected from games in progress"
        )
        table.add_row("staleness", f"{number(staleness, 2)} updates{besides}")
    if lost := p.shares.get("lost_share"):
        table.add_row("thrown away", percent(lost, 1))
    gap, most = p.learner.get("logprob_gap_mean"), p.learner.get("logprob_gap_max")
    if gap is not None or most is not None:
        table.add_row("log-prob gap", f"{number(gap, 2)}, max {number(most, 2)}")
    if p.coverage:
        low, high = min(p.coverage.values()), max(p.coverage.values())
        span = percent(low, 1) if low == high else f"{percent(low, 1)}–{percent(high, 1)}"
        table.add_row("exploration", f"{span} distinct")
    style = "red" if p.failed_games else ""
    table.add_row("failed games", Text(count(p.failed_games), style=style))
    return table


def _load(gpu: GpuLoad) -> str:
    """Memory, power and share of busy time, as far as they are measured."""
    parts = [f"{gpu.used / 2**30:.1f}/{gpu.memory / 2**30:.0f} GiB"]
    if gpu.power is not None:
        parts.append(f"{gpu.power:.0f}" + (f"/{gpu.limit:.0f} W" if gpu.limit else " W"))
    if gpu.busy is not None:
        parts.append(percent(gpu.busy))
    return "  ".join(parts)


def _share_bar(share: float | None) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(justify="right", no_wrap=True, width=4)
    grid.add_column(ratio=1)
    bar = "" if share is None else ProgressBar(total=1.0, completed=min(max(share, 0.0), 1.0))
    grid.add_row(percent(share), bar)
    return grid


def _collection(p: Progress, width: int) -> RenderableType:
    titles = ["games", "win"]
    if width >= NARROW:
        titles = ["games", "win", "invalid", "turns"]
    if width >= MIDDLE:
        titles = ["games", "win", "draw", "format", "invalid", "turns", "tokens"]
    if width >= WIDE:
        titles += ["reward", "truncated", "failed"]
    table = table_of(("environment", "left"), *((title, "right") for title in titles))
    for row in p.collection:
        cells = {
            "games": count(row.games),
            "win": percent(row.win_rate),
            "draw": percent(row.draw_rate),
            "format": percent(row.format_success),
            "invalid": percent(row.invalid_rate, 1),
            "turns": number(row.game_length, 3),
            "tokens": number(row.completion_length, 3),
            "reward": number(row.reward, 2),
            "truncated": percent(row.truncated_rate, 1),
            "failed": percent(row.failed_rate, 1),
        }
        table.add_row(Text(row.env_id), *(cells[title] for title in titles))
    return table
