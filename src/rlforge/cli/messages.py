"""Text for terminals: paragraphs, and what is wrong with a command line."""

from __future__ import annotations

import textwrap
from typing import Any

import typer
from rich.console import Console


def wrong_usage(error: typer.TyperException) -> str:
    """Two lines: the mistake in a command line, and where help is."""
    message = " ".join(error.format_message().split())
    context: Any = getattr(error, "ctx", None)
    if context is None:
        return message
    takes_keys = any("KEY=VALUE" in (param.metavar or "") for param in context.command.params)
    if takes_keys and not getattr(error, "possibilities", True):  # of an option
        message += "; keys of the configuration have no dashes: KEY=VALUE"
    return f"{message}\nfor help: {context.command_path} --help"


def wrapped(text: str, *, indent: int = 0) -> list[str]:
    """Lines of at most the terminal's width; no path or name is broken."""
    space = " " * indent
    return textwrap.wrap(
        text,
        max(indent + 16, Console().width),
        initial_indent=space,
        subsequent_indent=space,
        break_long_words=False,
        break_on_hyphens=False,
    )
