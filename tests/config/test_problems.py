"""Every key of every configuration refuses what cannot be, before anything exists."""

import dataclasses
import itertools
import math
import re
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.composed import ROOTS
from tests.harness.live_run import run

from rlforge import launch
from rlforge.config.compose import Composed, compose
from rlforge.config.rules import (
    Length,
    NotNegative,
    Part,
    Probability,
    Range,
    Rule,
    Share,
    hints,
    is_union,
    parts,
    value_problem,
)
from rlforge.config.training import ALGORITHM_CONFIGS, LearnerConfig
from rlforge.errors import ConfigError

KINDS = (int, float, str, bool, list, dict, Literal, typing.Union)
FREE = {
    "hardware.name": "a profile may have any name",
    "hardware.ray_address": "only Ray knows which addresses it can reach",
    "run_dir": "any path may be a new folder",
}
"""Texts of which each is possible, and why."""


@cache
def composed(command: str, algorithm: str) -> Composed[Any]:
    """A valid configuration of the command, in which every group has entries."""
    overrides = [f"algorithm={algorithm}"]
    overrides += ["+experiment=simpletak_mirror"] if command in ("train", "serve") else []
    overrides += ["data=random_legal"] if command == "sft" else []
    result = compose(overrides, root=ROOTS[command])
    launch.check(result, keys=False)
    return result


def put(owner, keys, value):
    """A copy of ``owner`` with ``value`` at the dotted key."""
    first, *rest = keys
    if isinstance(owner, list):
        entries = [*owner]
        entries[int(first)] = put(entries[int(first)], rest, value) if rest else value
        return entries
    inside = put(getattr(owner, first), rest, value) if rest else value
    return dataclasses.replace(owner, **{first: inside})


def leaves(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and annotation of every value; of lists of classes those of the first entry."""
    for name, hint in hints(cls).items():
        kind, _ = parts(hint)
        if dataclasses.is_dataclass(kind):
            yield from leaves(kind, f"{prefix}{name}.")  # type: ignore[arg-type]
            continue
        yield f"{prefix}{name}", hint
        inner = typing.get_args(kind)[:1] if typing.get_origin(kind) is list else ()
        if inner and dataclasses.is_dataclass(inner[0]) and name == "train":
            yield from leaves(inner[0], f"{prefix}{name}.0.")  # type: ignore[arg-type]


def keys_of(command: str) -> list[tuple[str, str, Any]]:
    """Algorithm under which a key exists, key and annotation, of all keys of the command's root."""
    chosen = {"sft": ("supervised",)}.get(command, tuple(ALGORITHM_CONFIGS)[:-1])
    found = {key: (chosen[0], hint) for key, hint in leaves(ROOTS[command])}
    for name, cls in ((name, ALGORITHM_CONFIGS[name]) for name in chosen):
        found |= {key: (name, hint) for key, hint in leaves(cls, "algorithm.")}
    return [(algorithm, key, hint) for key, (algorithm, hint) in found.items()]


def bad_values(hint: Any) -> Iterator[Any]:
    """Values that a key with this annotation must refuse."""
    kind, rules = parts(hint)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if is_union(kind):
        yield from itertools.chain(*map(bad_values, inner))
    if origin is Literal or (kind is str and not rules):
        yield "no-such-thing"
    if kind is float:
        yield from (math.nan, math.inf, -math.inf)
    for rule in rules:
        if isinstance(rule, Rule) and kind is str:
            yield ""
        if isinstance(rule, Range) and not math.isinf(rule.low):
            yield kind(rule.low if "(" in rule.open else rule.low - 1)
        if isinstance(rule, Range) and not math.isinf(rule.high):
            yield kind(rule.high if ")" in rule.open else rule.high + 1)
        if isinstance(rule, Length) and origin is list:
            yield [] if rule.least else [1] * 99
    if origin is list and dataclasses.is_dataclass(inner[0]):
        yield [dataclasses.replace(inner[0](), weight=0.0)]
    elif origin is list and typing.get_origin(inner[0]) is dict:
        yield [{"name": "no-such-thing"}]
    elif origin is list:
        least = max((rule.least for rule in rules if isinstance(rule, Length)), default=0)
        yield from ([value] * (least or 1) for value in bad_values(inner[0]))
    elif origin is dict and dataclasses.is_dataclass(inner[1]):
        ruled = {name: own for name, own in hints(inner[1]).items() if parts(own)[1]}
        name, value = next((name, bad) for name, own in ruled.items() for bad in bad_values(own))
        yield {"noise": inner[1](**{name: value})}
    elif origin is dict and inner[1] is Any:
        yield from ({"tools": []}, {"no name": 1})
    elif origin is dict:
        yield from ({"noise": value} for value in bad_values(inner[1]))


def refusal(command: str, algorithm: str, key: str, value: Any) -> str | None:
    """The message with which ``value`` is refused; None where it is accepted."""
    base = composed(command, algorithm)
    config = put(base.config, key.split("."), value)
    changed = dataclasses.replace(base, config=config, overrides=(f"{key}=typed",))
    try:
        launch.check(changed, keys=False)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.one_in(4)
@pytest.mark.parametrize("command", ROOTS)
def test_each_key_refuses_values_and_names_key_value_origin_and_reason(command):
    unclear, judged = [], 0
    games = {key for _, key, _ in keys_of("train")}
    assert set(FREE) <= {key for _, key, _ in keys_of(command)}
    for algorithm, key, hint in keys_of(command):
        kind, _ = parts(hint)
        # A new kind of field must be taken up in ``bad_values``, or it would pass unseen.
        assert (typing.get_origin(kind) or kind) in KINDS, key
        if key in FREE or kind is bool:
            continue
        values = list(bad_values(hint))
        assert values, key
        if command != "train" and key in games:
            values = values[:1]  # that ``train`` refuses all of them holds for their class
        for value in values:
            judged += 1
            said = refusal(command, algorithm, key, value) or "accepted"
            if not re.match(rf"{re.escape(key)}[.\w ]*(=.*)? \(command line, .*\): ..", said):
                unclear.append((key, value, said))
    assert unclear == []
    assert judged > 150


@given(st.floats(), st.integers())
def test_a_number_is_refused_exactly_where_its_range_ends(number, whole):
    for one in (number, whole):
        assert (value_problem(Share, one) is None) is (0 <= one <= 1)
        assert (value_problem(Part, one) is None) is (0 < one <= 1)
        assert (value_problem(Probability, one) is None) is (0 < one < 1)
        assert (value_problem(NotNegative, one) is None) is (one >= 0 and math.isfinite(one))


@given(st.lists(st.floats(), max_size=4))
def test_the_betas_are_two_numbers_from_0_to_below_1(betas):
    fine = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    assert (list(LearnerConfig(betas=betas).problems()) == []) is fine


def test_a_process_of_its_own_refuses_with_code_2_and_creates_nothing(tmp_path):
    done = run("train", "+experiment=simpletak_mirror", "algorithm.gamma=2")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "rlforge: algorithm.gamma=2 (command line, algorithm.gamma=2): must be 1 or less"
        in done.stderr
    )
    assert list(tmp_path.iterdir()) == []
