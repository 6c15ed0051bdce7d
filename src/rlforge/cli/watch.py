"""``rlforge runs``, ``why``, ``compare``, ``monitor`` and ``report``: what looks at runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rlforge.cli.arguments import (
    FIRST_RUN,
    RUNS,
    JsonFile,
    RunDir,
    must_be_run,
    offered_runs,
    write_result,
)
from rlforge.cli.games import must_have_games
from rlforge.errors import ConfigError
from rlforge.show.console import Console
from rlforge.system.files import write_out
from rlforge.system.folders import check_file


def _run_or_folder(path: Path) -> Path:
    """Refuse a path that is neither a run nor a folder with runs; ``latest`` is the newest run."""
    from rlforge.record.sweeps import all_jobs

    return path if path.is_dir() and all_jobs(path) else must_be_run(path) or path


RunOrFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run, latest, or a folder with several, such as that of a sweep.",
        callback=_run_or_folder,
        autocompletion=offered_runs,
    ),
]
RunsOrFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Runs, latest, or folders with several, such as that of a sweep.",
        callback=lambda paths: [_run_or_folder(path) for path in paths],
        autocompletion=offered_runs,
    ),
]


def runs(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look for runs.")
    ] = RUNS,
    json_file: JsonFile = None,
) -> None:
    """List runs, the newest first: how each ended, how far it came, and its last results.

    The runs of a folder, and the jobs of a sweep, are one table, with the settings in which they
    differ.

    **Examples**

    ```bash
    rlforge runs
    rlforge monitor latest
    ```
    """
    from rlforge.record.files import RunPaths, runs_below
    from rlforge.record.sweeps import all_jobs, is_sweep
    from rlforge.show.compare import compare as compared
    from rlforge.show.compare_view import headline
    from rlforge.show.compare_view import listed as table

    # Before the first run the usual folder is not there, which is no mistake.
    if not folder.is_dir() and folder != RUNS:
        raise ConfigError(f"there is no folder {folder}; runs are below {RUNS}/, or name theirs")
    # A run that is named is listed alone, and not with the other jobs of its sweep.
    single = RunPaths(root=folder).is_run()
    found, listed, console = [folder] if single else runs_below(folder), [], Console()
    for parent in dict.fromkeys(path.parent for path in found):
        inside = [path for path in found if path.parent == parent]
        # Jobs that wait, or failed before they were runs, belong to the sweep's table.
        listed.append(compared(all_jobs(parent) if is_sweep(parent) and not single else inside))
    rows = [run for comparison in listed for run in comparison.runs]
    write_result(json_file, rows)
    if not found:
        typer.echo(f"{folder}/ holds no runs yet; {FIRST_RUN}")
    for comparison in listed:
        head = Text.assemble((comparison.folder, "bold"), f"  {headline(comparison)}")
        console.print(head, soft_wrap=True)
        console.print(table(comparison))
        for line in (*comparison.damaged, ""):
            typer.echo(line)


def why(run_dir: RunDir, json_file: JsonFile = None) -> None:
    """Explain why a run learned, or did not: its signals, curves and games, and what to change.

    Also while it goes on, and of runs of earlier versions: it reads their records.

    **Examples**

    ```bash
    rlforge why latest
    rlforge why runs/simpletak_mirror/2026-01-01_12-00-00 --json why.json
    ```
    """
    from rlforge.show.why import explain, to_values
    from rlforge.show.why_view import pieces

    must_have_games(run_dir)
    found = explain(run_dir)
    write_result(json_file, to_values(found))
    console = Console(highlight=False)
    for piece in pieces(found, run_dir):
        console.print(piece, crop=False)


def compare(
    paths: RunsOrFolders,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Also write a .csv or .md file."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare runs: the settings in which they differ, and their results.

    Runs that differ only in their seed are one configuration, with mean and range. Best is the
    highest objective, which sweeps maximise.

    **Examples**

    ```bash
    rlforge compare runs/tictactoe_mirror/sweep_2026-01-01_12-00-00
    rlforge compare RUN RUN --output runs.csv
    ```
    """
    from rlforge.show.compare import compare as compared
    from rlforge.show.compare import runs_of
    from rlforge.show.compare_view import show, to_csv, to_markdown

    writers = {".csv": to_csv, ".md": to_markdown}
    if output is not None and output.suffix not in writers:
        raise ConfigError(f"--output {output}: write NAME.csv or NAME.md")
    check_file("--output", output)
    found = runs_of(paths)
    if len(found) < 2:
        raise ConfigError(f"{found[0]} is one run; name two or more, or a folder that holds them")
    comparison = compared(found)
    if output is not None:
        write_out(output, writers[output.suffix](comparison))
    write_result(json_file, comparison)
    show(comparison, Console())


def monitor(
    run: RunOrFolder,
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between views.", min=0.1)] = 1.0,
) -> None:
    """Watch a run, or the jobs of a sweep, from another terminal; Ctrl-C leaves them running.

    **Examples**

    ```bash
    rlforge monitor runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge monitor runs/tictactoe_mirror/sweep_2026-01-01_12-00-00
    ```
    """
    from rlforge.record.files import RunPaths
    from rlforge.show.display import monitor as monitor_run
    from rlforge.show.display import monitor_jobs

    show = monitor_run if RunPaths(root=run).is_run() else monitor_jobs
    show(run, once=once, refresh_s=refresh)


def report(
    paths: RunsOrFolders,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write, not report.html of the run."
        ),
    ] = None,
) -> None:
    """Write report.html of a run, or comparison.html of several; prints its path.

    Both open offline. Of a run that goes on, call it again and reload the page.

    **Examples**

    ```bash
    rlforge report runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge report runs/simpletak_mirror/2026-01-01_12-00-00 --output page.html
    rlforge report runs/tictactoe_mirror/sweep_2026-01-01_12-00-00
    ```
    """
    from rlforge.record.files import RunPaths
    from rlforge.show.compare import runs_of
    from rlforge.show.report import write_report
    from rlforge.show.report.comparison import write_comparison

    if len(paths) == 1 and RunPaths(root=paths[0]).is_run():
        page = write_report(paths[0], output)
    else:
        page = write_comparison(runs_of(paths), output)
    typer.echo(str(page))
