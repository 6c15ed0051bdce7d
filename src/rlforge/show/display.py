"""Displays of runs under way, in their own terminal or from another (``monitor``)."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

from rich.console import RenderableType
from rich.live import Live

from rlforge.errors import counted
from rlforge.record.files import open_run, value_in
from rlforge.record.progress import ExactRow, Progress, WinRateRow
from rlforge.record.status import read_progress, read_summary, why_it_ended
from rlforge.record.sweeps import all_jobs, under_way
from rlforge.show.compare import compare
from rlforge.show.compare_view import headline, line_of, listed
from rlforge.show.console import Console
from rlforge.show.formatting import duration, number, percent
from rlforge.show.panels import section
from rlforge.show.view import progress_view

log = logging.getLogger(__name__)

DisplayMode = Literal["auto", "rich", "notebook", "plain", "off"]

#: Most seconds between two lines of ``plain``.
ALIVE_S = 10.0

#: Most notes above the frame of a notebook.
NOTES = 8


class Display:
    """Shows each ``Progress`` that it is given; a context manager.

    ``rich`` redraws a frame, ``notebook`` the output of a Jupyter cell, from any thread; ``plain``
    prints a line per update and evaluation, and one every ``ALIVE_S`` seconds without.

    Example:
        >>> import sys
        >>> progress = Progress(
        ...     run_name="kuhn", status="done", updated_at=0.0, elapsed_s=5.0, update=2,
        ...     total_updates=2, games=64,
        ... )
        >>> with Display("kuhn", "plain", Console(file=sys.stdout, width=100)) as display:
        ...     display.show(progress)
        [0:05] update 2/2  games 64 (0.0/s)  0 tok/s
        [0:05] done at update 2/2, 64 games
    """

    def __init__(
        self,
        run_name: str,
        mode: DisplayMode = "auto",
        console: Console | None = None,
        plain_every_s: float = 2.0,
        job: str = "",
    ) -> None:
        """Show a run.

        Args:
            run_name: In front of notes.
            mode: ``auto`` is what the console can show.
            console: None is standard error, of which a failure ends the display, not the run.
            plain_every_s: Least seconds between lines about updates.
            job: Name of a sweep's job, in front of every line.
        """
        self._run_name = run_name
        self._job = f"[{job}] " if job else ""
        # Standard output is for results, such as the path of the run. The stream as it is now is
        # named: while a run lasts, that of users' code is another.
        self._console = console or Console(file=sys.stderr, stderr=True)
        self._of_run = console is None
        drawable = self._console.is_terminal and not self._console.is_dumb_terminal
        if mode == "auto":
            # Other encodings lack characters of the frame.
            utf8 = self._console.encoding.lower().startswith("utf")
            mode = "rich" if drawable and utf8 else "plain"
            if self._console.is_jupyter:
                mode = "notebook"
        self.mode: DisplayMode = mode
        self._plain_every_s = plain_every_s
        self._live: Live | NotebookFrame | None = None
        self._next_line = 0.0
        self._last_line, self._last_report = time.monotonic(), 0.0
        # What lines have said: of the newest update, of evaluations by what they measure, the end.
        self._update, self._evals, self._ended = 0, dict[tuple[str, str], int](), False
        self._window = ""
        self._signals: dict[tuple[str, int], int | None] = {}

    def __enter__(self) -> Self:
        if self.mode == "rich":
            # Frames change with reports alone: Rich's thread would draw the same one again.
            self._live = Live(console=self._console, auto_refresh=False)
            with self._apart():
                self._live.start()
        elif self.mode == "notebook":
            self._live = NotebookFrame()
        return self

    def __exit__(self, *error: object) -> None:
        with self._apart():
            if isinstance(self._live, Live):
                self._live.stop()
        self._live = None

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Go on in silence from where the block fails: the display is no part of the run."""
        try:
            yield
        # Rich leaves by SystemExit where the reader of a pipe has left.
        except (Exception, SystemExit):
            if not self._of_run:
                raise
            log.exception("the display has failed; the run goes on without it")
            self.mode, self._live = "off", None

    def show(self, progress: Progress) -> None:
        """Show ``progress``, and each new window in a line."""
        if self._job:
            progress = dataclasses.replace(progress, run_name=f"{self._job}{progress.run_name}")
        if progress.window not in ("", self._window):
            self._window = progress.window
            self.note(progress.window)
        with self._apart():
            if self._live is not None:
                self._live.update(progress_view(progress, time.time()), refresh=True)
            elif self.mode == "plain":
                for line in self._new_lines(progress):
                    _print(self._console, f"{self._job}{line}")

    def note(self, text: str) -> None:
        """Print a message, above the frame or as a line, and log it."""
        log.info("%s", text)
        line = f"{self._job}{self._run_name}: {text}"
        with self._apart():
            if isinstance(self._live, NotebookFrame):
                self._live.note(line)
            elif self.mode != "off":
                _print(self._console, line)

    def _new_lines(self, p: Progress) -> list[str]:
        now, ended = time.monotonic(), p.status != "running"
        evals = {(row.env_id, row.opponent): (row.step, eval_line(row)) for row in p.win_rates}
        evals |= {(row.env_id, ""): (row.step, exact_line(row)) for row in p.exact}
        lines = []
        if p.unit == "update" and p.update > self._update:
            if not (self._update or p.learner or ended):
                lines.append(f"resumed at update {p.reached}")
                # Evaluations up to here were printed before the run was stopped.
                self._update = p.update
                self._evals = {key: step for key, (step, _) in evals.items()}
            # Quick updates would flood a log; the last one is printed in any case.
            elif ended or now >= self._next_line:
                lines.append(update_line(p))
                self._update = p.update
                self._last_line, self._next_line = now, now + self._plain_every_s
        if not (lines or ended) and now - self._last_line >= ALIVE_S:
            if p.unit != "update" or not p.total_updates:
                lines += [p.activity] if p.activity else []
            elif p.updated_at > self._last_report:  # the run that is watched may be dead
                lines.append(collection_line(p))
            self._last_line, self._last_report = now, p.updated_at
        for key, (step, line) in evals.items():
            if self._evals.get(key) != step:
                self._evals[key] = step
                lines.append(line)
        lines += self._signal_lines(p)
        if ended and not self._ended:
            self._ended = True
            games = f", {counted(p.games, 'game')}" if p.unit == "update" and _plays(p) else ""
            at = f" at {p.unit} {p.reached}{games}"
            lines.append(f"{p.status}{at if p.total_updates or p.update else ''}")
        return [f"[{duration(p.elapsed_s)}] {line}" for line in lines]

    def _signal_lines(self, p: Progress) -> Iterator[str]:
        """Yield a line for each signal that has begun, and for each that has ended."""
        for signal in p.signals:
            key, end = (signal.name, signal.step), signal.until
            if key not in self._signals:
                yield f"signal at update {signal.step}, {signal.name}: {signal.line}"
            if end is not None and self._signals.get(key) is None:
                yield f"signal of update {signal.step} has ended, {signal.name}"
            self._signals[key] = end


def _print(console: Console, line: str) -> None:
    # Lines are for logs: no markup, no wrapping.
    console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


class NotebookFrame:
    """An output of a Jupyter cell that is replaced: the newest notes, and the frame."""

    def __init__(self) -> None:
        from IPython.display import display  # there in Jupyter, no dependency

        self._show: Callable[..., Any] = display
        self._notes: deque[str] = deque(maxlen=NOTES)
        self._frame: RenderableType = ""
        self._shown: dict[str, str] = {}
        self._handle: Any = None

    def note(self, line: str) -> None:
        self._notes.append(line)
        self._refresh()

    def update(self, frame: RenderableType, refresh: bool = True) -> None:
        """Replace the frame. refresh: a parameter of ``rich.live.Live``."""
        self._frame = frame
        self._refresh()

    def _refresh(self) -> None:
        console = Console(
            file=io.StringIO(), record=True, width=100, force_jupyter=False, height=1000
        )
        for line in self._notes:
            console.print(line, markup=False, emoji=False, highlight=False)
        console.print(self._frame)
        # The text is for programs that show notebooks without HTML; it is exported second.
        html = console.export_html(code_format=_HTML, inline_styles=True, clear=False)
        lines = [line.rstrip() for line in console.export_text().rstrip().splitlines()]
        shown = {"text/html": html, "text/plain": "\n".join(lines)}
        # Each replacement is sent to the browser and stored in the notebook.
        if shown == self._shown:
            return
        self._shown = shown
        if self._handle is None:
            self._handle = self._show(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


_HTML = '<pre style="line-height: 1.2; font-family: monospace; white-space: pre">{code}</pre>'


# Lines are plain ASCII, for logs.


def update_line(p: Progress) -> str:
    names = {"loss": "loss", "validation_loss": "held-out", "reward_mean": "reward"}
    figures = [(name, p.learner.get(key)) for key, name in (names | {"grad_norm": "grad"}).items()]
    parts = [f"{name} {number(figure)}" for name, figure in figures if figure is not None]
    if _plays(p):
        parts += [f"games {p.games} ({p.games_per_s:.1f}/s)", f"{p.tokens_per_s:.0f} tok/s"]
    else:
        speed = p.learner.get("tokens_per_s") or 0.0
        parts += [f"samples {p.samples}", f"{speed:.0f} tok/s"]
    left = p.eta_s is not None and p.status == "running"
    parts += [f"failed {p.failed_games}"] if p.failed_games else []
    parts += [f"ETA {duration(p.eta_s)}"] if left else []
    return "  ".join([f"update {p.reached}", *parts])


def _plays(p: Progress) -> bool:
    # A run that plays no games says what it does instead.
    return not p.activity and "epoch" not in p.learner


def collection_line(p: Progress) -> str:
    following = f"{min(p.update + 1, p.total_updates)}/{p.total_updates}"
    if not _plays(p):
        return f"{p.activity or 'learning'}, update {following}"
    tokens = sum(engine.tokens for engine in p.engines)
    rate = sum(engine.tok_s for engine in p.engines)
    running = sum(engine.running for engine in p.engines)
    # Where the engines rest, the learner works.
    rests = tokens and not rate and not running
    doing = f"at update {following}" if rests else f"collecting for update {following}"
    # No update follows: what is left is the last evaluation.
    if p.update == p.total_updates:
        doing = f"evaluating after update {following}"
    parts = [
        doing,
        f"games {p.games} ({p.games_per_s:.1f}/s)",
        f"{tokens} tokens ({rate:.0f} tok/s)",
        f"{running} requests running",
    ]
    return "  ".join([*parts, *([f"failed {p.failed_games}"] if p.failed_games else [])])


def eval_line(row: WinRateRow) -> str:
    low, high = row.ci95
    start = "" if row.step == row.start_step else f", start {percent(row.start_win_rate, 1)}"
    return (
        f"eval at {row.step}: {row.env_id} vs {row.opponent}: "
        f"win {percent(row.win_rate, 1)} [{percent(low, 1)}, {percent(high, 1)}]{start}, "
        f"draw {percent(row.draw_rate, 1)}, loss {percent(row.loss_rate, 1)} "
        f"({counted(row.games, 'game')})"
    )


def exact_line(row: ExactRow) -> str:
    start = "" if row.step == row.start_step else f", start {row.start:.4f}"
    return f"exact at {row.step}: {row.env_id}: NashConv {row.nash_conv:.4f}{start}"


def monitor(
    run_dir: Path | str, once: bool = False, refresh_s: float = 1.0, console: Console | None = None
) -> None:
    """Show a run from its files until it ends; Ctrl-C ends the display, not the run.

    once: show it as it is now, and return. Raises RlforgeError for no run and damaged files.
    """
    paths = open_run(run_dir)
    console = console or Console()
    if once:
        if data := read_progress(paths):
            progress = value_in(Progress, data, paths.progress)
            console.print(progress_view(progress, time.time()))
            if reason := why_it_ended(read_summary(paths)):
                _print(console, f"{paths.root} {reason}")
        else:
            _print(console, f"{paths.root} has not reported anything yet")
        return
    with (
        contextlib.suppress(KeyboardInterrupt),
        Display(paths.root.name, console=console) as display,
    ):
        while True:
            if data := read_progress(paths):
                progress = value_in(Progress, data, paths.progress)
                display.show(progress)
                if progress.status != "running":
                    if reason := why_it_ended(read_summary(paths)):
                        display.note(reason)
                    return
            time.sleep(refresh_s)


def monitor_jobs(
    folder: Path, once: bool = False, refresh_s: float = 1.0, console: Console | None = None
) -> None:
    """Show the jobs of a sweep, or the runs of a folder, as ``monitor``, until none runs.

    Where nothing can be redrawn, each change is a line.
    """
    console = console or Console()
    drawable = console.is_terminal and not console.is_dumb_terminal and not once
    shown: dict[str, object] = {}
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False) if drawable else contextlib.nullcontext() as live,
    ):
        while True:
            ended = once or not under_way(folder)  # asked first: the last rows are of the end
            found = compare(all_jobs(folder))
            title = os.path.relpath(found.folder, folder.parent)
            frame = section(f"{title}  {headline(found)}", listed(found))
            if live is not None:
                live.update(frame, refresh=True)
            elif once:
                console.print(frame)
            else:
                for run in found.runs:
                    if shown.get(run.name) != (run.status, run.results):
                        shown[run.name] = run.status, run.results
                        _print(console, line_of(run))
            if ended:
                break
            time.sleep(refresh_s)
        if live is None and not once:
            _print(console, headline(found))
