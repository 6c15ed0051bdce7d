"""``rlforge continuous``."""

from __future__ import annotations

import typer

from rlforge.cli.arguments import ConfigDir, Multirun, Overrides, Resume
from rlforge.errors import ConfigError


def continuous(
    overrides: Overrides = None,
    multirun: Multirun = False,
    resume: Resume = None,
    config_dir: ConfigDir = None,
) -> None:
    """Train from window to window of a market; the last line printed is the run directory.

    Waits for a window, collects its decisions, scores them, trains on the good ones and deploys
    what comes of it, again and again. Ctrl-C ends it after the phase it is in.

    [bold]Examples[/bold]

      rlforge continuous +experiment=market_continuous

      rlforge continuous +experiment=market_continuous continuous.windows=20 seed=1

      rlforge continuous -m +experiment=market_continuous algorithm=window_grpo,window_ppo

      rlforge continuous --resume runs/market_continuous/2026-01-01_12-00-00
    """
    from rlforge import launch
    from rlforge.config.continuous import ContinuousConfig

    if resume is not None and (overrides or multirun or config_dir):
        raise ConfigError("--resume goes on with the run's own config; give it no other argument")
    if multirun:
        if not launch.sweep(overrides or [], config_dir, ContinuousConfig):
            raise typer.Exit(1)
        return
    outcome = (
        launch.train_continuously(overrides or [], config_dir)
        if resume is None
        else launch.resume_continuous(resume)
    )
    if outcome.interrupted:
        again = f"rlforge continuous --resume {outcome.run_dir}"
        typer.echo(f"interrupted after {outcome.windows} windows; go on with: {again}", err=True)
    typer.echo(str(outcome.run_dir))
    if outcome.interrupted:
        raise typer.Exit(130)
