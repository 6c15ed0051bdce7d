"""Shows the jobs of a sweep, or any runs of one folder, while they run (``rlforge monitor``)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from rlforge.record.files import RunPaths, read_json
from rlforge.record.status import read_progress
from rlforge.record.sweeps import SWEEP_FILE, all_jobs, is_sweep, job_of, shortened, under_way
from rlforge.show.formatting import NOTHING, duration
from rlforge.show.overview import RunRow, run_row
from rlforge.show.panels import MIDDLE, section, table_of
from rlforge.show.view import STATUS_STYLE
from rlforge.types import value


@value
class JobRow:
    """A job. name: its folder. overrides: those that not all jobs have. eta_s: seconds left."""

    name: str
    run: RunRow
    overrides: tuple[str, ...]
    eta_s: float | None


def job_rows(folder: Path) -> list[JobRow]:
    """The jobs of a sweep, waiting ones too, or runs of a folder; RlforgeError for damaged JSON."""
    rows = []
    for path in all_jobs(folder):
        job, run, eta_s = job_of(path), run_row(path), None
        if run.status == "running":
            eta_s = read_progress(RunPaths(root=path)).get("eta_s")
        own = () if job is None else job.overrides
        name = str(path.relative_to(folder))
        rows.append(JobRow(name=name, run=run, overrides=own, eta_s=eta_s))
    return rows


def headline(folder: Path, rows: Sequence[JobRow]) -> str:
    """How many jobs there are, as far as that is known, and how they stand.

    Example:
        >>> run = RunRow(path="runs/x/0", status="done", done="3/3 updates", result="")
        >>> headline(Path("runs/x"), [JobRow(name="0", run=run, overrides=(), eta_s=None)])
        '1 run: 1 done'
    """
    counts = Counter(row.run.status for row in rows)
    sweep = read_json(folder / SWEEP_FILE)
    what = "job" if sweep else "run"
    so_far = " so far" if sweep and sweep["jobs"] is None else ""
    number = f"{len(rows)} {what}{'s' * (len(rows) != 1)}{so_far}"
    return f"{number}: {', '.join(f'{count} {status}' for status, count in counts.items())}"


def jobs_view(folder: Path, rows: Sequence[JobRow], width: int) -> RenderableType:
    """One frame; in narrow terminals without the results."""
    titles = [("job", "right") if is_sweep(folder) else ("run", "left")]
    titles += [("overrides", "left")] if any(row.overrides for row in rows) else []
    titles += [("status", "right"), ("done", "right"), ("ETA", "right")]
    titles += [("last result", "left")] if width >= MIDDLE else []
    table = table_of(*titles)
    for row in rows:
        done = row.run.done.removesuffix(" updates").removesuffix(" windows")
        cells = {
            "job": Text(row.name),
            "run": Text(row.name),
            "overrides": Text("\n".join(map(shortened, row.overrides)) or NOTHING),
            "status": Text(row.run.status, style=STATUS_STYLE.get(row.run.status, "dim")),
            "done": Text(done),
            "ETA": Text(duration(row.eta_s)),
            "last result": Text(row.run.result or NOTHING),
        }
        table.add_row(*(cells[title] for title, _ in titles))
    return section(f"{folder.name}  {headline(folder, rows)}", table)


def monitor_jobs(
    folder: Path, once: bool = False, refresh_s: float = 1.0, console: Console | None = None
) -> None:
    """Show the jobs until none runs any more; Ctrl-C ends the display, not the jobs.

    Where nothing can be redrawn: a line for each change. Raises RlforgeError for damaged JSON.
    """
    console = console or Console()
    if once:
        console.print(jobs_view(folder, job_rows(folder), console.width))
        return
    try:
        if console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, auto_refresh=False) as live:
                for rows in _until_the_end(folder, refresh_s):
                    live.update(jobs_view(folder, rows, console.width), refresh=True)
        else:
            _print_changes(folder, refresh_s, console)
    except KeyboardInterrupt:
        return


def _until_the_end(folder: Path, refresh_s: float) -> Iterator[list[JobRow]]:
    """The rows, again and again while the sweep, or any run, is under way."""
    while under_way(folder):
        yield job_rows(folder)
        time.sleep(refresh_s)
    yield job_rows(folder)


def _print_changes(folder: Path, refresh_s: float, console: Console) -> None:
    printed: dict[str, tuple[str, str]] = {}
    for rows in _until_the_end(folder, refresh_s):
        for row in rows:
            now = (row.run.status, row.run.result)
            if printed.get(row.name) != now:
                printed[row.name] = now
                about = " ".join([row.name, *row.overrides])
                state = ", ".join(filter(None, [row.run.status, row.run.done, row.run.result]))
                console.print(f"{about}: {state}", markup=False, highlight=False, soft_wrap=True)
    console.print(headline(folder, rows), highlight=False)
