"""``rlforge verify``: whether a finished run is what it says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from rlforge.cli.arguments import JsonFile, RunDir, say, write_result
from rlforge.errors import RunError
from rlforge.show.console import Console
from rlforge.show.panels import Listing

if TYPE_CHECKING:
    from rlforge.record.recorded import Check

_MOST_SHOWN = 3


def verify(
    run_dir: RunDir,
    whole: Annotated[
        bool, typer.Option("--all", help="Check everything. Default: a part, drawn by --seed.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Decides which part.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Check that a run is what it says: make its games, batches and weights again, and compare.

    Games are played again with their recorded answers, rewards and log-probs computed again, and
    updates made again from saved states; digests.jsonl says what they must be. A run with
    determinism=strict must agree to the last bit, another one up to rounding. Of a continuous run
    the windows are checked: decisions, scores, versions.

    Ends with code 1 and the first thing that does not agree.

    **Examples**

    ```bash
    rlforge verify runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge verify latest --all
    ```
    """
    from rlforge.lab.verify.check import verify as check_run

    began = time.monotonic()
    found = check_run(run_dir, whole=whole, seed=seed, say=say)
    write_result(json_file, found)
    console = Console(highlight=False)
    for line in found.differs:
        console.print(f"computed elsewhere: {line}", style="yellow", markup=False)
    console.print(_table(found.checks))
    for check in found.checks:
        for note in check.notes:
            console.print(f"{check.name}: {note}", style="dim", markup=False)
    if problems := found.problems:
        for name, problem in problems[1 : _MOST_SHOWN + 1]:
            console.print(f"also, {name}: {problem}", markup=False)
        if (more := len(problems) - _MOST_SHOWN - 1) > 0:
            console.print(f"and {more} more", style="dim")
        # The first problem comes last, where a terminal ends: the others may follow from it.
        name, problem = problems[0]
        raise RunError(f"{name}: {problem}")
    part = "everything" if whole else "a part (--all checks everything)"
    console.print(f"verified {part} in {time.monotonic() - began:.0f} s", style="dim")


def _table(checks: tuple[Check, ...]) -> Table:
    table = Listing("check", "checked", "result", whole=["check"], left=["result"])
    table.show_header = False
    for check in checks:
        of = "" if check.checked == check.total else f" of {check.total:,}"
        number = f"{check.checked:,}{of} {check.things}" if check.checked else "–"
        result = "does not agree" if check.problems else check.result if check.checked else ""
        table.add_row(check.name, number, result, style="red" if check.problems else None)
    return table
