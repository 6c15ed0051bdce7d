"""The kind of run of a command line or a run directory, which ``kind:`` says.

An experiment may inherit its kind. Without one, it is of the command, or plays games.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from omegaconf import OmegaConf

from rlforge.config.compose import Composed, compose, from_yaml, load_mapping, run_mapping
from rlforge.config.keys import all_roots, foreign_keys, group_dirs, kinds_with, option_file
from rlforge.config.overrides import key_of, parse_overrides
from rlforge.config.plugins import RUN_KINDS
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError, command_line

C = TypeVar("C", bound=PolicyConfig)

_OWN = ("data", "learner", "algorithm")
"""Groups that a supervised run has of its own, where an experiment gives the rest."""


def compose_any(overrides: Sequence[str], config_dir: Path | None = None) -> Composed[Any]:
    return compose_run(overrides, config_dir, root_of(overrides, config_dir))


def root_of(overrides: Sequence[str], config_dir: Path | None = None) -> type[PolicyConfig]:
    """The class that ``kind=`` or the experiment says, else that of a run that plays games.

    Example:
        >>> root_of(["+experiment=market_ppo"]).about, root_of(["seed=3"]).about
        ('a continuous run', 'a run that plays games')
    """
    typed = _typed_kind(overrides)
    return _root(typed or _experiment(overrides, group_dirs(config_dir)).kind or RunConfig.kind)


def started_by(
    root: type[PolicyConfig],
    overrides: Sequence[str],
    config_dir: Path | None = None,
    run_dir: Path | None = None,
) -> type[PolicyConfig]:
    """The class that a command starts or resumes."""
    found = root_of(overrides, config_dir) if run_dir is None else kind_of_run(run_dir)
    # A plug-in's kind may be started by a command of rlforge's.
    return found if found.command == root.command else root


def compose_run(overrides: Sequence[str], config_dir: Path | None, root: type[C]) -> Composed[C]:
    """Compose what a command runs; ConfigError for another kind."""
    rest, named = of_kind(overrides, root), _experiment(overrides, group_dirs(config_dir))
    if named.kind is not None and (other := _root(named.kind)) is not root:
        if root is SftConfig:
            composed: Composed[Any] = _as_sft(rest, config_dir, other)
            return composed
        raise ConfigError(
            f"{named.line} is {other.about}: start it with "
            f"{command_line(other.command, named.line)}"
        )
    if foreign := foreign_keys(named.keys, root):
        raise ConfigError(
            f"{foreign[0]} ({named.line}): {root.about} has no such key"
            f"{kinds_with(foreign[0], 'an experiment with kind: {}')}"
        )
    return compose(rest, config_dir, root=root)


def of_kind(overrides: Sequence[str], root: type[PolicyConfig]) -> list[str]:
    """The overrides without ``kind=``; ConfigError for another kind than ``root``."""
    typed = _typed_kind(overrides)
    if typed is not None and (other := _root(typed)) is not root:
        start = command_line(other.command)
        raise ConfigError(f"kind={typed} (command line) is {other.about}: start it with {start}")
    # The class has been chosen by it, and no class has such a field.
    return [one for one in overrides if not re.match(r"[+~]*kind(=|$)", one)]


def read_any(run_dir: Path, *, gone: bool = False) -> PolicyConfig:
    """The configuration of a run; ConfigError where there is none.

    gone: without keys that rlforge does not know, as of earlier versions, for what only looks.
    """
    config: PolicyConfig = from_yaml(run_dir / "config.yaml", kind_of_run(run_dir), gone=gone)
    return config


def read_run(run_dir: Path, root: type[C], *, gone: bool = False) -> C:
    """The configuration of a run, as ``read_any``; ConfigError for another kind as well."""
    config = read_any(run_dir, gone=gone)
    if not isinstance(config, root):
        raise ConfigError(f"{run_dir} is {config.about}; this command is for {root.about}")
    return config


def kind_of_run(run_dir: Path) -> type[PolicyConfig]:
    """The class of a run's configuration; ConfigError where there is none."""
    path = run_dir / "config.yaml"
    if (kind := run_mapping(path).get("kind")) is not None:
        return _root(str(kind), f"{path}: ")
    # It is from before configurations said their kind: the command that started it says it.
    commands = run_dir / "command.txt"
    text = commands.read_bytes() if commands.is_file() else b""
    words = text.decode(errors="replace").split()
    return next((root for root in all_roots() if root.command in words[1:2]), RunConfig)


def _root(kind: str, place: str = "") -> type[PolicyConfig]:
    try:
        root: type[PolicyConfig] = RUN_KINDS.find(kind).root
    except ConfigError as error:
        raise ConfigError(f"{place}{error}") from None
    return root


def _typed_kind(overrides: Sequence[str]) -> str | None:
    kinds = [one for one in parse_overrides(overrides) if key_of(one) == "kind"]
    if wrong := [one for one in kinds if one.is_delete() or not isinstance(one.value(), str)]:
        raise ConfigError(
            f"{wrong[0].input_line} (command line): give one kind of run, by its name"
        )
    return str(kinds[-1].value()) if kinds else None


def _as_sft(
    overrides: Sequence[str], config_dir: Path | None, base: type[PolicyConfig]
) -> Composed[SftConfig]:
    """A supervised run that shares what it can with the experiment of a ``base``."""
    fields = {field.name for field in dataclasses.fields(SftConfig)} - {"market"}
    parsed = parse_overrides(overrides)
    keys = [key_of(one).split(".")[0] for one in parsed]
    lines = [str(one.input_line) for one in parsed]
    # Keys of another kind of run are for its experiment alone.
    groups = base is RunConfig
    own = [
        line
        for key, line in zip(keys, lines, strict=True)
        if key != "experiment" and (groups or key in fields)
    ]
    shared = [line for key, line in zip(keys, lines, strict=True) if key not in (*_OWN, "name")]
    compose(own, config_dir, root=SftConfig)  # says what is wrong with them
    theirs = compose(shared, config_dir, root=base)
    if "hardware" not in map(key_of, parsed):
        own.append(f"hardware={theirs.choices['hardware']}")  # may set keys of the learner
    composed = compose(own, config_dir, root=SftConfig)
    taken = {field.name for field in dataclasses.fields(SftConfig)} - {*_OWN, "name"}
    taken &= {field.name for field in dataclasses.fields(base)}
    name = composed.config.name if "name" in keys else f"{theirs.config.name}_sft"
    rest = {key: getattr(theirs.config, key) for key in taken}
    # The core has no class of a market: a supervised run keeps the plain mapping.
    if "market" in rest:
        rest["market"] = dataclasses.asdict(rest["market"])
    return dataclasses.replace(
        composed,
        config=dataclasses.replace(composed.config, name=name, **rest),
        overrides=tuple(overrides),
        choices=composed.choices | theirs.choices | {key: composed.choices[key] for key in _OWN},
    )


class _Named(NamedTuple):
    """An experiment, and the override that picks it."""

    line: str = ""
    kind: str | None = None
    keys: frozenset[str] = frozenset()


def _experiment(overrides: Sequence[str], dirs: Sequence[Path]) -> _Named:
    for override in parse_overrides(overrides):
        if key_of(override) == "experiment":
            named = _named_by(str(override.value()), dirs, frozenset())
            return named._replace(line=str(override.input_line))
    return _Named()


def _named_by(experiment: str, dirs: Sequence[Path], seen: frozenset[str]) -> _Named:
    """An experiment with the ones that it builds on."""
    path = option_file(f"experiment/{experiment}", dirs)
    if path is None:  # which Hydra will report
        return _Named()
    # Hydra would follow a circle until Python's stack ends.
    if experiment in seen:
        raise ConfigError(f"{path}: its defaults lead back to it; take that experiment out of them")
    content: Any = OmegaConf.to_container(load_mapping(path))
    defaults, own = content.pop("defaults", None), content.pop("kind", None)
    if own is not None:
        _root(str(own), f"{path}: ")  # refuses an unknown one while its file is known
    keys, kind = _leaves(content), None
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            base = entry.lstrip("/").removeprefix("experiment/")
            below = _named_by(base, dirs, seen | {experiment})
            keys, kind = keys | below.keys, below.kind or kind
        elif isinstance(entry, dict):
            groups = (str(key).removeprefix("override ").strip() for key in entry)
            # A chosen group counts as a key, because other kinds of runs may lack it.
            keys |= {group.lstrip("/").split("@")[0].split("/")[0] for group in groups}
    return _Named(kind=kind if own is None else str(own), keys=frozenset(keys))


def _leaves(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict) or not node:
        return {prefix.rstrip(".")}
    return {leaf for key, value in node.items() for leaf in _leaves(value, f"{prefix}{key}.")}
