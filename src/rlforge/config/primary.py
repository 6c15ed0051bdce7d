"""Which YAML an experiment is composed from: that of games, or that of continuous training.

An experiment belongs where the groups are that it names: ``override /market: default`` or
``market: {…}`` only mean something to a continuous run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlforge.config.continuous import GAME_GROUPS, ContinuousConfig
from rlforge.config.schema import RunConfig
from rlforge.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Primary:
    """``conf/NAME.yaml``, the class it fills, and the command that runs what comes of it.

    about: what such an experiment does, as the end of a sentence.
    """

    name: str
    schema: type[RunConfig]
    command: str
    about: str

    @property
    def groups(self) -> frozenset[str]:
        """Keys and groups at the top level."""
        return frozenset(field.name for field in dataclasses.fields(self.schema))


GAMES = Primary(name="config", schema=RunConfig, command="train", about="plays games")
CONTINUOUS = Primary(
    name="continuous",
    schema=ContinuousConfig,
    command="continuous",
    about="trains from window to window",
)

PRIMARIES = {primary.name: primary for primary in (GAMES, CONTINUOUS)}


def primary_of(overrides: Sequence[Override], dirs: Sequence[Path]) -> Primary | None:
    """Where the groups that the command line and its experiment name belong; None: anywhere.

    dirs: folders with groups, those of the user last.
    """
    named = {_head(override.get_key_element()) for override in overrides}
    for override in overrides:
        if _head(override.get_key_element()) == "experiment":
            named |= _named_by(str(override.value()), dirs, frozenset())
    if named & (CONTINUOUS.groups - GAMES.groups):
        return CONTINUOUS
    return GAMES if named & set(GAME_GROUPS) else None


def check_primary(overrides: Sequence[Override], dirs: Sequence[Path], wanted: Primary) -> None:
    """Raises ConfigError when what is asked for belongs to another command than ``wanted``'s."""
    found = primary_of(overrides, dirs)
    if found in (None, wanted):
        return
    assert found is not None
    experiments = [o for o in overrides if _head(o.get_key_element()) == "experiment"]
    line = experiments[0].input_line if experiments else None
    what = f"{line} {found.about}" if line else f"these settings are of a run that {found.about}"
    raise ConfigError(f"{what}: start it with rlforge {found.command}{f' {line}' if line else ''}")


def schema_of(values: DictConfig) -> type[RunConfig]:
    """The class that fits a configuration with these keys."""
    own = CONTINUOUS.groups - GAMES.groups
    return CONTINUOUS.schema if own & {str(key) for key in values} else GAMES.schema


def _head(key: str) -> str:
    """The group in ``+group@package``, ``/group`` or ``group.key``."""
    return key.lstrip("+~/").split("@")[0].split(".")[0].split("/")[0]


def _named_by(experiment: str, dirs: Sequence[Path], seen: frozenset[str]) -> set[str]:
    """Groups and keys that an experiment sets, and those it builds on. Unreadable ones: none."""
    paths = (folder / "experiment" / f"{experiment}.yaml" for folder in reversed(dirs))
    path = next((path for path in paths if path.is_file()), None)
    if path is None or experiment in seen:
        return set()
    try:
        loaded = OmegaConf.load(path)
    except (OmegaConfBaseException, YAMLError, OSError):
        return set()  # Hydra will say what is wrong with it
    if not isinstance(loaded, DictConfig):
        return set()
    named = {str(key) for key in loaded if key != "defaults"}
    for entry in _entries(OmegaConf.to_container(loaded).get("defaults")):  # type: ignore[union-attr]
        if isinstance(entry, str):
            named |= _named_by(
                entry.lstrip("/").removeprefix("experiment/"), dirs, seen | {experiment}
            )
        elif isinstance(entry, dict):
            named |= {_head(str(key).removeprefix("override ").strip()) for key in entry}
    return named


def _entries(defaults: Any) -> Iterable[Any]:
    return defaults if isinstance(defaults, list) else ()
