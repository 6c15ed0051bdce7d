"""How help and wrong usage look, in wide and narrow terminals."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from rlforge.errors import RlforgeError

F = TypeVar("F", bound=Callable[..., Any])

#: Below this many columns options and their meanings do not fit side by side.
_NARROW = 60


class _StoppedError(RlforgeError):
    """Ctrl-C ended the command."""

    exit_code = 130


class Command(TyperCommand):
    """A command whose help fits the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: side by side, or below each other in a narrow terminal."""
        _print_help(self, ctx, lambda: super(Command, self).format_help(ctx, formatter))


class CommandGroup(TyperGroup):
    """A group of commands; its help fits the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help: side by side, or below each other in a narrow terminal."""
        _print_help(self, ctx, lambda: super(CommandGroup, self).format_help(ctx, formatter))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C becomes an error with the message of the run that it ended."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            said = " ".join(["interrupted", *map(str, interrupt.args)])
            raise _StoppedError(said) from interrupt


class App(typer.Typer):
    """Commands that look like those of rlforge."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=CommandGroup,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode="rich",
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a function as the command ``name``."""
        return super().command(name, cls=Command, **settings)


def wrong_usage(error: typer.TyperException) -> str:
    """What is wrong with a command line, the nearest option, and where help is; two lines."""
    message = " ".join(error.format_message().split())
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return message
    params = context.command.params
    if "No such option" in message:
        known = [name.strip("-") for param in params for name in param.opts]
        close = difflib.get_close_matches(getattr(error, "option_name", "").strip("-"), known, n=1)
        mend = f"; did you mean --{close[0]}?" if close else ""
        if not close and any("KEY=VALUE" in (param.metavar or "") for param in params):
            mend = "; keys of the configuration have no dashes: KEY=VALUE"
        message = f"{error.message}{mend}"
    return f"{message}\nfor help: {context.command_path} --help"


def _print_help(command: Any, context: Any, print_wide: Any) -> None:
    command.help = "\n\n".join(paragraphs(command.help or ""))
    if Console().width < _NARROW:
        typer.echo("\n".join(_narrow(command, context)))
    else:
        print_wide()


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a help text, each in one line and not indented.

    Example:
        >>> paragraphs("Train; the last line\\nis the run.\\n\\n  rlforge train")
        ['Train; the last line is the run.', 'rlforge train']
    """
    return [" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n")]


def wrapped(text: str, *, indent: int = 0) -> list[str]:
    """Lines of at most the terminal's width; paths and names are not broken."""
    space = " " * indent
    return textwrap.wrap(
        text,
        max(indent + 16, Console().width),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _narrow(command: Any, context: Any) -> Iterator[str]:
    """Help without columns: what an option means is below it."""

    def filled(text: str, indent: int = 0) -> str:
        return "\n".join(wrapped(Text.from_markup(text).plain, indent=indent))

    yield " ".join(["Usage:", context.command_path, *command.collect_usage_pieces(context)])
    for paragraph in paragraphs(command.help or ""):
        yield "\n" + filled(paragraph)
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [record for record in records if record is not None]
    if isinstance(command, TyperGroup):
        rows += [(name, paragraphs(one.help or "")[0]) for name, one in command.commands.items()]
    for names, meaning in rows:
        yield f"\n{names}\n{filled(meaning, 4)}"
    if command.epilog:
        yield "\n" + filled(command.epilog)
