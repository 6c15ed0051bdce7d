"""Which kind of run an experiment describes: one that plays games, or one of continuous training.

It is the kind that has the groups and keys that the experiment names: ``override /market: default``
or ``market: {…}`` only mean something to a continuous run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlforge.config.compose import (
    Composed,
    compose,
    foreign_keys,
    from_yaml,
    group_dirs,
    key_of,
    load_mapping,
    parse_overrides,
)
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.errors import ConfigError

C = TypeVar("C", bound=PolicyConfig)


def compose_any(overrides: Sequence[str], config_dir: Path | None = None) -> Composed[Any]:
    """Compose the run, of games or continuous, that overrides and experiment describe."""
    _, named = _experiment(overrides, group_dirs(config_dir))
    named |= {key_of(override) for override in parse_overrides(overrides)}
    return compose_run(overrides, config_dir, _root_of(named))


def compose_run(overrides: Sequence[str], config_dir: Path | None, root: type[C]) -> Composed[C]:
    """Compose what a command runs; ConfigError when the experiment is one of another command."""
    line, named = _experiment(overrides, group_dirs(config_dir))
    if foreign := foreign_keys(named, root):
        other = _root_of(named)
        if other is not root:
            raise ConfigError(
                f"{line} is {other.about}: start it with rlforge {other.command} {line}"
            )
        raise ConfigError(f"{foreign[0]} ({line}): {root.about} has no such key")
    return compose(overrides, config_dir, root=root)


def read_run(run_dir: Path, root: type[C]) -> C:
    """The configuration of a run; ConfigError when there is none, or it is of another kind."""
    config = from_yaml(run_dir / "config.yaml", root)  # says what is wrong with the file
    found = ContinuousConfig if is_continuous(run_dir) else RunConfig
    if found is not root:
        raise ConfigError(f"{run_dir} is {found.about}; this command is for {root.about}")
    return config


def is_continuous(run_dir: Path) -> bool:
    """Whether the run in ``run_dir``, whose configuration can be read, is a continuous one."""
    return _root_of({str(key) for key in load_mapping(run_dir / "config.yaml")}) is ContinuousConfig


def _root_of(named: Collection[str]) -> type[PolicyConfig]:
    """The kind of run that lacks the fewest of the keys; of games where it may be either."""
    return min(RunConfig, ContinuousConfig, key=lambda root: len(foreign_keys(named, root)))


def _experiment(overrides: Sequence[str], dirs: Sequence[Path]) -> tuple[str, set[str]]:
    """The override that picks an experiment, as typed, and the keys and groups that it names."""
    for override in parse_overrides(overrides):
        if key_of(override) == "experiment":
            return str(override.input_line), _named_by(str(override.value()), dirs, frozenset())
    return "", set()


def _named_by(experiment: str, dirs: Sequence[Path], seen: frozenset[str]) -> set[str]:
    """Keys and groups that an experiment and those it builds on name; none where unreadable."""
    paths = (folder / "experiment" / f"{experiment}.yaml" for folder in reversed(dirs))
    path = next((path for path in paths if path.is_file()), None)
    if path is None or experiment in seen:
        return set()
    try:
        content: Any = OmegaConf.to_container(load_mapping(path))
    except (OmegaConfBaseException, YAMLError, OSError, ConfigError):
        return set()  # Hydra will say what is wrong with it
    defaults = content.pop("defaults", None)
    named = _leaves(content)
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            base = entry.lstrip("/").removeprefix("experiment/")
            named |= _named_by(base, dirs, seen | {experiment})
        elif isinstance(entry, dict):
            groups = (str(key).removeprefix("override ").strip() for key in entry)
            named |= {group.lstrip("/").split("@")[0].split("/")[0] for group in groups}
    return named


def _leaves(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict) or not node:
        return {prefix.rstrip(".")}
    return {leaf for key, value in node.items() for leaf in _leaves(value, f"{prefix}{key}.")}
