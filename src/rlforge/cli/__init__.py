"""The command line: thin, with an example in every help text."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from rlforge import __version__
from rlforge.cli import examine, games, runs, serving, windows
from rlforge.errors import RlforgeError

app = typer.Typer(
    name="rlforge",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rlforge {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Train language models by playing text games."""


# In the order in which the overview lists them.
app.command()(runs.train)
app.command()(runs.continuous)
app.command()(runs.sft)
app.command("eval")(runs.evaluate)
app.command()(examine.graph)
app.command()(examine.config)
app.command()(examine.doctor)
app.command()(games.play)
app.command()(games.replay)
app.command()(examine.models)
app.command()(examine.plugins)
app.command()(runs.monitor)
app.command()(runs.report)
app.command()(runs.export)
app.command()(serving.serve)
app.command()(serving.deploy)
app.command()(serving.rollback)
app.command()(serving.deployments)
app.add_typer(windows.app, name="windows")


def main() -> NoReturn:
    """Run the command. Errors that the user can fix print one message and no stack trace.

    So do errors of the system about a file: no permission, a directory in its place, a full disk.
    """
    try:
        app()
    except RlforgeError as error:
        typer.echo(f"rlforge: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"rlforge: {error.filename}: {error.strerror}", err=True)
        sys.exit(1)
    except SystemExit as end:
        # Typer turns Ctrl-C into this exit without a message; runs that end in order print one.
        if end.code == 130 and _interrupted(end):
            typer.echo("rlforge: interrupted", err=True)
        raise
    sys.exit(0)


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused ``error``."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
