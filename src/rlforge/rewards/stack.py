"""Builds a list of transforms from a list of mappings in YAML; errors name the key."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from rlforge.errors import ConfigError, nearest

_T = TypeVar("_T")


@dataclasses.dataclass
class Bounds:
    """The interval of the ``clamp`` transforms. Raises ValueError when it is empty."""

    min_r: float = -1.0
    max_r: float = 1.0

    def __post_init__(self) -> None:
        if self.min_r > self.max_r:
            raise ValueError(f"min_r: {self.min_r} is above max_r {self.max_r}")

    def clip(self, reward: float) -> float:
        """The nearest number in the interval."""
        return max(self.min_r, min(self.max_r, reward))


def build_stack(
    entries: Sequence[Mapping[str, Any]], registry: Mapping[str, type[_T]], path: str
) -> list[_T]:
    """One transform per entry, in order.

    registry: name to dataclass; its fields are the parameters an entry may give.
    path: key of the entries (``rewards.final``), for messages.
    Raises ConfigError for an entry without ``name``, an unknown name or parameter, a value of the
    wrong type, and a value that the transform refuses.
    """
    return [_build(entry, registry, f"{path}[{index}]") for index, entry in enumerate(entries)]


def _build(entry: Mapping[str, Any], registry: Mapping[str, type[_T]], path: str) -> _T:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError(
            f"{path}: {entry!r} names no transform; write {{name: NAME, …}} with one of "
            f"{', '.join(sorted(registry))}"
        )
    name = entry["name"]
    if name not in registry:
        raise ConfigError(
            f"{path}.name: no transform {name!r}{nearest(name, registry)} "
            f"(known: {', '.join(sorted(registry))})"
        )
    transform = registry[name]
    hints = typing.get_type_hints(transform)
    fields = {
        field.name: hints[field.name]
        for field in dataclasses.fields(transform)  # type: ignore[arg-type]
        if field.init
    }
    parameters = {str(key): value for key, value in entry.items() if key != "name"}
    for key, given in parameters.items():
        if key not in fields:
            raise ConfigError(
                f"{path}.{key}: {name} has no such parameter{nearest(key, fields)} "
                f"(it takes: {', '.join(fields) or 'none'})"
            )
        _check_type(given, fields[key], f"{path}.{key}")
    try:
        return transform(**parameters)
    except ValueError as error:
        raise ConfigError(f"{path}.{error}") from error


def _check_type(given: object, hint: object, path: str) -> None:
    """Raise ConfigError unless ``given`` is a number, flag, word or null as ``hint`` asks."""
    if isinstance(hint, types.UnionType):
        if given is None and type(None) in hint.__args__:
            return
        hint = next(kind for kind in hint.__args__ if kind is not type(None))
    if typing.get_origin(hint) is Literal:
        words = typing.get_args(hint)
        if given not in words:
            close = nearest(str(given), words)
            raise ConfigError(f"{path}: {given!r} is none of {', '.join(words)}{close}")
    elif hint is bool:
        if not isinstance(given, bool):
            raise ConfigError(f"{path}: {given!r} is not true or false")
    elif hint is float:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if not number or not math.isfinite(typing.cast(float, given)):
            raise ConfigError(f"{path}: {given!r} is not a finite number")
    else:
        raise TypeError(f"{path}: parameters are float, bool or Literal, not {hint}")
