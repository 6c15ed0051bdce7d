"""A ``Comparison`` as tables: in the terminal, as CSV and as Markdown."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlforge.record.sweeps import read_sweep
from rlforge.show.compare import Compared, ComparedRun, Comparison, best_of
from rlforge.show.console import Console
from rlforge.show.formatting import NOTHING, duration, number
from rlforge.show.panels import STATUS_STYLE, Fitting, Listing

#: Most settings of a run in the terminal and in reports; files have all.
MOST_SETTINGS = 8
#: In lists of runs, which may be many.
MOST_LISTED = 4
#: Runs with the same signals that are named.
_MOST_MARKED = 12

OF_SEEDS = "mean (range) over seeds"
OF_RUNS = "result (95 % interval)"
BEST = "best"
#: Behind the state of a run with signals.
MARK = " !"


def show(comparison: Comparison, console: Console) -> None:

    def say(text: str) -> None:  # breaks no name of a run
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    if seeds := comparison.seeds:
        console.print(table_of(seeds, "seeds", OF_SEEDS))
        say("")
    say(f"{comparison.folder}:")
    runs = comparison.by_configuration
    console.print(table_of(runs, "run", OF_RUNS))
    if (best := best_of(runs)) is not None:
        say(f"best: {best.path} (objective {number(best.objective)})")
    for problem in comparison.damaged:
        say(problem)


def listed(comparison: Comparison) -> RenderableType:
    """The runs as given, with the last parts of keys where these tell them apart."""
    names = {key: key.rpartition(".")[2] for key in comparison.keys}
    often = Counter(names.values())
    names = {key: name if often[name] == 1 else key for key, name in names.items()}
    rows = [
        dataclasses.replace(run, settings={names[key]: text for key, text in run.settings.items()})
        for run in comparison.runs
    ]
    return table_of(rows, "run", OF_RUNS, most=MOST_LISTED)


def headline(comparison: Comparison) -> str:
    """Number of jobs or runs, and how they stand."""
    runs = comparison.runs
    sweep = read_sweep(Path(comparison.folder))
    what = "job" if sweep else "run"
    # A sweeper that chooses as it goes does not say how many jobs follow.
    so_far = " so far" if sweep and sweep["jobs"] is None else ""
    counts = Counter(run.status for run in runs)
    states = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(runs)} {what}{'s' * (len(runs) != 1)}{so_far}: {states}"


def line_of(run: ComparedRun) -> str:
    name = " ".join([run.name, *settings_text(run.settings)])
    results = (f"{name} {result}" for name, result in run.results.items())
    return f"{name}: {', '.join([run.state, *results, *map('signal {}'.format, run.signals)])}"


def table_of(
    rows: Sequence[Compared], name: str, caption: str, most: int = MOST_SETTINGS
) -> RenderableType:
    """A table with a column per setting and result where they fit, else settings are below it.

    Args:
        rows: Rows of the table.
        name: Title of the first column.
        caption: Title of a single column for all results.
        most: Settings in a single column; others are counted.
    """
    settings, results = columns(rows)
    texts = (name, "status", *settings)
    wide = Listing(*texts, *results, "wall", whole=texts)
    middle = ["settings"] if settings else []
    tall = Listing(name, *middle, caption, left=middle, whole=[name, caption])
    low, below = Listing(name, caption, whole=[name, caption]), list[Text]()
    best = best_of(rows)
    for cells, row in zip(_cells(rows), rows, strict=True):
        style = "bold" if row is best else ""
        state = STATUS_STYLE.get(row.state.partition(" ")[0], "dim")
        mark = (MARK, "bold yellow") if row.signals else ""
        wide.add_row(cells[0], Text.assemble((cells[1], state), mark), *cells[2:], style=style)
        about = [
            Text(row.name),
            Text.assemble((row.state.replace(", ", "\n"), state), mark),
            Text(duration(row.wall_s)),
        ]
        about += [Text(BEST)] if row is best else []
        figures = Table.grid(padding=(0, 1))
        for result, figure in row.results.items():
            mean, _, span = str(figure).partition(" ")
            figures.add_row(Text(result), Text(mean, justify="right"), Text(span))
        first, said = Text("\n").join(filter(None, about)), settings_text(row.settings, most)
        tall.add_row(first, *(["\n".join(said)] if settings else []), figures, style=style)
        low.add_row(first, figures, style=style)
        if said:
            below.append(Text.assemble((f"{row.name}: ", style), (", ".join(said), "dim")))
    marked = [Text(line, "yellow") for line in _marked(rows)]
    table = Fitting(wide, tall, Group(low, *below))
    return Group(table, *marked) if marked else table


def _marked(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield lines below a table on what its mark means: the signals of each run that has some."""
    # In the table they would take the room of settings and results.
    found: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        if row.signals:
            found.setdefault(row.signals, []).append(row.name)
    for signals, names in found.items():
        left = len(names) - _MOST_MARKED
        more = f" and {left} more" if left > 0 else ""
        yield f"{MARK.strip()} {', '.join(signals)}: {', '.join(names[:_MOST_MARKED])}{more}"


def columns(rows: Sequence[Compared]) -> tuple[list[str], list[str]]:
    """Names of all settings, and of all results."""
    settings = dict.fromkeys(key for row in rows for key in row.settings)
    results = dict.fromkeys(key for row in rows for key in row.results)
    return [*settings], [*results]


def _cells(rows: Sequence[Compared]) -> Iterator[list[str]]:
    settings, results = columns(rows)
    best = best_of(rows)
    for row in rows:
        state = ", ".join(filter(None, [row.state, BEST * (row is best)]))
        cells = [row.name, state, *(row.settings.get(key, NOTHING) for key in settings)]
        cells += [str(row.results.get(key, NOTHING)) for key in results]
        yield [*cells, duration(row.wall_s)]


def settings_text(settings: Mapping[str, str], most: int = MOST_SETTINGS) -> list[str]:
    """The first ``most`` as ``key=value``."""
    pairs = [f"{key}={text}" for key, text in settings.items()]
    left = len(pairs) - most
    return [*pairs[:most], *([f"and {left} more"] if left > 0 else [])]


def to_csv(comparison: Comparison) -> str:
    """A row per run, with numbers as they are in its files."""
    runs = comparison.by_configuration
    ends = [f"{name}{end}" for name in columns(runs)[1] for end in ("", " low", " high")]
    head = ["run", "status", "done", *comparison.keys, *ends, "objective", "wall_s", "best"]
    head.append("signals")
    text = io.StringIO()
    # By default csv ends lines by \r\n, of which other tools make a part of the last cell.
    writer = csv.DictWriter(text, head, restval="", lineterminator="\n")
    writer.writeheader()
    for run in runs:
        row: dict[str, Any] = {"run": run.path, "status": run.status, "done": run.done}
        row |= {**run.settings, "objective": run.objective, "wall_s": run.wall_s}
        for name, one in run.results.items():
            row |= {name: one.mean, f"{name} low": one.low, f"{name} high": one.high}
        row |= {"best": run.path == comparison.best, "signals": " ".join(run.signals)}
        writer.writerow(row)
    return text.getvalue()


def to_markdown(comparison: Comparison) -> str:
    parts = []
    if seeds := comparison.seeds:
        parts += [f"Seeds: {OF_SEEDS}.\n", _markdown(seeds, "seeds")]
    parts += [f"Runs: {OF_RUNS}.\n", _markdown(comparison.by_configuration, "run")]
    return "\n".join(parts)


def _markdown(rows: Sequence[Compared], name: str) -> str:
    settings, results = columns(rows)
    lines = [[name, "status", *settings, *results, "wall"]]
    lines.append(["---"] * (2 + len(settings)) + ["---:"] * (len(results) + 1))
    lines += _cells(rows)
    # A bar in a setting would end its cell.
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    table = "".join(f"| {' | '.join(line)} |\n" for line in escaped)
    return table + "".join(f"\n{line}\n" for line in _marked(rows))
