"""``report.html``: curves, tables and games of a run, in one file that opens offline."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name

from rlforge.config.overrides import assignments
from rlforge.config.plugins import RUN_KINDS
from rlforge.record.signals import with_times
from rlforge.show.report import curves, games, tables
from rlforge.show.report.data import RunData, load_run
from rlforge.show.report.page import render, write_page
from rlforge.system.folders import check_file

__all__ = ["of_games", "write_report"]


def write_report(run_dir: Path | str, output: Path | str | None = None) -> Path:
    """Write the report of a run, by default its ``report.html``, and return the path.

    Raises RlforgeError for no run, damaged JSON files, and an output that cannot be a file.
    """
    target = None if output is None else Path(output)
    check_file("report", target)
    run = load_run(run_dir)
    page = resolve_name(RUN_KINDS.find(run.kind).report)(run)
    return write_page(target or run.paths.report, page)


def of_games(run: RunData) -> str:
    return render(
        "show/report/run.html.jinja",
        run=run,
        signals=with_times(run.signals),
        assignments=assignments,
        curves=curves,
        games=games,
        tables=tables,
    )
