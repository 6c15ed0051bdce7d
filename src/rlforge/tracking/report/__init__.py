"""``report.html``: curves, tables and games of a run, in one file that opens offline.

``data`` reads the run; ``curves``, ``tables``, ``games`` and, for continuous runs, ``windows`` and
``decisions`` make the sections; ``charts`` draws, ``html`` makes markup, and ``style.css`` is the
style sheet.
"""

from __future__ import annotations

from pathlib import Path

from rlforge.system.files import atomic_write
from rlforge.tracking.report import curves, tables, windows
from rlforge.tracking.report.data import RunData, load_run
from rlforge.tracking.report.decisions import sample_decisions
from rlforge.tracking.report.games import sample_games
from rlforge.tracking.report.html import Html, el

__all__ = ["write_report"]

_STYLE = Path(__file__).with_name("style.css")


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` of a running or finished run and return its path.

    Raises:
        RlforgeError: ``run_dir`` is not a run, or one of its JSON files is damaged.
    """
    run = load_run(run_dir)
    body = el("body", *(_of_windows(run) if run.continuous else _of_games(run)))
    head = el(
        "head",
        Html('<meta charset="utf-8">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        el("title", f"{run.name}: rlforge report"),
        el("style", Html(_STYLE.read_text(encoding="utf-8"))),
    )
    page = f"<!doctype html>\n{el('html', head, body, lang='en')}\n"
    atomic_write(run.paths.report, page.encode(errors="replace"))
    return run.paths.report


def _of_games(run: RunData) -> list[Html | None]:
    return [
        tables.head(run),
        tables.reached(run),
        curves.win_rates(run),
        curves.learner(run),
        curves.training_games(run),
        curves.throughput(run),
        curves.ratings(run),
        tables.pool(run),
        sample_games(run),
        tables.failures(run),
        tables.made_by(run),
    ]


def _of_windows(run: RunData) -> list[Html | None]:
    return [
        windows.head(run),
        windows.before_and_after(run),
        windows.learning_curves(run),
        windows.behaviour(run),
        windows.listed(run),
        curves.learner(run),
        windows.scoring(run),
        sample_decisions(run),
        tables.made_by(run),
    ]
