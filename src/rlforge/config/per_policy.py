"""The configuration of each policy of a run: of the only one, or of an entry of ``policies``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

from rlforge.config.complaints import InvalidValuesError
from rlforge.config.games import EnvEntry
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.policies import PolicyEntry
from rlforge.config.rules import hints, with_values
from rlforge.config.schema import GamesConfig, PolicyConfig, RunConfig
from rlforge.config.training import algorithm_config
from rlforge.errors import ConfigError, nearest, raise_all

C = TypeVar("C", bound=PolicyConfig)
E = TypeVar("E", bound=EnvEntry)

GROUPS = ("algorithm", "learner", "pool", "rewards")
"""Groups of which an entry of ``policies`` can set keys of its own."""


def policy_names(config: PolicyConfig) -> tuple[str, ...]:
    """The policies that a run trains, or one without a name.

    Example:
        >>> from rlforge import compose
        >>> policy_names(compose("policies={main: {}, rival: {opponents: [main]}}"))
        ('main', 'rival')
    """
    # In the order of the configuration: the first is meant where none is asked for.
    return tuple(entries(config)) or ("",)


def entries(config: PolicyConfig) -> Mapping[str, PolicyEntry]:
    """``policies`` of a run that learns from games, or nothing."""
    return config.policies if isinstance(config, RunConfig) else {}


def without_entries(config: C) -> C:
    nothing: dict[str, Any] = {"policies": {}} if entries(config) else {}
    return dataclasses.replace(config, **nothing)


def asked_by_model(config: C) -> C:
    """``config`` with the template and extraction of the model in every environment."""
    if not isinstance(config, GamesConfig):
        return config

    def unasked(entry: E) -> E:
        return dataclasses.replace(entry, prompt_template=None, action_extraction=None)

    env = dataclasses.replace(
        config.env,
        train=[unasked(entry) for entry in config.env.train],
        eval=[unasked(entry) for entry in config.env.eval],
    )
    return without_entries(dataclasses.replace(config, env=env))


def entry_of(config: PolicyConfig, name: str) -> PolicyEntry:
    """The entry of a policy; without a name one that takes every seat."""
    return entries(config)[name] if name else PolicyEntry()


def evaluated_at(config: PolicyConfig, seat: int) -> str:
    """The policy that is evaluated at a seat: the first that can take it.

    Example:
        >>> from rlforge import compose
        >>> first = "policies.main={seats: [0], opponents: [rival]}"
        >>> both = compose(first, "policies.rival={seats: [1], opponents: [main]}")
        >>> evaluated_at(both, 0), evaluated_at(both, 1)
        ('main', 'rival')
    """
    names = policy_names(config)
    return next((name for name in names if entry_of(config, name).takes(seat)), names[0])


def of_policy(config: C, name: str) -> C:
    """The configuration with one policy's groups; ConfigError for unknown keys and wrong types."""
    if not name:
        return config
    entry = entries(config)[name]
    groups: dict[str, Any] = {}
    for group in GROUPS:
        values: Mapping[str, Any] = getattr(entry, group)
        base = getattr(config, group)
        if group == "algorithm" and values.get("name", base.name) != base.name:
            if (problem := ALGORITHMS.problem(values["name"])) is not None:
                raise ConfigError(f"policies.{name}.algorithm.name={values['name']}: {problem}")
            base = algorithm_config(values["name"])()  # keys that are not given are its defaults
        try:
            groups[group] = with_values(base, values) if values else base
        except InvalidValuesError as error:
            place, known = f"policies.{name}.{group}", hints(type(base))
            raise_all(
                f"{place}.{one.key}: no such key{nearest(one.key, known)}"
                if one.unknown
                else f"{place}.{one}"
                for one in error.wrong
            )
    # With its entries the copy would be judged as a run of several policies.
    return dataclasses.replace(without_entries(config), **groups)


def own_keys(config: RunConfig, name: str) -> dict[str, str]:
    """Keys that a policy's entry sets, with their place there."""
    entry = entry_of(config, name)
    return {
        f"{group}.{key}": f"policies.{name}.{group}"
        for group in GROUPS
        for key in getattr(entry, group)
    }


def turns(config: RunConfig) -> tuple[str, ...]:
    """The order of updates, which repeats: each policy as often as its ``share``, evenly spread.

    Example:
        >>> from rlforge import compose
        >>> turns(compose("policies={main: {share: 3}, rival: {opponents: [main]}}"))
        ('main', 'main', 'rival', 'main')
    """
    names = policy_names(config)
    shares = {name: entry_of(config, name).share for name in names}
    done = dict.fromkeys(names, 0)
    order = []
    for _ in range(sum(shares.values())):
        # The policy with the least part of its share done is next.
        # Counted to the middle of its next update, else all would tie at the start.
        name = min(names, key=lambda each: (2 * done[each] + 1) / shares[each])
        done[name] += 1
        order.append(name)
    return tuple(order)


def longest_wait(config: RunConfig, name: str) -> int:
    """Most updates of the run from one of a policy to its next one.

    Example:
        >>> from rlforge import compose
        >>> both = compose("policies={main: {share: 3}, rival: {opponents: [main]}}")
        >>> longest_wait(both, "main"), longest_wait(both, "rival")
        (2, 4)
    """
    order = turns(config)
    own = [place for place, each in enumerate(order) if each == name]
    # The order repeats: the last update is followed by the first of the next round.
    return max(after - place for place, after in pairwise([*own, own[0] + len(order)]))


def trained_seats(config: RunConfig, name: str) -> int:
    """Most seats of a game that a policy learns from: all in self-play, else its own."""
    if config.collector.learned_seats == "one":
        return 1
    entry = entry_of(config, name)
    mirrors = of_policy(config, name).pool.mode == "mirror" and entry.meets(name) == (name,)
    return max(env.num_players for env in config.env.train) if mirrors else 1
