"""A ``Comparison`` as tables: in the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rlforge.show.compare import Comparison, Result, best_of
from rlforge.show.formatting import NOTHING, duration, number, percent
from rlforge.show.panels import listing
from rlforge.types import value

#: Most settings of a run in the terminal and in reports; files have all.
MOST_SETTINGS = 8

OF_SEEDS = "mean (range) over seeds"
OF_RUNS = "result (95 % interval)"
BEST = "best"


@value
class Line:
    """A row of a table. name: of the run, or how many seeds. done: where that is not all of it."""

    name: str
    status: str
    done: str
    wall: str
    settings: dict[str, str]
    results: dict[str, str]
    best: bool


def result_text(result: Result) -> str:
    """A figure with its interval, where it has one.

    Example:
        >>> result_text(Result(name="vs base", mean=0.7, low=0.52, high=0.83, share=True))
        '70% (52 to 83)'
        >>> result_text(Result(name="loss", mean=0.17418))
        '0.174'
    """
    mean = percent(result.mean) if result.share else number(result.mean, 3)
    if result.low is None or result.high is None:
        return mean
    ends = [
        f"{100 * end:.0f}" if result.share else number(end, 3) for end in (result.low, result.high)
    ]
    return f"{mean} ({' to '.join(ends)})"


def of_runs(comparison: Comparison) -> list[Line]:
    """A line per run."""
    return [
        Line(
            name=comparison.name(run),
            status=run.status,
            done="" if run.status == "done" else run.done,
            wall=duration(run.wall_s),
            settings=dict(run.settings),
            results={result.name: result_text(result) for result in run.results},
            best=run.path == comparison.best,
        )
        for run in comparison.runs
    ]


def of_seeds(comparison: Comparison) -> list[Line]:
    """A line per configuration, where one has several runs."""
    best = best_of(comparison.seeds)
    return [
        Line(
            name=f"n={one.counted}{f' of {len(one.runs)}' * (one.counted != len(one.runs))}",
            status="",
            done="",
            wall=duration(one.wall_s),
            settings=dict(one.settings),
            results={result.name: result_text(result) for result in one.results},
            best=one is best,
        )
        for one in comparison.seeds
    ]


def show(comparison: Comparison, console: Console) -> None:
    """Print the tables; no run's name and no setting that fits a line is broken."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if lines := of_seeds(comparison):
        console.print(_table(lines, "seeds", OF_SEEDS, console))
        say("")
    say(f"{comparison.folder}:")
    console.print(_table(of_runs(comparison), "run", OF_RUNS, console))
    for run in comparison.runs:
        if run.path == comparison.best:
            say(f"best: {run.path} (objective {number(run.objective)})")


def _table(lines: Sequence[Line], name: str, caption: str, console: Console) -> Table:
    """A column per setting and result where they fit, else a line each in a cell."""
    settings, results = columns(lines)
    left, right = (name, "status", *settings), (*results, "wall")
    wide = listing(*((title, "whole") for title in left), *((title, "right") for title in right))
    for cells, line in zip(_cells(lines), lines, strict=True):
        wide.add_row(*map(Text, cells), style="bold" if line.best else "")
    needed = Measurement.get(console, console.options.update(width=10_000), wide).maximum
    if needed <= console.width:
        return wide
    tall = listing((name, "whole"), ("settings", "left"), (caption, "whole"))
    for line in lines:
        state = ", ".join(filter(None, [line.status, line.wall]))
        about = [line.name, state, line.done, BEST * line.best]
        # Name, figure and interval of each result, below one another.
        rows = [(name, *text.partition(" ")) for name, text in line.results.items()]
        named, long = (max((len(row[place]) for row in rows), default=0) for place in (0, 1))
        figures = [f"{name:{named}} {mean:>{long}} {rest}" for name, mean, _, rest in rows]
        texts = ["\n".join(filter(None, about)), "\n".join(settings_text(line.settings))]
        tall.add_row(*map(Text, [*texts, "\n".join(figures)]), style="bold" if line.best else "")
    return tall


def columns(lines: Sequence[Line]) -> tuple[list[str], list[str]]:
    """The names of all settings and of all results."""
    settings = dict.fromkeys(key for line in lines for key in line.settings)
    results = dict.fromkeys(key for line in lines for key in line.results)
    return [*settings], [*results]


def _cells(lines: Sequence[Line]) -> Iterator[list[str]]:
    """The cells of a wide table."""
    settings, results = columns(lines)
    for line in lines:
        state = ", ".join(filter(None, [line.status, line.done, BEST * line.best]))
        cells = [line.name, state, *(line.settings.get(key, NOTHING) for key in settings)]
        yield [*cells, *(line.results.get(key, NOTHING) for key in results), line.wall]


def settings_text(settings: dict[str, str]) -> list[str]:
    """``key=value`` of each, the first ``MOST_SETTINGS``."""
    pairs = [f"{key}={text}" for key, text in settings.items()]
    left = len(pairs) - MOST_SETTINGS
    return [*pairs[:MOST_SETTINGS], *([f"and {left} more"] if left > 0 else [])]


def to_csv(comparison: Comparison) -> str:
    """A row per run, with numbers as they are in its files."""
    names = [*dict.fromkeys(result.name for run in comparison.runs for result in run.results)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = [f"{name}{end}" for name in names for end in ("", " low", " high")]
    head = ["run", "status", "done", *comparison.keys, *ends, "objective", "wall_s", "best"]
    writer.writerow(head)
    for run in comparison.runs:
        found = {result.name: result for result in run.results}
        figures: list[float | None] = []
        for name in names:
            one = found.get(name)
            figures += [one.mean, one.low, one.high] if one else [None] * 3
        settings = [run.settings.get(key, "") for key in comparison.keys]
        ending = [*figures, run.objective, run.wall_s, run.path == comparison.best]
        writer.writerow([run.path, run.status, run.done, *settings, *ending])
    return text.getvalue()


def to_markdown(comparison: Comparison) -> str:
    """The tables of the terminal."""
    parts = []
    if lines := of_seeds(comparison):
        parts += [f"Seeds: {OF_SEEDS}.\n", _markdown(lines, "seeds")]
    parts += [f"Runs: {OF_RUNS}.\n", _markdown(of_runs(comparison), "run")]
    return "\n".join(parts)


def _markdown(lines: Sequence[Line], name: str) -> str:
    settings, results = columns(lines)
    rows = [[name, "status", *settings, *results, "wall"]]
    rows.append(["---"] * (2 + len(settings)) + ["---:"] * (len(results) + 1))
    rows += _cells(lines)
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in escaped)
