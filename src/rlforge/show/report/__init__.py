"""``report.html``: curves, tables and games of a run, in one file that opens offline."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

from rlforge.config.plugins import RUN_KINDS
from rlforge.record.status import why_it_ended
from rlforge.show.report import curves, tables
from rlforge.show.report.data import RunData, load_run
from rlforge.show.report.games import analysed, sample_games
from rlforge.show.report.html import Html, check_page, el, write_page

__all__ = ["of_games", "write_report"]


def write_report(run_dir: Path | str, output: Path | str | None = None) -> Path:
    """Write the report of a running or finished run and return its path.

    output: None is ``report.html`` of the run. Raises RlforgeError for no run, damaged JSON files,
    and an output that cannot be a file.
    """
    target = None if output is None else Path(output)
    check_page(target)
    run = load_run(run_dir)
    top, *sections = resolve_name(RUN_KINDS.find(run.kind).report)(run)
    # What a reader must know before any figure: why the run ended, and what its files lack.
    ending = why_it_ended(run.summary)
    found = [*([f"The run {ending}."] if ending else ()), *(f"{each}." for each in run.damage)]
    warnings = el("div", *(el("p", each, cls="bad") for each in found), role="alert")
    body = el("body", top, warnings if found else None, *sections)
    return write_page(target or run.paths.report, f"{run.name}: rlforge report", body)


def of_games(run: RunData) -> list[Html | None]:
    """The sections of a run that plays games, its head first."""
    return [
        tables.head(run),
        tables.reached(run),
        tables.alarms(run),
        curves.win_rates(run),
        curves.exact(run),
        curves.learner(run),
        curves.training_games(run),
        curves.throughput(run),
        tables.ladder(run),
        curves.ratings(run),
        tables.pool(run),
        tables.api_players(run),
        analysed(run),
        sample_games(run),
        tables.failures(run),
        tables.made_by(run),
    ]
