"""``comparison.html``: tables and main curves of several runs, in one file that opens offline."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from rlforge.record.files import RunPaths, read_jsonl
from rlforge.record.results import by_pairing, read_evals
from rlforge.show.compare import Comparison, Configuration, best_of, compare
from rlforge.show.compare_view import (
    OF_RUNS,
    OF_SEEDS,
    Line,
    columns,
    of_runs,
    of_seeds,
    settings_text,
)
from rlforge.show.formatting import NOTHING
from rlforge.show.report.charts import COLOURS, Chart, Series, figure
from rlforge.show.report.curves import charts, section
from rlforge.show.report.data import Row
from rlforge.show.report.html import Html, check_page, el, join, table, write_page

#: Curves over updates, and over windows: key and title.
_OF_UPDATES = {"reward_mean": "reward", "loss": "loss", "validation_loss": "held-out loss"}
_OF_WINDOWS = {
    "reward_difference": "reward above the control",
    "policy_reward": "reward",
    "control_reward": "reward of the control",
}


def write_comparison(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the comparison of ``runs``, by default in the folder that holds all; returns its path.

    Raises RlforgeError where it cannot be a file, or a YAML or JSON file of a run is damaged.
    """
    check_page(output)
    found = compare(runs)
    target = output or Path(found.folder) / "comparison.html"
    title = Path(found.folder).name or "comparison"
    ranked = [*found.configurations]  # with curves: the first, or the best where colours run out
    if len(ranked) > COLOURS and best_of(ranked) is not None:
        ranked.sort(key=lambda one: -float("inf") if one.objective is None else one.objective)
        ranked.reverse()
    drawn = ranked[:COLOURS]
    ended = sum(run.status == "done" for run in found.runs)
    state = f"{ended} of {len(found.runs)} runs done. "
    best = el("code", f"Best objective: {found.best}.") if found.best else None
    top = el("header", el("h1", title), el("p", state, best))
    body = el("body", top, _tables(found, drawn, target), *_curves(found, drawn))
    return write_page(target, f"{title}: rlforge comparison", body)


def _tables(found: Comparison, drawn: Sequence[Configuration], target: Path) -> Html:
    """The configurations, where one has several runs, and the runs, with colours of the curves."""
    colours = {id(one): f"key c{index}" for index, one in enumerate(drawn)}
    keys, names = [], []
    for one in found.configurations:
        colour = colours.get(id(one))
        key = None if colour is None else el("i", cls=colour)
        keys.append(key)
        for run in one.runs:
            name: str = found.name(run)
            report = RunPaths(root=Path(run.path)).report
            if report.is_file():
                name = el("a", name, href=quote(os.path.relpath(report, target.parent)))
            names.append(join([key, name]))
    seeds = of_seeds(found)
    named = [join([key, line.name]) for key, line in zip(keys, seeds, strict=False)]
    about = f"Runs that differ in nothing but their seed: {OF_SEEDS}, of the runs that are done."
    note = f"The settings in which they differ, and the last {OF_RUNS}."
    return join(
        [
            section("Configurations", about, _table(seeds, named, "seeds")) if seeds else None,
            section("Runs", note, _table(of_runs(found), names, "run")),
        ]
    )


def _table(lines: Sequence[Line], names: Sequence[Html], title: str) -> Html:
    settings, results = columns(lines)
    rows = []
    for line, name in zip(lines, names, strict=True):
        state = ", ".join(filter(None, [line.status, line.done]))
        best = el("span", "best", cls="badge good") if line.best else None
        figures = [line.results.get(key, NOTHING) for key in results]
        given = [line.settings.get(key, NOTHING) for key in settings]
        rows.append([name, join([state, " " if state else "", best]), *given, *figures, line.wall])
    heads = [title, "status", *settings, *results, "wall"]
    return table(heads, rows, f"One row per {title}", names=2 + len(settings))


def _curves(found: Comparison, drawn: Sequence[Configuration]) -> list[Html | None]:
    """The sections of charts, one line per configuration."""
    evals = {p: by_pairing(read_evals(RunPaths(root=Path(p)))) for p in _paths(drawn)}
    pairs = dict.fromkeys(pair for own in evals.values() for pair in own)
    won = [
        Chart(
            title=f"{pair[0]} vs {pair[1]}",
            series=_lines(
                drawn,
                {
                    path: {one.step: one.win_rate for one in own.get(pair, ())}
                    for path, own in evals.items()
                },
            ),
            shares=True,
        )
        for pair in pairs
    ]
    windows, updates = _rows(drawn, "windows"), _rows(drawn, "metrics")
    gained = [
        Chart(title=title, series=_lines(drawn, _points(windows, key, "window")), x_name="window")
        for key, title in _OF_WINDOWS.items()
    ]
    learnt = [
        Chart(title=title, series=_lines(drawn, _points(updates, key, "step")), smooth=True)
        for key, title in _OF_UPDATES.items()
    ]
    left = len(found.configurations) - len(drawn)
    note = (
        "One line per configuration: the mean over its seeds, with a band from the least to the "
        "highest of them." + (f" {left} further configurations are not drawn." if left else "")
    )
    return [
        section("Win rates", note, charts(map(figure, won))),
        section("Windows", note, charts(map(figure, gained))),
        section("Learning", note, charts(map(figure, learnt))),
    ]


def _rows(drawn: Iterable[Configuration], file: str) -> dict[str, list[Row]]:
    """The lines of one JSONL file of each run, by path."""
    return {p: read_jsonl(getattr(RunPaths(root=Path(p)), file)) for p in _paths(drawn)}


def _paths(drawn: Iterable[Configuration]) -> list[str]:
    return [run.path for one in drawn for run in one.runs]


_Points = Mapping[str, Mapping[float, float]]


def _points(rows: Mapping[str, list[Row]], key: str, x: str) -> _Points:
    return {
        path: {row[x]: row[key] for row in found if row.get(key) is not None}
        for path, found in rows.items()
    }


def _lines(drawn: Sequence[Configuration], points: _Points) -> list[Series]:
    """A line per configuration that has points."""
    lines = []
    for index, one in enumerate(drawn):
        runs = [points[run.path] for run in one.runs]
        xs = sorted({x for run in runs for x in run})
        found = [[run[x] for run in runs if x in run] for x in xs]
        band = len(one.runs) > 1
        what = ", ".join(settings_text(dict(one.settings))[:2]) or one.runs[0].path
        lines.append(
            Series(
                name=f"{what} (n={len(one.runs)})" if band else what,
                xs=xs,
                ys=[statistics.fmean(ys) for ys in found],
                low=[min(ys) for ys in found] if band else None,
                high=[max(ys) for ys in found] if band else None,
                colour=f"c{index}",
            )
        )
    return lines
