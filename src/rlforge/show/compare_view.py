"""A ``Comparison`` as tables: in the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from rlforge.record.files import read_json
from rlforge.record.sweeps import SWEEP_FILE
from rlforge.show.compare import Comparison, Result, best_of
from rlforge.show.formatting import NOTHING, duration, number, percent
from rlforge.show.panels import STATUS_STYLE, Fitting, listing
from rlforge.types import value

#: Most settings of a run in the terminal and in reports; files have all.
MOST_SETTINGS = 8

#: In lists of runs, which may be many.
MOST_LISTED = 4

OF_SEEDS = "mean (range) over seeds"
OF_RUNS = "result (95 % interval)"
BEST = "best"


@value
class Line:
    """A row of a table. name: of the run, or how many seeds. done: updates or windows of how many.

    left: until the end of a running one.
    """

    name: str
    status: str
    done: str
    left: str
    wall: str
    settings: dict[str, str]
    results: dict[str, str]
    best: bool

    @property
    def state(self) -> str:
        """How it stands, in a few words."""
        return f"{self.status} {self.done}".strip()

    def as_text(self) -> str:
        """The row without a table."""
        name = " ".join([self.name, *settings_text(self.settings)])
        results = (f"{result} {text}" for result, text in self.results.items())
        return f"{name}: {', '.join([self.state, *results])}"


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


def of_runs(comparison: Comparison, *, as_given: bool = False) -> list[Line]:
    """A line per run, those of a configuration together.

    as_given: in the order of their paths, and keys by their last part where that tells them apart.
    """
    runs = comparison.runs
    if as_given:
        runs.sort(key=lambda run: comparison.paths.index(run.path))
    names = {key: key.rpartition(".")[2] if as_given else key for key in comparison.keys}
    often = Counter(names.values())
    names = {key: name if often[name] == 1 else key for key, name in names.items()}
    return [
        Line(
            name=comparison.name(run),
            status=run.status,
            done="" if run.status == "not started" else run.done.partition(" ")[0],
            left="" if run.eta_s is None else f"ETA {duration(run.eta_s)}",
            wall=duration(run.wall_s),
            settings={names[key]: text for key, text in run.settings.items()},
            results={result.name: result_text(result) for result in run.results},
            best=run.path == comparison.best,
        )
        for run in runs
    ]


def of_seeds(comparison: Comparison) -> list[Line]:
    """A line per configuration, where one has several runs."""
    best = best_of(comparison.seeds)
    return [
        Line(
            name=f"n={one.counted}{f' of {len(one.runs)}' * (one.counted != len(one.runs))}",
            status="",
            done="",
            left="",
            wall=duration(one.wall_s),
            settings=dict(one.settings),
            results={result.name: result_text(result) for result in one.results},
            best=one is best,
        )
        for one in comparison.seeds
    ]


def headline(comparison: Comparison) -> str:
    """How many jobs or runs there are, as far as that is known, and how they stand."""
    runs = comparison.runs
    sweep = read_json(Path(comparison.folder) / SWEEP_FILE)
    what = "job" if sweep else "run"
    so_far = " so far" if sweep and sweep["jobs"] is None else ""
    counts = Counter(run.status for run in runs)
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(runs)} {what}{'s' * (len(runs) != 1)}{so_far}: {states}"


def show(comparison: Comparison, console: Console) -> None:
    """Print the tables; no run's name and no setting that fits a line is broken."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if lines := of_seeds(comparison):
        console.print(table_of(lines, "seeds", OF_SEEDS))
        say("")
    say(f"{comparison.folder}:")
    console.print(table_of(of_runs(comparison), "run", OF_RUNS))
    for run in comparison.runs:
        if run.path == comparison.best:
            say(f"best: {run.path} (objective {number(run.objective)})")


def show_list(comparison: Comparison, console: Console) -> None:
    """Print a table of runs as they are given, below their folder and how they stand."""
    head = Text.assemble((comparison.folder, "bold"), f"  {headline(comparison)}")
    console.print(head, soft_wrap=True)
    lines = of_runs(comparison, as_given=True)
    console.print(table_of(lines, "run", OF_RUNS, most=MOST_LISTED), Text())


def table_of(
    lines: Sequence[Line], name: str, caption: str, most: int = MOST_SETTINGS
) -> RenderableType:
    """A column per setting and result where they fit, else one for the first ``most`` settings."""
    settings, results = columns(lines)
    left, right = (name, "status", *settings), (*results, "wall")
    wide = listing(*((title, "whole") for title in left), *((title, "right") for title in right))
    middle = [("settings", "left")] if settings else []
    tall = listing((name, "whole"), *middle, (caption, "whole"))
    for cells, line in zip(_cells(lines), lines, strict=True):
        style, state = "bold" if line.best else "", STATUS_STYLE.get(line.status, "")
        wide.add_row(cells[0], Text(cells[1], state), *map(Text, cells[2:]), style=style)
        about = [(line.name, ""), (line.state, state), (line.wall, ""), (line.left, "")]
        about += [(BEST * line.best, "")]
        figures = Table.grid(padding=(0, 1))
        for result, text in line.results.items():
            mean, _, span = text.partition(" ")
            figures.add_row(Text(result), Text(mean, justify="right"), Text(span))
        tall.add_row(
            Text("\n").join(Text(*part) for part in about if part[0]),
            *([Text("\n".join(settings_text(line.settings, most)))] if settings else []),
            figures,
            style=style,
        )
    return Fitting(wide, tall)


def columns(lines: Sequence[Line]) -> tuple[list[str], list[str]]:
    """The names of all settings and of all results."""
    settings = dict.fromkeys(key for line in lines for key in line.settings)
    results = dict.fromkeys(key for line in lines for key in line.results)
    return [*settings], [*results]


def _cells(lines: Sequence[Line]) -> Iterator[list[str]]:
    """The cells of a wide table."""
    settings, results = columns(lines)
    for line in lines:
        state = ", ".join(filter(None, [line.state, line.left, BEST * line.best]))
        cells = [line.name, state, *(line.settings.get(key, NOTHING) for key in settings)]
        yield [*cells, *(line.results.get(key, NOTHING) for key in results), line.wall]


def settings_text(settings: dict[str, str], most: int = MOST_SETTINGS) -> list[str]:
    """``key=value`` of each, the first ``most``."""
    pairs = [f"{key}={text}" for key, text in settings.items()]
    left = len(pairs) - most
    return [*pairs[:most], *([f"and {left} more"] if left > 0 else [])]


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
