"""Lists of things with parameters, as ``rewards.step`` and ``tracker.sinks``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rlforge.config.names import Kind
from rlforge.config.rules import hints, value_problem
from rlforge.config.unstable_names import spelled_here
from rlforge.errors import ConfigError, nearest


def build_stack(entries: Sequence[Mapping[str, Any]], kind: Kind, key: str) -> list[Any]:
    """One object per entry ``{name: NAME, PARAMETER: VALUE, ...}``, in order.

    NAME is one of ``kind``, a dataclass whose annotated fields are the parameters. key: of the
    entries. Raises ConfigError for parameters that do not fit.

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
    # A field outside ``__init__`` is state, and no parameter.
    fields = {field.name for field in dataclasses.fields(made) if field.init}
    annotated = {field: hint for field, hint in hints(made).items() if field in fields}
    # Keys in YAML may be numbers, which no call takes as names.
    parameters = {str(key): value for key, value in entry.items() if key != "name"}
    for key, given in parameters.items():
        if key not in annotated:
            close = nearest(spelled_here(key), annotated)
            raise ConfigError(
                f"{path}.{key}: {name} has no such parameter{close} "
                f"(it takes: {', '.join(annotated) or 'none'})"
            )
        if (reason := value_problem(annotated[key], given)) is not None:
            raise ConfigError(f"{path}.{key}: {given!r} {reason}")
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
    # ``__post_init__`` may refuse what the types allow.
    except ValueError as error:
        raise ConfigError(f"{path}.{error}") from error
