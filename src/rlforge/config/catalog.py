"""Choices of a configuration by name: the options of its groups, each with a sentence."""

from __future__ import annotations

import re
from pathlib import Path

from rlforge.config.keys import conf_dir
from rlforge.config.plugins import KINDS
from rlforge.errors import ConfigError, nearest
from rlforge.types import value

#: In this order.
_FIRST = "experiment env model algorithm rewards pool hardware"


@value
class Choice:
    """An option of a group, or a thing of a kind of plug-in. about: one sentence, or empty."""

    name: str
    about: str


@value
class Catalog:
    """Choices, and how one of them is written on the command line (``key``)."""

    key: str
    choices: tuple[Choice, ...]


def subjects() -> dict[str, str]:
    """Subjects that can be listed, common ones first, and the form of a choice."""
    names = sorted(path.name for path in conf_dir().iterdir() if path.is_dir())
    # What is chosen most often comes first; the rest stays in the order of the alphabet.
    names.sort(key=lambda name: (name not in _FIRST, _FIRST.find(name)))
    # Hydra's defaults name no experiment, and it adds a group to them only with +.
    groups = {name: f"{'+' if name == 'experiment' else ''}{name}=NAME" for name in names}
    return groups | {kind.name: f"{kind.key}=NAME" for kind in KINDS if kind.name not in groups}


def catalog(subject: str) -> Catalog:
    """Choices of a config group or a kind of plug-in, in singular or plural; else ConfigError.

    Example:
        >>> found = catalog("experiments")
        >>> found.key, found.choices[0].name
        ('+experiment=NAME', 'blotto_league')
    """
    known = subjects()
    # Some names end in an s of their own, as ``rewards``.
    name = subject if subject in known else subject.removesuffix("s")
    folder = conf_dir() / name
    if name in known and folder.is_dir():
        options = tuple(
            Choice(name=path.stem, about=first_sentence(path))
            for path in sorted(folder.glob("*.yaml"))
        )
        return Catalog(key=known[name], choices=options)
    for kind in KINDS:
        if kind.name == subject:
            things = tuple(Choice(name=one, about="") for one in kind.names())
            return Catalog(key=known[subject], choices=things)
    mend = nearest(subject, known) or f"; there are {', '.join(known)}"
    raise ConfigError(f"{subject} cannot be listed{mend}")


def first_sentence(path: Path) -> str:
    """The first sentence of a YAML file's comment at its head; empty without one."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        # Hydra's directive is no sentence about the option.
        if line.startswith("# @package"):
            continue
        if not line.startswith("#"):
            break
        words.append(line.removeprefix("#").strip())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(words))[0]
