"""Lists of things with parameters, as YAML gives them: ``rewards.step``, ``tracker.sinks``."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlforge.config.names import Kind
from rlforge.config.rules import hints, optional, parts
from rlforge.config.unstable_names import spelled_here
from rlforge.errors import ConfigError, nearest


def build_stack(entries: Sequence[Mapping[str, Any]], kind: Kind, key: str) -> list[Any]:
    """One object per entry ``{name: NAME, PARAMETER: VALUE, ...}``, in order.

    NAME is one of ``kind``: a dataclass, whose fields are the parameters. Their annotations may be
    float, int, bool, str, Literal, those with ``| None``, and rules such as
    ``rlforge.config.rules.Positive``. key: of the entries, for messages. Raises ConfigError for an
    entry without ``name``, an unknown name or parameter, and a value of the wrong type or that the
    dataclass refuses with a ValueError.

    Example:
        >>> from rlforge.config.plugins import STEP_REWARDS
        >>> build_stack([{"name": "scale", "alpha": 0.5}], STEP_REWARDS, "rewards.step")
        [Scale(alpha=0.5)]
    """
    return [_build(entry, kind, f"{key}[{index}]") for index, entry in enumerate(entries)]


def _build(entry: Mapping[str, Any], kind: Kind, path: str) -> Any:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError(
            f"{path}: {entry!r} names no {kind.noun}; write {{name: NAME, …}} with one of "
            f"{', '.join(sorted(kind.names()))}"
        )
    name = entry["name"]
    if (problem := kind.problem(name)) is not None:
        raise ConfigError(f"{path}.name={name}: {problem}")
    made = kind.find(name)
    fields = {field.name for field in dataclasses.fields(made) if field.init}
    annotated = {field: hint for field, hint in hints(made).items() if field in fields}
    parameters = {str(key): value for key, value in entry.items() if key != "name"}
    for key, given in parameters.items():
        if key not in annotated:
            close = nearest(spelled_here(key), annotated)
            raise ConfigError(
                f"{path}.{key}: {name} has no such parameter{close} "
                f"(it takes: {', '.join(annotated) or 'none'})"
            )
        if (wrong := _problem(given, annotated[key])) is not None:
            raise ConfigError(f"{path}.{key}: {given!r} {wrong}")
    needed = {
        field.name
        for field in dataclasses.fields(made)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(needed - parameters.keys()):
        raise ConfigError(f"{path}: {name} needs {', '.join(missing)}")
    try:
        return made(**parameters)
    except ValueError as error:
        raise ConfigError(f"{path}.{error}") from error


def _problem(given: object, hint: Any) -> str | None:
    """What is wrong with a parameter's value."""
    if given is None and optional(hint):
        return None
    kind, rules = parts(hint)
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if typing.get_origin(kind) is Literal:
        words = typing.get_args(kind)
        if given not in words:
            return f"is none of {', '.join(map(str, words))}{nearest(str(given), map(str, words))}"
    elif kind is bool and not isinstance(given, bool):
        return "is not true or false"
    elif kind is float and not (number and math.isfinite(typing.cast("float", given))):
        return "is not a finite number"
    elif kind is int and not (number and isinstance(given, int)):
        return "is not a whole number"
    elif kind is str and not isinstance(given, str):
        return "is not text"
    return next((found for rule in rules if (found := rule.problem(given)) is not None), None)
