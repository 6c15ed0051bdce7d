"""``rlforge continuous``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlforge.errors import ConfigError, RlforgeError


def continuous(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="+experiment=NAME and changes to it. Keys: rlforge config, docs/config.md.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Go on with the run in this directory.",
        ),
    ] = None,
    config_dir: Annotated[
        Path | None,
        typer.Option(
            "--config-dir", help="Folder with your own experiment/, market/ … YAML files."
        ),
    ] = None,
) -> None:
    """Train from window to window of a market; the last line printed is the run directory.

    Waits for a window, collects its decisions, scores them, trains on the good ones and deploys
    what comes of it, again and again. Ctrl-C ends it after the phase it is in.

    [bold]Examples[/bold]

      rlforge continuous +experiment=market_continuous

      rlforge continuous +experiment=market_continuous continuous.windows=20 seed=1

      rlforge continuous --resume runs/market_continuous/2026-01-01_12-00-00
    """
    from rlforge import launch
    from rlforge.tracking.files import open_run

    if resume is not None and (overrides or config_dir):
        raise ConfigError("--resume goes on with the run's own config; give it no other argument")
    if resume is None:
        outcome = launch.train_continuously(overrides or [], config_dir)
    else:
        try:
            run_dir = open_run(resume).root
        except RlforgeError as error:
            raise ConfigError(str(error)) from error
        outcome = launch.resume_continuous(run_dir)
    if outcome.interrupted:
        again = f"rlforge continuous --resume {outcome.run_dir}"
        typer.echo(f"interrupted after {outcome.windows} windows; go on with: {again}", err=True)
    typer.echo(str(outcome.run_dir))
    if outcome.interrupted:
        raise typer.Exit(130)
