"""The command line: thin, with an example in every help text."""

from __future__ import annotations

import codecs
import io
import sys
import traceback
import unicodedata
from encodings import ascii
from typing import Annotated, NoReturn

import typer

from rlforge import __version__
from rlforge.cli import (
    discover,
    examine,
    exploit,
    forks,
    games,
    ladder,
    runs,
    serving,
    verify,
    watch,
    windows,
)
from rlforge.cli.layout import App, wrong_usage
from rlforge.errors import RlforgeError
from rlforge.system.files import says_full_disk

app = App(
    name="rlforge",
    epilog="To begin: [bold]rlforge train simpletak_mirror[/bold], then "
    "[bold]rlforge report latest[/bold]. Documentation: https://github.com/rlforge/rlforge/tree/main/docs",
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
app.command()(ladder.ladder)
app.command()(exploit.exploit)
app.command()(examine.graph)
app.command()(examine.config)
app.command()(examine.doctor)
app.command()(games.play)
app.command()(games.replay)
app.command()(forks.fork)
app.command()(forks.analyse)
app.command()(verify.verify)
app.command("list")(discover.list_choices)
app.command()(discover.show)
app.command()(discover.models)
app.command()(discover.plugins)
app.command()(watch.runs)
app.command()(watch.compare)
app.command()(watch.monitor)
app.command()(watch.report)
app.command()(runs.export)
app.command()(serving.serve)
app.command()(serving.deploy)
app.command()(serving.rollback)
app.command()(serving.deployments)
app.add_typer(windows.app, name="windows")


def main() -> NoReturn:
    """Run the command. Errors that the user can fix print one message and no stack trace.

    So do errors of the system: no permission, a directory in a file's place, a full disk. What the
    encoding of the terminal lacks is written in ASCII.
    """
    _write_what_the_terminal_can()
    try:
        code = app(prog_name="rlforge", standalone_mode=False)
    except RlforgeError as error:
        typer.echo(f"rlforge: {error}", err=True)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        if error.format_message():  # without one, help is printed already
            typer.echo(f"rlforge: {wrong_usage(error)}", err=True)
        sys.exit(error.exit_code)
    except typer.Abort:
        typer.echo("rlforge: interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        typer.echo(f"rlforge: {_of_the_system(error)}", err=True)
        sys.exit(1)
    sys.exit(code or 0)


def _of_the_system(error: OSError) -> str:
    """What the system refused, and where: the file, or else the line of code."""
    what = error.strerror or str(error)
    if error.filename is None and says_full_disk(error):
        return f"the disk or its quota is full ({what}); free some and run the command again"
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{error.filename or f'{last.filename}, line {last.lineno}'}: {what}"


# ---------------------------------------------------------------- terminals

_ASCII = str.maketrans(
    {
        **dict.fromkeys("–—−‐‑─━", "-"),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯╞╡╪", "+"),
        **dict(zip("▁▂▃▄▅▆▇█", "_.-~=+*#", strict=True)),
        **dict(zip("·•×▶▼▲■“”’", '.*x>v^#""\'', strict=True)),
        **dict(zip("…±≤≥→", ["...", "+-", "<=", ">=", "->"], strict=True)),
    }
)
"""What rlforge itself writes, in ASCII."""


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """An error handler for ``codecs``: the nearest ASCII, ``?`` where there is none.

    Text that grows takes up padding behind it, so that columns stay aligned.
    """
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    letters = unicodedata.normalize("NFKD", text.translate(_ASCII))
    plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
    plain = plain.encode("ascii", "replace").decode()
    grown = len(plain) - len(text)
    padded = error.object.startswith(" " * (grown + 1), error.end)
    return plain, error.end + (grown if padded else 0)


def _own_codec(name: str) -> codecs.CodecInfo | None:
    """ASCII by another name: Click would write UTF-8 to a stream whose encoding is named ascii."""
    if name != "rlforge_ascii":
        return None
    known = ascii.getregentry()
    known.name = name
    return known


def _write_what_the_terminal_can() -> None:
    """Make output end in no UnicodeEncodeError, whatever the encoding of the terminal."""
    codecs.register(_own_codec)
    codecs.register_error("rlforge.ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            is_ascii = codecs.lookup(stream.encoding).name == "ascii"
            encoding = "rlforge_ascii" if is_ascii else stream.encoding
            stream.reconfigure(encoding=encoding, errors="rlforge.ascii")
