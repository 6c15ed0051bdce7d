"""``comparison.html``: tables and main curves of several runs, in one file that opens offline."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from rlforge.record.files import RunPaths, read_jsonl
from rlforge.record.results import by_pairing, read_evals
from rlforge.show.compare import Configuration, best_of, compare
from rlforge.show.compare_view import OF_RUNS, OF_SEEDS, columns, settings_text
from rlforge.show.report.charts import COLOURS, Chart, Series
from rlforge.show.report.page import render, write_page
from rlforge.system.folders import check_file

#: Curves over updates, and over windows: key and title.
_OF_UPDATES = {"reward_mean": "reward", "loss": "loss", "validation_loss": "held-out loss"}
_OF_WINDOWS = {
    "reward_difference": "reward above the control",
    "policy_reward": "reward",
    "control_reward": "reward of the control",
}

Values = Mapping[str, Mapping[float, float]]
"""The points of a curve, by the path of the run."""


def write_comparison(runs: Sequence[Path], output: Path | None = None) -> Path:
    """Write the comparison of ``runs``, by default in the folder of all; returns its path.

    Raises RlforgeError for an impossible output, and for damaged files.
    """
    check_file("report", output)
    found = compare(runs)
    target = output or Path(found.folder) / "comparison.html"
    title = Path(found.folder).name or "comparison"
    ranked = [*found.configurations]  # with curves: the first, or the best where colours run out
    if len(ranked) > COLOURS and best_of(ranked) is not None:
        ranked.sort(key=lambda one: -float("inf") if one.objective is None else one.objective)
        ranked.reverse()
    drawn = ranked[:COLOURS]
    # By identity: configurations hold mappings, which have no hash.
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
    # Relative: the folder of all runs may be moved or served.
    report = RunPaths(root=Path(run)).report
    return quote(os.path.relpath(report, target.parent)) if report.is_file() else None


def _curves(drawn: Sequence[Configuration]) -> dict[str, list[Chart]]:
    values = {
        run.path: {} if run.status == "damaged" else _values(RunPaths(root=Path(run.path)))
        for one in drawn
        for run in one.runs
    }
    charts: dict[str, list[Chart]] = {"won": [], "gained": [], "learnt": []}
    for section, title in dict.fromkeys(key for own in values.values() for key in own):
        points = {path: own.get((section, title), {}) for path, own in values.items()}
        charts[section].append(
            Chart(
                title=title,
                series=_lines(drawn, points),
                shares=section == "won",
                smooth=section == "learnt",
                x_name="window" if section == "gained" else "update",
            )
        )
    return charts


def _values(run: RunPaths) -> dict[tuple[str, str], dict[float, float]]:
    found = {}
    for (env, opponent), evals in by_pairing(read_evals(run)).items():
        found["won", f"{env} vs {opponent}"] = {float(one.step): one.win_rate for one in evals}
    for section, file, x, keys in (
        ("gained", run.windows, "window", _OF_WINDOWS),
        ("learnt", run.metrics, "step", _OF_UPDATES),
    ):
        rows = read_jsonl(file)
        for key, title in keys.items():
            known = {row[x]: row[key] for row in rows if row.get(key) is not None}
            found[section, title] = known
    return found


def _lines(drawn: Sequence[Configuration], values: Values) -> list[Series]:
    """A line per configuration; of several runs the mean with the range."""
    lines = []
    for index, one in enumerate(drawn):
        runs = [values[run.path] for run in one.runs]
        # Runs may have ended at different updates: a point is of those that reached it.
        found = [(x, [run[x] for run in runs if x in run]) for x in sorted({*chain(*runs)})]
        points = [(x, statistics.fmean(ys), min(ys), max(ys)) for x, ys in found]
        name = ", ".join(settings_text(one.settings)[:2]) or one.runs[0].path
        if len(runs) > 1:
            name = f"{name} (n={len(runs)})"
        line = Series.banded(name, points, colour=f"c{index}")
        lines.append(line if len(runs) > 1 else dataclasses.replace(line, low=None, high=None))
    return lines
