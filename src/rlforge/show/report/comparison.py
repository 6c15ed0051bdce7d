"""``comparison.html``: tables and main curves of several runs, in one file that opens offline."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from rlforge.record.files import RunPaths, read_jsonl
from rlforge.record.results import by_pairing, read_evals
from rlforge.show.compare import Configuration, best_of, compare
from rlforge.show.compare_view import OF_RUNS, OF_SEEDS, columns, settings_text
from rlforge.show.report.charts import COLOURS, Chart, Series
from rlforge.show.report.data import Row
from rlforge.show.report.page import check_page, render, write_page

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
    colours = {id(one): f"c{index}" for index, one in enumerate(drawn)}
    coloured = [(colours.get(id(one)), one) for one in found.configurations]
    links = [(colour, _report(run.path, target)) for colour, one in coloured for run in one.runs]
    seeds = [(colour, None) for colour, _ in coloured]
    page = render(
        "show/report/comparison.html.jinja",
        title=title,
        found=found,
        runs=list(zip(links, found.by_configuration, strict=True)),
        seeds=list(zip(seeds, found.seeds, strict=False)),  # none where each has one run
        columns=columns,
        best_of=best_of,
        of_runs=OF_RUNS,
        of_seeds=OF_SEEDS,
        left_out=len(ranked) - len(drawn),
        **_curves(drawn),
    )
    return write_page(target, page)


def _report(run: str, target: Path) -> str | None:
    """The address of a run's report on the page ``target``; None without one."""
    report = RunPaths(root=Path(run)).report
    return quote(os.path.relpath(report, target.parent)) if report.is_file() else None


def _curves(drawn: Sequence[Configuration]) -> dict[str, list[Chart]]:
    """The charts of each section, one line per configuration."""
    evals = {p: by_pairing(read_evals(RunPaths(root=Path(p)))) for p in _paths(drawn)}
    pairs = dict.fromkeys(pair for own in evals.values() for pair in own)
    windows, updates = _rows(drawn, "windows"), _rows(drawn, "metrics")
    won: list[Chart] = []
    for pair in pairs:
        own: _Points = {
            path: {one.step: one.win_rate for one in found.get(pair, ())}
            for path, found in evals.items()
        }
        title = f"{pair[0]} vs {pair[1]}"
        won.append(Chart(title=title, series=_lines(drawn, own), shares=True))
    gained = [
        Chart(title=title, series=_lines(drawn, _points(windows, key, "window")), x_name="window")
        for key, title in _OF_WINDOWS.items()
    ]
    learnt = [
        Chart(title=title, series=_lines(drawn, _points(updates, key, "step")), smooth=True)
        for key, title in _OF_UPDATES.items()
    ]
    return {"won": won, "gained": gained, "learnt": learnt}


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
        what = ", ".join(settings_text(one.settings)[:2]) or one.runs[0].path
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
