"""A ``Progress`` drawn with Rich, complete from 80 columns on; the most important on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pkgutil import resolve_name

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlforge.config.plugins import RUN_KINDS
from rlforge.record.bottleneck import bottleneck
from rlforge.record.progress import CollectionRow, Progress, WinRateRow
from rlforge.record.signals import Signal, ranked
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
from rlforge.show.panels import STATUS_STYLE, Listing, SideBySide, cut, pair, pairs, section, signed
from rlforge.statistics import significant, wilson_interval
from rlforge.system.hardware import GpuLoad

#: Most rows of a table, most alarms, and most points of a curve.
_ROWS, _ALARMS, _POINTS = 12, 3, 16
#: Lines of the strip of signals.
_SIGNALS = 3
#: Age of the last report, in seconds, after which a run is shown as silent.
_SILENT_AFTER_S = 60.0


def progress_view(p: Progress, now: float | None = None) -> RenderableType:
    """One frame. now: Unix time, to show the age of an old report."""
    if p.unit == "update":
        return Group(_head(p, now), SignalStrip(p.signals), *_of_games(p))
    kinds = map(RUN_KINDS.find, RUN_KINDS.own)
    kind = next(kind for kind in kinds if kind.unit == p.unit)
    return Group(_head(p, now), *resolve_name(kind.progress)(p))


class SignalStrip:
    """At most three lines on signals that go on, those of runs that learn nothing first."""

    def __init__(self, signals: Sequence[Signal]) -> None:
        self._signals = [signal for signal in ranked(signals) if signal.until is None]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = self._signals[:_SIGNALS]
        for row, signal in enumerate(shown):
            style = "yellow" if signal.weight == "slow" else "bold red"
            text = Text.assemble(
                (f" {signal.name} ", f"{style} reverse"), (f" {signal.line}", style)
            )
            lines = text.wrap(console, options.max_width)
            # Each later signal keeps a line of its own.
            room = _SIGNALS - len(shown) + 1 if row == 0 else 1
            more = len(self._signals) - len(shown) if row == len(shown) - 1 else 0
            if len(lines) > room or more:
                lines[room - 1].truncate(options.max_width - (len(f" +{more}") if more else 1))
                lines[room - 1].append(f" +{more}" if more else "…")
            yield from lines[:room]


def _head(p: Progress, now: float | None) -> Panel:
    bar = Table.grid(padding=(0, 2), expand=True)
    bar.add_column()
    bar.add_column(ratio=1)
    bar.add_column()
    if p.total_updates:
        share = p.update / p.total_updates
        left = f"  ETA {duration(p.eta_s)}" if p.status == "running" else ""
        done = ProgressBar(total=p.total_updates, completed=p.update)
        bar.add_row(f"{p.unit}s", done, f"{p.reached}  {percent(share)}{left}")
    elif p.unit == "window":  # continuous training without an end
        bar.add_row("windows", str(p.update), "")
    if p.unit == "window":
        live = [row.version for row in p.windows if row.deployed and row.version]
        counts = [
            pair("now", p.activity or p.status),
            pair("serving", live[-1] if live else NOTHING),
        ]
    else:
        counts = [
            pair("games", f"{count(p.games)} ({per_second(p.games_per_s)})"),
            pair("tokens", f"{count(p.tokens)} ({per_second(p.tokens_per_s)})"),
        ]
    learner = [
        pair(LEARNER_LABELS[key], number(p.learner[key], 3))
        for key in ("loss", "reward_mean", "entropy", "kl", "grad_norm", "lr")
        if key in p.learner
    ]
    state = Text.assemble((p.status, STATUS_STYLE[p.status]), f" · {duration(p.elapsed_s)}")
    # Where its lock does not tell, as on another host, a dead run still says that it is running.
    if now is not None and p.status == "running" and now - p.updated_at > _SILENT_AFTER_S:
        state.append(f" · no report for {duration(now - p.updated_at)}", style="yellow")
    return Panel(
        Group(bar, pairs(*counts, pair("samples", count(p.samples))), pairs(*learner)),
        title=Text(p.run_name, style="bold"),
        title_align="left",
        subtitle=state,
        subtitle_align="right",
    )


def _of_games(p: Progress) -> Iterator[RenderableType]:
    envs = {row.env_id for row in p.win_rates}
    where = f" in {envs.pop()}" if len(envs) == 1 else ""
    yield section(f"Win rate{where}", _win_rates(p, several=len(envs) > 1))
    if p.alarms:
        newest = [
            Text.assemble((f"{alarm.step}  ", "dim"), (alarm.text, "yellow"))
            for alarm in reversed(p.alarms[-_ALARMS:])
        ]
        yield section("Sentinel", cut(Group(*newest), len(p.alarms) - _ALARMS, "alarms"))
    if p.exact:
        yield section("Distance from equilibrium", _exact(p))
    yield section("Engine and learner", Group(*_machine(p)))
    for row in p.collection:
        yield section(f"Training games of {row.env_id}", _collection(row))
    yield SideBySide(
        section("Ladder", _ladder(p)),
        section("Ratings", _ratings(p)),
        section("Games between", _matches(p)),
    )


def _win_rates(p: Progress, *, several: bool) -> RenderableType:
    if not p.win_rates:
        return Text("no evaluation yet", style="dim")
    titles = ("opponent", "win  95% CI", "draw", "loss", "change", "at", "curve")
    table = Listing(*titles, left=["opponent"])
    for row in p.win_rates:
        low, high = (percent(bound) for bound in row.ci95)
        table.add_row(
            f"{row.opponent} in {row.env_id}" if several else row.opponent,
            Text.assemble((percent(row.win_rate), "bold"), (f"  {low}–{high}", "dim")),
            percent(row.draw_rate),
            percent(row.loss_rate),
            _change(row),
            str(row.step),
            sparkline(row.history[-_POINTS:]),
        )
    return table


def _change(row: WinRateRow) -> Text:
    if row.step == row.start_step:
        return Text("start", style="dim")
    change = row.win_rate - row.start_win_rate
    # The number of games at the start is not kept: it is taken for the same.
    start = wilson_interval(round(row.start_win_rate * row.games), row.games)
    return signed(points(change), change, significant(start, row.ci95))


def _exact(p: Progress) -> RenderableType:
    table = Listing("environment", "NashConv", "start", "at", "curve", left=["environment"])
    for row in p.exact:
        distance = Text(f"{row.nash_conv:.4f}", style="bold")
        curve = sparkline(row.history[-_POINTS:])
        table.add_row(row.env_id, distance, f"{row.start:.4f}", str(row.step), curve)
    return table


def _ladder(p: Progress) -> RenderableType:
    table = Listing("policy", "Elo, 95%", "games", left=["policy"])
    for row in p.ladder[:_ROWS]:
        half = (row.high - row.low) / 2
        strength = Text.assemble(elo(row.elo), (f" ± {half:.0f}", "dim"))
        table.add_row(row.name, strength, count(row.games))
    return _rated(table, len(p.ladder), "policies")


def _ratings(p: Progress) -> RenderableType:
    # Policies without rated games have only inherited their ratings.
    table = Listing("policy", "rating", "games", left=["policy"])
    for row in [row for row in p.ratings if row.rated_games != 0][:_ROWS]:
        rating = Text.assemble(f"{row.mu:z.1f}", (f" ± {row.sigma:.1f}", "dim"))
        table.add_row(
            Text(row.uid, style="" if row.active else "dim"), rating, count(row.rated_games)
        )
    return _rated(table, len(p.ratings), "policies")


def _matches(p: Progress) -> RenderableType:
    table = Listing("policies", "games", left=["policies"])
    for row in p.matches[:_ROWS]:
        table.add_row(f"{row.first} – {row.second}", count(row.games))
    return _rated(table, len(p.matches), "pairs")


def _rated(table: Table, known: int, what: str) -> RenderableType:
    if not table.row_count:
        return Text("no rated games yet", style="dim")
    return cut(table, known - table.row_count, what)


def _machine(p: Progress) -> Iterator[RenderableType]:
    shares = {
        "engine busy": "engine_share",
        "learner busy": "learner_share",
        "neither": "idle_share",
    }
    bars = [_share_bar(name, p.shares.get(key)) for name, key in shares.items()]
    yield SideBySide(*bars, width=23, gap=2)
    for engine in p.engines:
        load = f"{engine.running} running, {engine.queued} queued, {count(engine.tokens)} tokens"
        yield pair(engine.name, f"{load} ({per_second(engine.tok_s)})")
    for one in p.api:
        games = f"{count(one.games)} games, " if one.games else ""
        asked = f"{games}{count(one.requests)} requests ({one.latency_s:.1f} s)"
        tokens = count(one.prompt_tokens + one.answer_tokens)
        yield pair(one.uid, f"{asked}, {tokens} tokens, {dollars(one)}")
    if p.gpus:
        yield pairs(*(pair(f"GPU {gpu.index}", _load(gpu)) for gpu in p.gpus))
    if (slowest := bottleneck(p.shares)) is not None:
        yield pair("bottleneck", str(slowest))
    if (playing := p.shares.get("games_in_progress")) is not None:
        wanted, limit = p.shares["games_wanted"], p.shares["games_most"]
        games = f"{playing:.0f} games, {wanted:.0f} wanted, {limit:.0f} at most"
        yield pair("in progress", games)
    figures = []
    if (staleness := p.learner.get("lag_mean")) is not None:
        expected = p.shares.get("expected_age")
        besides = "" if expected is None else f", {number(expected, 2)} expected"
        figures.append(pair("staleness", f"{number(staleness, 2)} updates{besides}"))
    if lost := p.shares.get("lost_share"):
        figures.append(pair("thrown away", percent(lost, 1)))
    gap, most = p.learner.get("logprob_gap_mean"), p.learner.get("logprob_gap_max")
    if gap is not None or most is not None:
        figures.append(pair("log-prob gap", f"{number(gap, 2)}, max {number(most, 2)}"))
    if p.coverage:
        low, high = min(p.coverage.values()), max(p.coverage.values())
        span = percent(low, 1) if low == high else f"{percent(low, 1)}–{percent(high, 1)}"
        figures.append(pair("exploration", f"{span} distinct"))
    failed = pair("failed games", count(p.failed_games))
    if p.failed_games:
        failed.stylize("red")
    yield pairs(*figures, failed)


def _share_bar(name: str, share: float | None) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    known = share is not None and share >= 0
    bar = ProgressBar(total=1.0, completed=min(share or 0.0, 1.0)) if known else ""
    grid.add_row(pair(name, percent(share)), bar)
    return grid


def _load(gpu: GpuLoad) -> str:
    parts = [f"{gpu.used / 2**30:.1f}/{gpu.memory / 2**30:.0f} GiB"]
    if gpu.power is not None:
        parts.append(f"{gpu.power:.0f}" + (f"/{gpu.limit:.0f} W" if gpu.limit else " W"))
    if gpu.busy is not None:
        parts.append(percent(gpu.busy))
    return "  ".join(parts)


def _collection(row: CollectionRow) -> RenderableType:
    return pairs(
        pair("games", count(row.games)),
        pair("win", percent(row.win_rate)),
        pair("draw", percent(row.draw_rate)),
        pair("reward", number(row.reward, 2)),
        pair("format", percent(row.format_success)),
        pair("invalid", percent(row.invalid_rate, 1)),
        pair("truncated", percent(row.truncated_rate, 1)),
        pair("failed", percent(row.failed_rate, 1)),
        pair("turns", number(row.game_length, 3)),
        pair("tokens", number(row.completion_length, 3)),
    )
