"""``rlforge play`` and ``rlforge replay``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlforge.cli.arguments import Checkpoint, ConfigDir, Overrides, RunDir, must_be_run
from rlforge.errors import ConfigError


def play(
    overrides: Overrides = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Play against this run's policy, at its games.",
            callback=must_be_run,
        ),
    ] = None,
    checkpoint: Checkpoint = "latest",
    opponent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Repeatable, one per other seat: a scripted player, base, step-N of the run, "
            "checkpoint:DIR, openai:MODEL, openrouter:MODEL or "
            "litellm:PROVIDER/MODEL.",
        ),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Which of several environments.")
    ] = None,
    seat: Annotated[int, typer.Option(metavar="N", help="Your seat; seat 0 begins.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the game.")] = 0,
    config_dir: ConfigDir = None,
) -> None:
    """Play a game against policies; type [bold]quit[/bold] to leave.

    [bold]Examples[/bold]

      rlforge play env=tictactoe --opponent minimax

      rlforge play --run runs/simpletak_mirror/2026-01-01_12-00-00 --seat 1
    """
    import asyncio

    from rlforge.local import play as local

    config, rivals = local.prepare(overrides or [], config_dir, run, checkpoint, opponent or [])
    spec = local.find_env(config, env)
    policies = local.seats_of(spec, seat, rivals)
    while True:
        person = local.Person(input, typer.echo)
        try:
            record = asyncio.run(local.play(config, spec, policies, seed, person, typer.echo))
        except local.Leave:
            typer.echo("you left the game")
            return
        except KeyboardInterrupt:
            typer.echo()  # the message that follows has a line of its own
            raise
        typer.echo(local.verdict(record))
        if record.error is not None:
            raise typer.Exit(1)
        if not sys.stdin.isatty() or not typer.confirm("another game?"):
            return
        seed += 1


def replay(
    run_dir: RunDir,
    game: Annotated[
        str | None,
        typer.Argument(metavar="GAME", help="A game's id; without it, the newest are listed."),
    ] = None,
    last: Annotated[int, typer.Option(metavar="N", help="Games in the list.", min=1)] = 20,
) -> None:
    """Show finished games of a run: the newest in a list, or one turn by turn.

    [bold]Examples[/bold]

      rlforge replay runs/simpletak_mirror/2026-01-01_12-00-00

      rlforge replay runs/simpletak_mirror/2026-01-01_12-00-00 train-000001
    """
    from rlforge.local.play import find_game, game_list, turns
    from rlforge.tracking.files import RunPaths

    if RunPaths(root=run_dir).windows.is_file():
        raise ConfigError(
            f"{run_dir} has decisions in windows of time instead of games: "
            f"rlforge windows list {run_dir}, rlforge windows decisions {run_dir} WINDOW"
        )
    console = Console()
    if game is None:
        console.print(game_list(run_dir, last))
        return
    for piece in turns(find_game(run_dir, game)):
        console.print(piece)
