"""What a shell offers for the word under the cursor: fast, and never an error."""

from __future__ import annotations

import dataclasses
import os
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

Offer = tuple[str, str]
"""A word, and what it means; shells that show no meanings leave it out."""

#: Characters of a meaning: zsh shows word and meaning in one line.
_SHOWN = 60

Completer = Callable[[typer.Context, str], list[Offer]]


def _safe(offers: Callable[[typer.Context, str], Iterable[Offer]]) -> Completer:
    """A completer that offers nothing where ``offers`` fails: the line is being written."""

    def completer(ctx: typer.Context, incomplete: str) -> list[Offer]:
        try:
            return [
                (word, textwrap.shorten(about, _SHOWN, placeholder=" …"))
                for word, about in offers(ctx, incomplete)
                if word.startswith(incomplete)
            ]
        except Exception:
            return []

    return completer


@_safe
def subjects(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """What ``rlforge list`` lists."""
    from rlforge.config.catalog import subjects as known

    return known().items()


@_safe
def runs(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """The runs below ``runs/``, and ``latest``."""
    return _runs()


@_safe
def opponents(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Scripted players, the versions of the run, and the beginnings of other names."""
    from rlforge.config.plugins import PLAYERS

    prefixes = ("checkpoint:", "openai:", "openrouter:", "litellm:")
    return [
        *((name, "scripted player") for name in PLAYERS.names()),
        ("base", "the untrained model"),
        *_versions(),
        *((prefix, "") for prefix in prefixes),
    ]


@_safe
def versions(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """The versions of the run that the line names."""
    return [("latest", "the newest version"), ("best", "by win rate"), *_versions()]


@_safe
def overrides(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Experiments, and keys and groups with their values."""
    return _words(ctx, incomplete, ending="=")


@_safe
def keys_and_overrides(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """Keys as such, and ``KEY=VALUE`` from the equals sign on."""
    return _words(ctx, incomplete, ending="")


@_safe
def runs_and_overrides(ctx: typer.Context, incomplete: str) -> Iterable[Offer]:
    """A run or an experiment, and keys with their values."""
    return [*_words(ctx, incomplete, ending="="), *_runs()]


def _runs() -> list[Offer]:
    from rlforge.tracking.files import runs_below

    return [("latest", "the newest run"), *((str(path), "") for path in runs_below(Path("runs")))]


def _versions() -> list[Offer]:
    """The versions of the run that the line names; an option without its value hides it in ctx."""
    from rlforge.system.checkpoint import is_step_name, step_number
    from rlforge.tracking.files import RunPaths
    from rlforge.tracking.overview import newest_run

    line = " ".join(os.environ.get(name, "") for name in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"))
    words = [newest_run(Path("runs")) if word == "latest" else Path(word) for word in line.split()]
    run = next((path for path in words if RunPaths(root=path).is_run()), None)
    folders = [] if run is None else (run / "checkpoints").glob("*-*")
    names = sorted((each.name for each in folders if is_step_name(each.name)), key=step_number)
    return [(name, "a version of the run") for name in reversed(names)]


def _words(ctx: typer.Context, incomplete: str, ending: str) -> list[Offer]:
    """Offers for ``KEY=VALUE``. ending: of a key that is complete."""
    folder = ctx.params.get("config_dir")
    dirs = [Path(folder)] if folder else []
    if "=" in incomplete:
        key = incomplete.partition("=")[0]
        return [(f"{key}={name}", about) for name, about in _values(ctx, key, dirs)]
    before = _before(ctx)
    if before:  # bash takes the equals sign for the end of a word
        return list(_values(ctx, before, dirs))
    names = _next_parts([*_keys(ctx), "+experiment"], incomplete, ending)
    if len(names) == 1 and names[0].endswith("="):
        key = names[0].rstrip("=")
        whole = [(f"{key}={name}", about) for name, about in _values(ctx, key, dirs)]
        return whole or [(names[0], "")]
    experiments = _options("experiment", dirs)
    return [*((name, "") for name in names), *(experiments if ending else [])]


def _before(ctx: typer.Context) -> str:
    """The key whose value the cursor is at, where the shell gave key and value as two words."""
    lists = [words for words in ctx.params.values() if isinstance(words, list | tuple)]
    words = [str(word) for given in lists for word in given]
    if words and words[-1] == "=":
        words.pop()
    elif not words or ctx.info_name == "show":
        return ""
    last = words[-1] if words else ""
    return last if last.lstrip("+") in {"experiment", *_keys(ctx)} else ""


def _next_parts(names: Iterable[str], incomplete: str, ending: str) -> list[str]:
    """The names that begin with ``incomplete``, up to the next dot; of a single one, all of it."""
    parts: dict[str, None] = {}
    for name in names:
        if name.startswith(incomplete):
            part, dot, _ = name[len(incomplete) :].partition(".")
            parts[f"{incomplete}{part}{dot or ending}"] = None
    found = list(parts)
    if len(found) == 1 and found[0].endswith(".") and found[0] != incomplete:
        return _next_parts(names, found[0], ending)
    return found


def _roots(ctx: typer.Context) -> list[Any]:
    from rlforge.config.keys import ROOTS

    own = [root for root in ROOTS if vars(root).get("command") == ctx.info_name]
    return own or list(reversed(ROOTS))


def _keys(ctx: typer.Context) -> list[str]:
    """Keys and groups of the command, those that have a value of their own."""
    from rlforge.config.keys import all_keys, conf_dir

    found = dict.fromkeys(key for root in _roots(ctx) for key in all_keys(root))
    inner = {key.rpartition(".")[0] for key in found}
    return [key for key in found if key not in inner or (conf_dir() / key).is_dir()]


def _options(group: str, dirs: list[Path]) -> list[Offer]:
    """The options of a config group, with a sentence each."""
    from rlforge.config.catalog import first_sentence
    from rlforge.config.keys import conf_dir

    files = [path for folder in (conf_dir(), *dirs) for path in (folder / group).glob("*.yaml")]
    return [(path.stem, first_sentence(path)) for path in sorted(files)]


def _values(ctx: typer.Context, key: str, dirs: list[Path]) -> Iterator[Offer]:
    """What can be behind ``KEY=``: options, names or choices, else the default as an example."""
    from rlforge.config.plugins import KINDS

    plain = key.lstrip("+")
    yield from _options(plain, dirs)
    for kind in KINDS:
        if kind.key == plain:
            yield from ((name, kind.noun) for name in kind.names())
            return
    for root in _roots(ctx):
        if (found := _field(root, plain)) is not None:
            yield from _of_field(*found)
            return


def _field(cls: Any, key: str) -> tuple[Any, dataclasses.Field[Any]] | None:
    """Annotation and field of a dotted key."""
    from rlforge.config.keys import nested_class
    from rlforge.config.rules import hints

    head, _, rest = key.partition(".")
    for field in dataclasses.fields(cls):
        if field.name == head:
            inner = nested_class(field)
            if rest:
                return _field(inner, rest) if inner else None
            return None if inner else (hints(cls)[head], field)
    return None


def _of_field(hint: Any, field: dataclasses.Field[Any]) -> Iterator[Offer]:
    from rlforge.config.rules import parts

    kind, _ = parts(hint)
    if typing.get_origin(kind) is typing.Literal:
        yield from ((str(choice), "") for choice in typing.get_args(kind))
    elif kind is bool:
        yield from (("true", ""), ("false", ""))
    else:
        default = "null" if field.default is None else str(field.default)
        if re.fullmatch(r"[\w.+-]+", default):
            yield default, "the default"
