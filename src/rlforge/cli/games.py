"""``rlforge play``, ``rlforge replay`` and ``rlforge batches``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from rlforge.cli.arguments import (
    OPPONENTS,
    Checkpoint,
    ConfigDir,
    JsonFile,
    Overrides,
    RunDir,
    must_be_run,
    say_result,
    write_result,
)
from rlforge.errors import ConfigError, command_line
from rlforge.show.console import Console
from rlforge.types import Outcome, Purpose

Result = Literal[Outcome, "failed"]


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
    checkpoint: Checkpoint = "result",
    opponent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Repeatable, one per other seat: {OPPONENTS}."),
    ] = None,
    env: Annotated[
        str | None, typer.Option("--env", metavar="ID", help="Which of several environments.")
    ] = None,
    seat: Annotated[int, typer.Option(metavar="N", help="Your seat; seat 0 begins.")] = 0,
    seed: Annotated[int, typer.Option(metavar="N", help="Random seed of the game.")] = 0,
    config_dir: ConfigDir = None,
) -> None:
    """Play a game against policies; type `quit` to leave.

    **Examples**

    ```bash
    rlforge play env=tictactoe --opponent minimax
    rlforge play --run runs/simpletak_mirror/2026-01-01_12-00-00 --seat 1
    ```
    """
    import asyncio

    from rlforge.show import play as local

    if run is not None and not opponent:
        say_result(run, checkpoint)
    config, rivals = local.prepare(overrides or [], config_dir, run, checkpoint, opponent or [])
    spec = local.find_env(config, env)
    policies = local.seats_of(spec, seat, rivals)
    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(Text(text))  # breaks lines between words

    try:
        while True:
            person = local.Person(input, say)
            record = asyncio.run(local.play(config, spec, policies, seed, person, say))
            say(local.verdict(record))
            if record.error is not None:
                raise typer.Exit(1)
            # A script that types the moves is asked no more questions.
            if not sys.stdin.isatty() or not _again():
                return
            seed += 1  # else the same game follows
    except local.Leave:
        say("you left the game")
    except KeyboardInterrupt:
        say("")  # the message that follows has a line of its own
        raise


def _again() -> bool:
    try:
        return input("another game? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # input ended, as by Ctrl-D
        return False


def _svg(file: Path | None) -> Path | None:
    if file is not None:
        from rlforge.show.replay import check_picture

        check_picture(file)
    return file


def must_have_games(run_dir: Path) -> None:
    """Refuse a continuous run, which has no games."""
    from rlforge.record.files import RunPaths

    if RunPaths(root=run_dir).windows.is_file():
        windows = command_line("windows", "list", run_dir)
        decisions = command_line("windows", "decisions", run_dir, "WINDOW")
        raise ConfigError(
            f"{run_dir} has decisions in windows of time instead of games: {windows}, {decisions}"
        )


def replay(
    run_dir: RunDir,
    game: Annotated[
        str | None,
        typer.Argument(
            metavar="GAME", help="A game's id, or latest: the newest; without it, games are listed."
        ),
    ] = None,
    purpose: Annotated[
        Purpose | None, typer.Option(help="Only training or only evaluation games.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Only games of the policy's version step-N.")
    ] = None,
    opponent: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only games against this policy.")
    ] = None,
    result: Annotated[
        Result | None,
        typer.Option(help="Only games that the evaluated, or first trained, seat ended so."),
    ] = None,
    env: Annotated[
        str | None, typer.Option(metavar="ID", help="Only games of this environment.")
    ] = None,
    last: Annotated[int, typer.Option(metavar="N", help="Games in the list.", min=1)] = 20,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="One turn at a time, back and forth.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", help="Write the game as an animated picture.", callback=_svg
        ),
    ] = None,
) -> None:
    """Show finished games of a run: the newest in a list, or one turn by turn.

    **Examples**

    ```bash
    rlforge replay latest --purpose eval --result loss
    rlforge replay latest latest --opponent random_legal --interactive
    rlforge replay latest train-0-0000007 --export game.svg
    ```
    """
    from rlforge.show import replay as local

    must_have_games(run_dir)
    console = Console(highlight=False)
    given = {"purpose": purpose, "step": step, "opponent": opponent, "result": result, "env": env}
    wanted = {name: str(value) for name, value in given.items() if value is not None}
    if game is None:
        if interactive or export is not None:
            raise ConfigError("--interactive and --export need a game: its id, or latest")
        console.print(local.game_list(run_dir, last, wanted))
        return
    if interactive and not console.is_terminal:
        raise ConfigError("--interactive needs a terminal; leave it out to print all turns")
    record = local.find_game(run_dir, game, wanted)
    if export is not None:
        local.write_svg(record, export)
        typer.echo(str(export))
    elif interactive:
        try:
            local.step_through(record, console)
        except (EOFError, KeyboardInterrupt):
            console.print()
            raise typer.Exit from None  # to leave is no error
    else:
        for piece in local.turns(record):
            console.print(piece)


def batches(
    run_dir: RunDir,
    number: Annotated[
        int | None,
        typer.Argument(metavar="N", help="Of which update; without it the newest.", min=1),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="I", help="Show this sample of it in full.", min=0)
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="Samples in the table.", min=1)] = 20,
    json_file: JsonFile = None,
) -> None:
    """Show what an update learned from, as a table or one sample in full.

    **Examples**

    ```bash
    rlforge batches latest
    rlforge batches latest 12 --rows 384
    rlforge batches latest 12 --sample 5
    ```
    """
    from rlforge.show import batches as local

    batch = local.find_batch(run_dir, number)
    console = Console(width=max(Console().width, 80), highlight=False)  # else ids break
    shown = local.batch_table(batch, rows, console.width)
    if sample is not None:
        shown = local.sample_in_full(batch, sample)
    write_result(json_file, local.to_values(batch, sample))
    console.print(shown)
