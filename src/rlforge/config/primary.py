"""Which YAML an experiment is composed onto: that of games, or that of continuous training.

An experiment belongs where the groups are that it names: ``override /market: default`` or
``market: {…}`` only mean something to a continuous run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlforge.config.compose import Composed, compose, from_yaml, group_dirs, parse_overrides
from rlforge.config.continuous import GAME_GROUPS, ContinuousConfig
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Primary:
    """``conf/NAME.yaml``, the class it fills, and the command that runs what comes of it.

    about: what such an experiment does. groups: what only such experiments name.
    """

    name: str
    root: type[RunConfig]
    command: str
    about: str
    groups: frozenset[str]


def _fields(cls: type[RunConfig]) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls))


GAMES = Primary(
    name="config",
    root=RunConfig,
    command="train",
    about="plays games",
    groups=frozenset(GAME_GROUPS),
)
CONTINUOUS = Primary(
    name="continuous",
    root=ContinuousConfig,
    command="continuous",
    about="trains from window to window",
    # A service has deployments, too.
    groups=_fields(ContinuousConfig) - _fields(RunConfig) - {"deployment", "serve"},
)


def compose_for(
    overrides: Sequence[str], config_dir: Path | None = None, wanted: Primary | None = None
) -> Composed:
    """Compose what the overrides, and their experiment, are of; games where it may be either.

    wanted: what the command runs. Raises ConfigError when the experiment is of another, naming
    the command that runs it, and as ``compose`` does.
    """
    dirs = group_dirs(config_dir)
    line, named = _experiment(overrides, dirs)
    if wanted is None:
        named |= {_head(o.get_key_element()) for o in parse_overrides(overrides)}
    found = next((one for one in (CONTINUOUS, GAMES) if named & one.groups), None)
    if wanted is not None and found is not None and found is not wanted:
        raise ConfigError(f"{line} {found.about}: start it with rlforge {found.command} {line}")
    primary = wanted or found or GAMES
    return compose(overrides, config_dir, root=primary.root, primary=primary.name)


def read_run(run_dir: Path, wanted: Primary) -> RunConfig:
    """The configuration of a run; ConfigError when there is none, or it is of another kind."""
    config = from_yaml(run_dir / "config.yaml", wanted.root)  # says what is wrong with the file
    found = CONTINUOUS if is_continuous(run_dir) else GAMES
    if found is not wanted:
        raise ConfigError(f"{run_dir}: that run {found.about}; this command is for others")
    return config


def is_continuous(run_dir: Path) -> bool:
    """Whether the run in ``run_dir``, whose configuration can be read, is a continuous one."""
    return bool(CONTINUOUS.groups & {str(key) for key in OmegaConf.load(run_dir / "config.yaml")})


def _experiment(overrides: Sequence[str], dirs: Sequence[Path]) -> tuple[str, set[str]]:
    """The override that picks an experiment, as typed, and the groups that it names."""
    for override in parse_overrides(overrides):
        if _head(override.get_key_element()) == "experiment":
            return str(override.input_line), _named_by(str(override.value()), dirs, frozenset())
    return "", set()


def _head(key: str) -> str:
    """The group in ``+group@package``, ``/group`` or ``group.key``."""
    return key.lstrip("+~/").split("@")[0].split(".")[0].split("/")[0]


def _named_by(experiment: str, dirs: Sequence[Path], seen: frozenset[str]) -> set[str]:
    """Groups that an experiment names, with those it builds on. Of unreadable ones: none."""
    paths = (folder / "experiment" / f"{experiment}.yaml" for folder in reversed(dirs))
    path = next((path for path in paths if path.is_file()), None)
    if path is None or experiment in seen:
        return set()
    try:
        content: Any = OmegaConf.to_container(OmegaConf.load(path))
    except (OmegaConfBaseException, YAMLError, OSError):
        return set()  # Hydra will say what is wrong with it
    if not isinstance(content, dict):
        return set()
    named = {str(key) for key in content if key != "defaults"}
    defaults = content.get("defaults")
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str):
            base = entry.lstrip("/").removeprefix("experiment/")
            named |= _named_by(base, dirs, seen | {experiment})
        elif isinstance(entry, dict):
            named |= {_head(str(key).removeprefix("override ").strip()) for key in entry}
    return named
