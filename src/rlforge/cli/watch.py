"""``rlforge monitor`` and ``rlforge report``."""

from __future__ import annotations

from typing import Annotated

import typer

from rlforge.cli.arguments import RunDir


def monitor(
    run_dir: RunDir,
    once: Annotated[bool, typer.Option("--once", help="Print one view and leave.")] = False,
    refresh: Annotated[float, typer.Option(help="Seconds between views.", min=0.1)] = 1.0,
) -> None:
    """Watch a running or finished run from another terminal; Ctrl-C leaves it running.

    [bold]Example[/bold]

      rlforge monitor runs/simpletak_mirror/2026-01-01_12-00-00
    """
    from rlforge.tracking.display import monitor as attach

    attach(run_dir, once=once, refresh_s=refresh)


def report(run_dir: RunDir) -> None:
    """Write report.html, which opens offline; prints its path.

    [bold]Example[/bold]

      rlforge report runs/simpletak_mirror/2026-01-01_12-00-00
    """
    from rlforge.tracking.report import write_report

    typer.echo(str(write_report(run_dir)))
