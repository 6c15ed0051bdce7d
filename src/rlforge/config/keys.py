"""The dotted keys of configurations, and the folders with the YAML groups that set them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.games import EnvEntry
from rlforge.config.other_trainers import counterparts, left_out
from rlforge.config.plugins import RUN_KINDS
from rlforge.config.rules import hints, parts
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.config.training import ALGORITHM_CONFIGS
from rlforge.config.unstable_names import in_place_of, spelled_here
from rlforge.errors import ConfigError, nearest


@functools.cache
def all_roots() -> tuple[type[PolicyConfig], ...]:
    """The configuration classes of rlforge's kinds of runs; games last."""
    return tuple(RUN_KINDS.find(name).root for name in reversed(RUN_KINDS.own))


def conf_dir() -> Path:
    """The YAML groups that ship with rlforge."""
    # A wheel has the folder in the package, a checkout beside ``src``.
    packaged = Path(__file__).resolve().parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "conf"


def group_dirs(config_dir: Path | None) -> tuple[Path, ...]:
    """Folders with groups, the user's own last; ConfigError where that is missing."""
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(f"--config-dir {config_dir}: no such directory")
    return (conf_dir(), *([config_dir.resolve()] if config_dir else []))


def option_file(name: str, dirs: Sequence[Path]) -> Path | None:
    """The YAML file of an option such as ``experiment/mine``: the first, which Hydra reads."""
    files = (folder / f"{name}.yaml" for folder in dirs)
    return next((file for file in files if file.is_file()), None)


def foreign_keys(named: Collection[str], root: type[PolicyConfig]) -> list[str]:
    """The dotted keys that only other roots have."""
    own, others = set(all_keys(root)), {key for one in all_roots() for key in all_keys(one)}
    return sorted(
        name
        for name in named
        if any(
            part in others and part not in own
            # A key below a mapping of free names is itself unknown: its parents count.
            for part in itertools.accumulate(name.split("."), "{}.{}".format)
        )
    )


def kinds_with(key: str, said: str) -> str:
    """The end of a message: kinds of runs that have a key, or keys like it. said: a kind.

    Example:
        >>> kinds_with("data.games", "kind={}"), kinds_with("market", "kind={}")
        ('; kind=sft has it', '; kind=continuous or kind=sft has it')
    """
    having = [said.format(root.kind) for root in all_roots() if key in all_keys(root)]
    known = [*dict.fromkeys(one for root in reversed(all_roots()) for one in all_keys(root))]
    return f"; {' or '.join(having)} has it" if having else alike(key, known)


def elsewhere(key: str, config: PolicyConfig) -> str:
    """The end of a message about a key that ``config`` lacks: what has it, or keys like it."""
    of_algorithm = key.startswith("algorithm.")
    return not_there(key, config) if of_algorithm else kinds_with(key, "kind={}")


def all_keys(node: Any = RunConfig, prefix: str = "") -> list[str]:
    keys = []
    for field in dataclasses.fields(node):
        name = f"{prefix}{field.name}"
        keys.append(name)
        if name == "algorithm":  # any may be chosen
            for cls in ALGORITHM_CONFIGS.values():
                keys += all_keys(cls, "algorithm.")
        elif nested := nested_class(field):
            keys += all_keys(nested, f"{name}.")
    return keys


def nested_class(field: dataclasses.Field[Any]) -> type | None:
    """The configuration class that a field holds, or None."""
    # A group is made by its own class; lists and mappings are made by functions.
    factory: Any = field.default_factory
    return factory if isinstance(factory, type) and dataclasses.is_dataclass(factory) else None


def own_values(root: type[PolicyConfig], values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` without ``kind``, and without keys that only other roots have."""
    # An option, as ``learner=tiny_ppo``, may set keys of several kinds of runs.
    own, others = set(all_keys(root)), {key for one in all_roots() for key in all_keys(one)}

    def kept(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        keys = {f"{prefix}{name}": value for name, value in values.items()}
        return {
            key.removeprefix(prefix): kept(value, f"{key}.")
            # A mapping of free names, as ``prompts``, is a single value.
            if isinstance(value, dict) and any(one.startswith(f"{key}.") for one in own)
            else value
            for key, value in keys.items()
            # Keys that no kind of run has stay, so that validation refuses them.
            if key in own or key not in others
        }

    return kept({key: value for key, value in values.items() if key != "kind"}, "")


def not_there(key: str, config: PolicyConfig) -> str:
    """The end of a message about a missing key: where it is, or one like it."""
    # ``all_keys`` has the keys of every algorithm, and only one is chosen.
    if key.startswith("algorithm."):
        kind, of_all = type(config.algorithm), ALGORITHM_CONFIGS.items()
        having = [name for name, one in of_all if key in all_keys(one, "algorithm.")]
        end = f"; algorithm={' and '.join(having)} {'has' if len(having) == 1 else 'have'} it"
        close = nearest(key.removeprefix("algorithm."), hints(kind))
        close = "" if counterparts(key) else close
        known = all_keys(kind, "algorithm.") if close else all_keys(type(config))
        mend = end if having else alike(key, known)
        return f" in {kind.__name__}{mend}"
    root, head = type(config), key.rpartition(".")[0]
    owner = _class_at(root, head)
    # Entries of lists and mappings have keys that are in none of the root's.
    own = [f"{head}.{name}" for name in hints(owner)] if owner and head else []
    return alike(key, [*all_keys(root), *own])


def _class_at(root: type, key: str) -> type | None:
    kind: Any = root
    for part in key.split(".") if key else ():
        if dataclasses.is_dataclass(kind):
            kind = hints(typing.cast("type", kind)).get(part)
        else:
            # The last argument is what a list or a mapping holds.
            kind = (None, *typing.get_args(kind))[-1]
        kind = None if kind is None else parts(kind)[0]
    return kind if dataclasses.is_dataclass(kind) else None  # type: ignore[return-value]


def alike(key: str, known: Sequence[str]) -> str:
    """The end of a message: the counterpart of another trainer's name, or similar keys."""
    last = {one: one.rpartition(".")[2] for one in known}
    found = [one for one, name in last.items() if name == key]
    elsewhere, other = counterparts(key), in_place_of(key.rpartition(".")[2])
    # A class in place of a word such as ``type`` would answer another question.
    other = other if other in all_keys() or "." not in key else None
    # Short forms are common, as ``vf`` for ``value_function``.
    initials = {one: "".join(word[:1] for word in name.split("_")) for one, name in last.items()}
    found = found or elsewhere or [one for one in last if initials[one] == key]
    # A text such as ``rewards.step=[{name: …}]`` is no key: keys with the same last part are better
    # suggestions then.
    if other in all_keys():
        # One more would make the list too long to be a suggestion.
        same = found if len(found) < _MOST_ALIKE else []
        found = list(dict.fromkeys([*elsewhere, other, *same]))
    elif reason := left_out(key):
        return f"; {reason}"
    head, dot, name = key.rpartition(".")
    if (renamed := f"{head}{dot}{spelled_here(name)}") != key and renamed in known:
        found = [renamed]
    if 0 < len(found) <= _MOST_ALIKE:
        return f"; did you mean {', '.join(found)}?"
    # ``all_keys`` ends at lists: it has no keys of their entries.
    if other is None and name in {field.name for field in dataclasses.fields(EnvEntry)}:
        return f"; did you mean env.train.0.{name}, of each environment?"
    return f"; in its place there is {other}" if other else nearest(key, known)


#: More keys than these are no suggestion.
_MOST_ALIKE = 4
