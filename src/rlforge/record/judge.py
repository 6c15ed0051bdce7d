"""Judges a run's records as they come: which condition begins, goes on and ends."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, cast, get_args

from rlforge.config.per_policy import of_policy, own_keys, policy_names
from rlforge.config.plugins import SIGNALS
from rlforge.config.schema import GamesConfig, RunConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.record.signals import Condition, Finding, Row, Seen, Signal, Weight
from rlforge.types import EvalResult

#: Updates without a finding after which a signal has ended: one good batch among bad ones is none.
_QUIET = 3


@dataclass
class _Open:
    """A signal that goes on.

    Attributes:
        at: Its place among all signals.
        shown: Lines that show it, evaluations left out.
        quiet: Updates since the last of these.
    """

    at: int
    shown: int = 0
    quiet: int = 0


class Judge:
    """Judges a run's records as they come: each condition speaks when it begins and ends.

    Of several policies each is judged by the figures of its own updates; the first also by those
    of the run. A policy that does not learn leaves the run one that learns where another does.

    Attributes:
        signals: All signals, in the order in which they began.
    """

    def __init__(self, config: GamesConfig) -> None:
        self._config, self._conditions = config, conditions_of(config)
        self._policies = {name: Seen(_of_policy(config, name)) for name in policy_names(config)}
        self._first = next(iter(self._policies))
        self.seen = self._policies[self._first]
        #: Figures that each policy has of its own, and by policy what it learns nothing by.
        self._own, self._barren = set[str](), defaultdict[str, set[str]](set)
        self.signals: list[Signal] = []
        self._open: dict[str, _Open] = {}

    @property
    def open(self) -> list[Signal]:
        return [signal for signal in self.signals if signal.until is None]

    @property
    def final(self) -> list[Signal]:
        """Signals that nothing in the course of the run can end, as two lines have shown."""
        shown = [one.at for one in self._open.values() if one.shown > 1 and not one.quiet]
        return [self.signals[at] for at in sorted(shown) if self.signals[at].weight == "final"]

    def add(self, seen: Row | EvalResult) -> list[Signal]:
        """Judge a line of metrics.jsonl, a wait or an evaluation; returns what began or ended."""
        if isinstance(seen, EvalResult):
            self.seen.add(seen)
            return self._judged(self._first, evaluated=True)
        policy, own = "", dict[str, Any]()
        for key, figure in seen.items():
            if key.startswith("policies/"):
                _, policy, name = key.split("/", 2)
                own[name] = figure
        if not policy or policy not in self._policies:  # a line of the first names none
            return self._line(self._first, seen, adds="games_without_batch" in seen)
        self._own |= own.keys()
        own |= {name: seen[name] for name in ("step", "samples") if name in seen}
        of_run = {key: each for key, each in seen.items() if not key.startswith("policies/")}
        of_run.pop("samples", None)
        return [*self._line(self._first, of_run, adds=True), *self._line(policy, own)]

    def _line(self, policy: str, line: Row, *, adds: bool = False) -> list[Signal]:
        seen = self._policies[policy]
        update = not adds and line["step"] > seen.step
        seen.add(line, adds=adds)
        return self._judged(policy, update=update)

    def _judged(
        self, policy: str, *, update: bool = False, evaluated: bool = False
    ) -> list[Signal]:
        """Judge the records of a policy; returns what began or ended."""
        step, changed = self._policies[policy].step, list[Signal]()
        for condition in [*self._conditions]:
            name = condition if policy == self._first else f"{policy}/{condition}"
            found, going = self._found(condition, policy), self._open.get(name)
            if found is not None:
                began = step if going is None else self.signals[going.at].step
                signal = Signal(
                    name=name,
                    step=began,
                    text=_one_line(found.text),
                    mend=_one_line(found.mend),
                    weight=found.weight,
                    change=found.change,
                )
                if going is None:
                    going = self._open[name] = _Open(len(self.signals))
                    self.signals.append(signal)
                    changed.append(signal)
                # A reader who comes later finds the newest figure.
                self.signals[going.at], going.quiet = signal, 0
                going.shown += not evaluated
            elif going is not None and update:
                going.quiet += 1
                if going.quiet >= _QUIET:
                    self.signals[going.at] = replace(self.signals[going.at], until=step)
                    changed.append(self.signals[going.at])
                    del self._open[name]
        return changed

    def _found(self, name: str, policy: str) -> Finding | None:
        """The finding of a condition in the records of a policy, in words that name the policy."""
        (condition, threshold), seen = self._conditions[name], self._policies[policy]
        self._barren[policy].discard(name)
        try:
            with SIGNALS.trial(name):
                found = condition.check(seen, threshold)
                _check(found, seen.config)
        except RlforgeError as error:
            # Records go on; the condition would fail at each further line.
            del self._conditions[name]
            said = str(error) if name in str(error) else f"signal {name!r}: {error}"
            return Finding(text=said, mend="mend it; it is not judged any more")
        if found is None or not (policy != self._first or self._own & {*condition.figures}):
            return found
        if found.weight != "slow":
            self._barren[policy].add(name)
        mend, own = found.mend, own_keys(cast(RunConfig, self._config), policy)
        for key, place in own.items():
            mend = mend.replace(key, f"{place}.{key.partition('.')[2]}")
        return Finding(
            text=f"policy {policy}: {found.text}",
            mend=mend,
            weight=found.weight if all(self._barren[one] for one in self._policies) else "slow",
            change={
                f"{own[key]}.{key.partition('.')[2]}" if key in own else key: each
                for key, each in found.change.items()
            },
        )


def _of_policy(config: GamesConfig, name: str) -> GamesConfig:
    """The configuration with the groups of one policy, and the names of all."""
    if not name:
        return config
    of_run = cast(RunConfig, config)  # other kinds have one policy, without a name
    return replace(of_policy(of_run, name), policies=of_run.policies)


def conditions_of(config: GamesConfig) -> dict[str, tuple[Condition, float]]:
    """Conditions that a run is judged by, with their thresholds; ConfigError for a bad plug-in."""
    # Those of other packages hold as soon as they are installed; ``package.module:Thing`` is named.
    names = dict.fromkeys((*SIGNALS.names(), *config.signals))
    found = {name: SIGNALS.find(name) for name in names}
    own = {name: config.signals.get(name, each.threshold) for name, each in found.items()}
    return {name: (found[name], limit) for name, limit in own.items() if limit is not None}


def judged(config: GamesConfig, rows: Iterable[Row], evals: Iterable[EvalResult]) -> list[Signal]:
    """Signals of a run's files, in the order in which they began."""
    judge, waiting = Judge(config), sorted(evals, key=lambda result: result.step)
    for row in rows:
        # A run has the evaluation of a version soon after it is published.
        while waiting and waiting[0].step < row["step"]:
            judge.add(waiting.pop(0))
        judge.add(row)
    for result in waiting:
        judge.add(result)
    return judge.signals


def _check(found: object, config: GamesConfig) -> None:
    """Raise ConfigError for what no records, files and command lines of a run could hold."""
    if found is None:
        return
    if not isinstance(found, Finding):
        raise ConfigError(f"returns {type(found).__name__}, and not a Finding or None")
    for name in ("text", "mend"):
        if not isinstance(getattr(found, name), str):
            raise ConfigError(f"returns a Finding whose {name} is no text")
    if found.weight not in get_args(Weight):
        raise ConfigError(
            f"returns a Finding whose weight is none of {', '.join(get_args(Weight))}"
        )
    if not isinstance(found.change, Mapping):
        raise ConfigError("returns a Finding whose change is no mapping of keys to values")
    for key, given in found.change.items():
        if not isinstance(key, str) or not _has(config, key):
            raise ConfigError(f"proposes to change {key!r}, which the configuration has not")
        try:
            json.dumps(given, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"proposes a value of {key} that is none: {error}") from None


def _has(node: Any, key: str) -> bool:
    """Whether a part of a configuration has a dotted key; names in mappings are the user's."""
    head, _, rest = key.partition(".")
    if isinstance(node, list) and head.isdecimal() and int(head) < len(node):
        return not rest or _has(node[int(head)], rest)
    if is_dataclass(node) and hasattr(node, head):
        return not rest or _has(getattr(node, head), rest)
    return isinstance(node, dict)


def _one_line(text: str) -> str:
    """A text in one line, without the sign of a zero."""
    return re.sub(r"(?<![\w.-])-(?=0(?:\.0+)?(?![\w.]))", "", " ".join(text.split()))
