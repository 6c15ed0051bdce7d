"""The command line: thin, with an example in every help text."""

from __future__ import annotations

import io
import re
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rlforge import __version__
from rlforge.cli import discover, examine, games, runs, watch
from rlforge.cli.messages import shortened, wrong_usage
from rlforge.config.plugins import COMMANDS
from rlforge.errors import ConfigError, RlforgeError
from rlforge.system import signals
from rlforge.system.files import says_full_disk
from rlforge.system.folders import check_working_directory, ensure_home
from rlforge.system.output import lossy
from rlforge.system.packages import extra_of


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # What a script leaves where a variable is not set would be taken for the current folder.
        empty = [place for place, word in enumerate(args) if not word or _NO_VALUE.fullmatch(word)]
        if empty and not ctx.resilient_parsing:
            before = " ".join(["rlforge", *args[: empty[0]]])
            raise ConfigError(
                f"{args[empty[0]] or 'the argument'} after {shortened(before)!r} is empty: give it "
                "a value, or leave it out"
            )
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            # Typer would make an exception of it that has no text and prints an empty line.
            raise _StoppedError(*interrupt.args) from interrupt


#: An option whose value is empty.
_NO_VALUE = re.compile(r"--[\w-]+=")


class _StoppedError(Exception):
    """A signal has ended the command; the text says what is saved."""


app = typer.Typer(
    name="rlforge",
    cls=_Commands,
    no_args_is_help=True,
    # Typer's traces can show local variables, such as keys of services.
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    epilog="To begin: `rlforge train simpletak_mirror`, then `rlforge report latest`. Exit codes: "
    "0 done, 1 the run failed, 2 wrong usage or configuration, 130 interrupted. "
    "Documentation: https://github.com/rlforge/rlforge/tree/main/docs",
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
app.command()(runs.sft)
app.command("eval")(runs.evaluate)
app.command()(examine.graph)
app.command()(examine.config)
app.command()(examine.doctor)
app.command()(examine.port)
app.command()(games.play)
app.command()(games.replay)
app.command()(games.batches)
for _name in COMMANDS.names():
    if COMMANDS.problem(_name) is None:  # else ``rlforge plugins`` says what is wrong with it
        _thing = COMMANDS.find(_name)
        if isinstance(_thing, typer.Typer):
            app.add_typer(_thing, name=_name)
        else:
            app.command(_name)(_thing)
app.command("list")(discover.list_choices)
app.command()(discover.show)
app.command()(discover.models)
app.command()(discover.plugins)
app.command()(watch.runs)
app.command()(watch.why)
app.command()(watch.compare)
app.command()(watch.monitor)
app.command()(watch.report)
app.command()(runs.export)


def main() -> NoReturn:
    """Run the command. Errors that the user can fix print one message and no stack trace."""
    ensure_home()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what its encoding cannot show
    with lossy("stderr"):
        try:
            with signals.owned():
                code = _of_command()
        except KeyboardInterrupt:  # while an error was printed
            code = _interrupted()
    sys.exit(code)


def _of_command() -> int:
    """Run the command, and tell of what ended it; returns its exit code."""
    try:
        check_working_directory()
        # Else Typer would print errors in its own way and exit by its own codes.
        code = app(prog_name="rlforge", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (_StoppedError, typer.Abort) as stopped:
        return _interrupted(*stopped.args)
    except BaseException as error:
        if signals.dropped():  # native code has made another exception of the interrupt
            return _interrupted()
        return _told(error)
    # Here Typer returns the code of ``typer.Exit``.
    return int(code or 0)


def _interrupted(*said: object) -> int:
    typer.echo(" ".join(["rlforge: interrupted", *map(str, said)]), err=True)
    return signals.INTERRUPTED


def _told(error: BaseException) -> int:
    """Print an error that users can mend; raise any other."""
    match error:
        case RlforgeError():
            typer.echo(f"rlforge: {shortened(str(error))}", err=True)
            return error.exit_code
        case typer.TyperException():
            if error.format_message():  # without one, help is printed already
                typer.echo(f"rlforge: {shortened(wrong_usage(error))}", err=True)
            return error.exit_code
        case ModuleNotFoundError() if extra := extra_of((error.name or "").partition(".")[0]):
            lacks = (error.name or "").partition(".")[0]
            install = f"pip install 'rlforge[{extra}]'"
            typer.echo(f"rlforge: {lacks} is not installed; {install}", err=True)
            return 2
        case OSError():  # no permission, a directory in a file's place, a full disk
            typer.echo(f"rlforge: {shortened(_of_the_system(error))}", err=True)
            return 1
    raise error


def _of_the_system(error: OSError) -> str:
    """The system's refusal and its place: the file, or the line of code."""
    what = error.strerror or str(error)
    if says_full_disk(error):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}the disk or its quota is full ({what}); free some and run the command again"
    # Some errors name no file: the line of code is then all that is known.
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{error.filename or f'{last.filename}, line {last.lineno}'}: {what}"
