"""Which kind of run an experiment describes: of games, of continuous or of supervised training.

It is the kind that has the groups and keys that the experiment names: ``override /market: default``
or ``market: {…}`` only mean something to a continuous run. A supervised run takes the experiments
of both others, too: what it shares with them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlforge.config.compose import Composed, compose, from_yaml, load_mapping
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.keys import foreign_keys, group_dirs
from rlforge.config.overrides import key_of, parse_overrides
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError

C = TypeVar("C", bound=PolicyConfig)

RUNS: tuple[type[PolicyConfig], ...] = (RunConfig, ContinuousConfig, SftConfig)
"""The kinds of runs; what may be of several is of the first."""

_OWN = ("data", "learner", "algorithm")
"""What a supervised run has of its own where an experiment of another kind gives the rest."""


def compose_any(overrides: Sequence[str], config_dir: Path | None = None) -> Composed[Any]:
    """Compose the run, of whichever kind, that overrides and experiment describe."""
    return compose_run(overrides, config_dir, root_of(overrides, config_dir))


def root_of(overrides: Sequence[str], config_dir: Path | None = None) -> type[PolicyConfig]:
    """The kind of run that overrides and experiment describe."""
    _, named = _experiment(overrides, group_dirs(config_dir))
    return _root_of(named | {key_of(override) for override in parse_overrides(overrides)})


def compose_run(overrides: Sequence[str], config_dir: Path | None, root: type[C]) -> Composed[C]:
    """Compose what a command runs; ConfigError when the experiment is one of another command."""
    line, named = _experiment(overrides, group_dirs(config_dir))
    if foreign := foreign_keys(named, root):
        other = _root_of(named)
        if root is SftConfig and other is not root:
            composed: Composed[Any] = _as_sft(overrides, config_dir, other)
            return composed
        if other is not root:
            raise ConfigError(
                f"{line} is {other.about}: start it with rlforge {other.command} {line}"
            )
        raise ConfigError(f"{foreign[0]} ({line}): {root.about} has no such key")
    return compose(overrides, config_dir, root=root)


def read_any(run_dir: Path) -> PolicyConfig:
    """The configuration of a run, of whichever kind; ConfigError when there is none."""
    config: PolicyConfig = from_yaml(run_dir / "config.yaml", kind_of_run(run_dir))
    return config


def read_run(run_dir: Path, root: type[C]) -> C:
    """The configuration of a run; ConfigError when there is none, or it is of another kind."""
    config = read_any(run_dir)
    if not isinstance(config, root):
        raise ConfigError(f"{run_dir} is {config.about}; this command is for {root.about}")
    return config


def kind_of_run(run_dir: Path) -> type[PolicyConfig]:
    """The kind of the run in ``run_dir``; ConfigError when there is none."""
    return _root_of({str(key) for key in load_mapping(run_dir / "config.yaml")})


def _root_of(named: Collection[str]) -> type[PolicyConfig]:
    """The kind of run that lacks the fewest of the keys, apart from those that it leaves out."""
    foreign = {root: set(foreign_keys(named, root)) for root in RUNS}
    foreign[SftConfig] &= foreign[RunConfig] & foreign[ContinuousConfig]
    return min(RUNS, key=lambda root: len(foreign[root]))


def _as_sft(
    overrides: Sequence[str], config_dir: Path | None, base: type[PolicyConfig]
) -> Composed[SftConfig]:
    """A supervised run with what the experiment of a run of ``base`` says about the rest."""
    fields = {field.name for field in dataclasses.fields(SftConfig)} - {"market"}
    parsed = parse_overrides(overrides)
    keys = [key_of(one).split(".")[0] for one in parsed]
    lines = [str(one.input_line) for one in parsed]
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
    return dataclasses.replace(
        composed,
        config=dataclasses.replace(composed.config, name=name, **rest),
        overrides=tuple(overrides),
        choices=composed.choices | theirs.choices | {key: composed.choices[key] for key in _OWN},
    )


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
    except (OmegaConfBaseException, OSError, ConfigError):
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
