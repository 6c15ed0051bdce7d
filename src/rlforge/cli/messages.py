"""Text for terminals: paragraphs below each other, and what is wrong with a command line."""

from __future__ import annotations

import difflib
import textwrap
from typing import Any

import typer
from rich.console import Console


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
