"""``rlforge ladder``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from rlforge.cli.arguments import OPPONENTS, must_be_run, offered_runs, say
from rlforge.errors import ConfigError
from rlforge.show.console import Console


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _split(text: str) -> tuple[Path, str | None]:
    """Divide the name of a run from the version that is named behind a colon."""
    path, colon, version = text.rpartition(":")
    if not colon or Path(text).exists():
        # The whole text is the path: a folder may have a colon in its name.
        path, version = text, ""
    run = must_be_run(Path(path))
    assert run is not None
    return run, version or None


def ladder(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs, latest, or one version of a run as RUN:step-40.",
            show_default=False,
            autocompletion=offered_runs,
        ),
    ] = None,
    against: Annotated[
        str,
        typer.Option(metavar="NAME,…", help=f"Further members: {OPPONENTS}.", show_default=False),
    ] = "",
    checkpoints: Annotated[
        str, typer.Option(metavar="UID,…", help="The versions of each run: result, step-40, best …")
    ] = "result",
    env: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="The game, where the runs play several.", show_default=False
        ),
    ] = None,
    games: Annotated[int, typer.Option(metavar="MAX", help="Most games of a pairing.")] = 200,
    precision: Annotated[
        float,
        typer.Option(
            metavar="WIDTH",
            help="Width of the 95 % interval of a score at which a pairing stops; it also stops "
            "once the interval excludes one half.",
        ),
    ] = 0.1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="A new or empty folder. Default: a new one below ladders/.",
        ),
    ] = None,
    verify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compute a ladder.json again from the games beside it, and say where it differs.",
        ),
    ] = None,
) -> None:
    """Let runs, versions and opponents play each other, and write one page about who is better.

    Games come in pairs with the same seed and the seats swapped. A pairing stops as soon as its
    evidence is enough. The last line printed is the page; ladder.json and the games lie beside it.
    Ctrl-C writes the page of what was played.

    **Examples**

    ```bash
    rlforge ladder RUN --checkpoints step-0,latest --against minimax
    rlforge ladder RUN RUN RUN:step-40 --games 400 --precision 0.05
    rlforge ladder --verify ladders/2026-01-01_12-00-00/ladder.json
    ```
    """
    if verify is not None:
        if runs:
            raise ConfigError("--verify checks a page; name no runs with it")
        from rlforge.lab.ladder.play import verify_ladder

        card, unknown = verify_ladder(verify)
        for line in unknown:
            typer.echo(f"not checked: {line}", err=True)
        typer.echo(f"{verify} is what its {card.games} games say")
        return
    if not runs:
        raise ConfigError("name a run, or a page with --verify FILE")
    named = [_split(text) for text in runs]
    if output and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output}: it is there already; name a new or empty folder")
    import asyncio

    from rlforge.lab.ladder.entrants import plan_ladder
    from rlforge.lab.ladder.play import play_ladder
    from rlforge.lab.ladder.record import PAGE
    from rlforge.lab.ladder.view import show_ladder
    from rlforge.system.files import new_folder

    plan = plan_ladder(
        named,
        against=_words(against),
        checkpoints=_words(checkpoints),
        env_id=env,
        games=games,
        precision=precision,
    )
    if output is None:
        # Another ladder may begin in the same second.
        output = new_folder(Path("ladders") / time.strftime("%Y-%m-%d_%H-%M-%S"))
    try:
        card = asyncio.run(play_ladder(plan, output, say))
    except KeyboardInterrupt:
        if (output / PAGE).is_file():
            raise KeyboardInterrupt(f"the ladder; its page so far: {output / PAGE}") from None
        raise
    show_ladder(card, Console())
    typer.echo(str(output / PAGE))
