"""Text for terminals: paragraphs, and what is wrong with a command line."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import typer
from rich.console import Console

from rlforge.errors import nearest


def wrong_usage(error: typer.TyperException) -> str:
    """Two lines: the mistake in a command line with its mend, and where help is."""
    message = " ".join(error.format_message().split())
    context: Any = getattr(error, "ctx", None)
    if context is None:
        option = getattr(error, "option_name", None)
        value = "alone" if "not take a value" in message else "VALUE"
        return f"{message.rstrip('.')}; write {option} {value}" if option else message
    command = context.command
    if hasattr(error.__cause__, "errors"):
        message = _wrong_value(error)
    elif hasattr(error, "possibilities"):
        message = _no_option(error, message, command)
    elif message.startswith(("Missing argument", "Got unexpected extra")):
        words = [_metavar(param) for param in command.params if param.param_type_name == "argument"]
        message = f"{message.rstrip('.')}; write {' '.join([context.command_path, *words])}"
    return f"{message}\nfor help: {context.command_path} --help"


def _wrong_value(error: Any) -> str:
    """The value of an option or argument that pydantic refused, in the words for keys."""
    from rlforge.config.complaints import translated

    wrong, *_ = translated(error.__cause__.errors(), None)
    reason = wrong.reason
    if " is not one of " in reason:
        choices = re.findall(r"'([^']*)'", reason.partition(" is not one of ")[2])
        close = nearest(str(wrong.given), choices)
        reason = f"no such choice{close} (there are {', '.join(choices)})"
    name = (
        error.param.opts[0]
        if error.param.param_type_name == "option"
        else _metavar(error.param).strip("[]")
    )
    return f"{name} {wrong.given}: {reason}"


def _no_option(error: Any, message: str, command: Any) -> str:
    from rlforge.config.keys import alike, all_keys
    from rlforge.config.other_trainers import counterparts, left_out

    takes_keys = any("KEY=VALUE" in (param.metavar or "") for param in command.params)
    name = error.option_name.lstrip("-")
    # An option that is spelled like it says more than keys that are.
    if not takes_keys or (error.possibilities and not (counterparts(name) or left_out(name))):
        return message
    keys = "keys of the configuration have no dashes: KEY=VALUE"
    # A single letter is like too many keys.
    return f"{error.message}; {keys}{alike(name, all_keys()) if len(name) > 1 else ''}"


def _metavar(argument: Any) -> str:
    name: str = argument.metavar or argument.name.upper()
    name += " …" if argument.nargs == -1 else ""
    return name if argument.required or name.startswith("[") else f"[{name}]"


#: Longer words are cut in messages; paths of people and programs are shorter.
_LONGEST = 400


def shortened(text: str) -> str:
    """``text`` with the beginning and the end of words that are too long to be read.

    Example:
        >>> len(shortened(f"no run directory {5000 * 'x'}; name another"))
        331
    """
    return re.sub(rf"\S{{{_LONGEST},}}", lambda word: f"{word[0][:200]}…{word[0][-100:]}", text)


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
