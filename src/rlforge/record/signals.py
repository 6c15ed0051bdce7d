"""Signals: conditions, judged from the records of a run, under which it learns little or nothing.

    metrics.jsonl ─▶ Seen ─▶ Condition.check ─▶ Finding ─▶ Signal: begins, goes on, ends
    evals.jsonl   ─┤
    waits         ─┘

A condition is a pure function of recorded figures, so that the tracker of a run, the report and
``rlforge why`` find the same. ``rlforge.record.conditions`` has rlforge's own. A wait is a line of
what was played since the last update, where it brings no batch: the tracker alone sees it.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, cast, get_args

from rlforge.config.per_policy import of_policy, own_keys, policy_names
from rlforge.config.plugins import SIGNALS
from rlforge.config.schema import GamesConfig, RunConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.types import EvalResult, value

#: Updates over which means are taken.
SPAN = 10
#: Updates without a finding after which a signal has ended: one good batch among bad ones is none.
_QUIET = 3
#: Times of one signal that are listed.
_TIMES = 4

Row = Mapping[str, Any]
#: ``slow``: the run learns, but less than it could. ``barren``: it learns nothing meanwhile.
#: ``final``: nor can that change while it goes on.
Weight = Literal["slow", "barren", "final"]


@value
class Finding:
    """A condition that holds: a sentence with its figure, and the key that mends it.

    change: values to try, by key of the configuration.
    """

    text: str
    mend: str
    weight: Weight = "slow"
    change: Mapping[str, Any] = field(default_factory=dict)


@value
class Signal:
    """A condition that holds since update ``step``, or held from there to ``until``.

    Example:
        >>> Signal(
        ...     name="turn_limit", step=1, text="all games are cut at max_turns=2",
        ...     mend="raise max_turns in env.train", weight="final",
        ... ).line
        'all games are cut at max_turns=2; raise max_turns in env.train'
    """

    name: str
    step: int
    text: str
    mend: str
    weight: Weight
    until: int | None = None
    change: Mapping[str, Any] = field(default_factory=dict)

    @property
    def condition(self) -> str:
        """The name of the condition; that of a policy but the first stands before it."""
        return self.name.rpartition("/")[2]

    @property
    def policy(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def line(self) -> str:
        return f"{self.text}; {self.mend}"

    def goes_on(self, name: str) -> bool:
        return self.name == name and self.until is None


class Seen:
    """Records of a run up to now, for conditions.

    Attributes:
        config: Configuration of the run.
        evals: Evaluations by (environment, opponent), in the order of their versions.
    """

    def __init__(self, config: GamesConfig) -> None:
        self.config = config
        self.evals: defaultdict[tuple[str, str], list[EvalResult]] = defaultdict(list)
        self._rows: deque[Row] = deque(maxlen=SPAN)

    def add(self, seen: Row | EvalResult, *, adds: bool = False) -> None:
        """Note a line of metrics.jsonl, or an evaluation. adds: the line is no further update."""
        if isinstance(seen, EvalResult):
            of = self.evals[seen.env_id, seen.opponent]
            # The last version may be evaluated again at the end, with more games.
            others = [result for result in of if result.step != seen.step]
            of[:] = sorted([*others, seen], key=lambda result: result.step)
        else:
            # A wait adds to the line of the update after which it is.
            if self._rows and (adds or self.step == seen["step"]):
                seen = {**self._rows.pop(), **seen}
            self._rows.append(seen)

    @property
    def step(self) -> int:
        return int(self._rows[-1]["step"]) if self._rows else 0

    @property
    def batch_games(self) -> int:
        """Games that, with one sample each, fill a batch of every policy that is trained."""
        size: int = getattr(self.config.learner, "batch_size", 0)
        return size * len(policy_names(self.config))

    def now(self, name: str) -> float | None:
        """A figure of the last update; None where it is not there, or no number."""
        return _number(self._rows[-1].get(name)) if self._rows else None

    def mean(self, name: str, over: int = SPAN) -> float | None:
        """The mean of the last ``over`` updates; None where fewer have the figure."""
        rows = list(self._rows)[-over:]
        found = [number for row in rows if (number := _number(row.get(name))) is not None]
        return sum(found) / over if len(found) == over else None

    def of_games(self, name: str) -> Iterator[tuple[str, float]]:
        """Pairs (environment, figure of its training games), the largest figure first."""
        if not self._rows:
            return
        ends, found = f"/{name}", list[tuple[str, float]]()
        for key in self._rows[-1]:
            of_games = key.startswith("collection-") and key.endswith(ends)
            if of_games and (number := self.now(key)) is not None:
                found.append((key.removeprefix("collection-").removesuffix(ends), number))
        yield from sorted(found, key=lambda pair: -pair[1])


@dataclass(frozen=True)
class Condition:
    """A named condition; other packages install their own (``rlforge.signals``).

    Attributes:
        about: Meaning, in a line.
        threshold: Default of ``signals.NAME``.
        figures: Figures of metrics.jsonl whose curves show it; ``*/NAME`` is of each environment.
        check: Returns a finding where the condition holds at a threshold.

    Example:
        >>> def few_tokens(seen: Seen, threshold: float) -> Finding | None:
        ...     tokens = seen.now("tokens")
        ...     if tokens is None or tokens >= threshold:
        ...         return None
        ...     return Finding(text=f"a batch has {tokens} tokens", mend="raise learner.batch_size")
        >>> condition = Condition("small batches", 100.0, ("tokens",), few_tokens)
    """

    about: str
    threshold: float
    figures: tuple[str, ...]
    check: Callable[[Seen, float], Finding | None]

    def __post_init__(self) -> None:
        if _number(self.threshold) is None or not callable(self.check):
            raise ConfigError("a Condition has a number as threshold, and a function as check")
        names: object = self.figures  # a plug-in is not type-checked
        if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
            raise ConfigError('a Condition has names in a tuple as figures: ("moved",)')


class Judge:
    """Judges a run's records as they come: each condition speaks when it begins and ends.

    Of several policies each is judged by the figures of its own updates; the first also by those
    of the run. A policy that does not learn leaves the run one that learns where another does.
    """

    def __init__(self, config: GamesConfig) -> None:
        self._config, self._conditions = config, conditions_of(config)
        self._policies = {name: Seen(_of_policy(config, name)) for name in policy_names(config)}
        self._first = next(iter(self._policies))
        self.seen = self._policies[self._first]
        #: Figures that each policy has of its own, and by policy what it learns nothing by.
        self._own, self._barren = set[str](), defaultdict[str, set[str]](set)
        #: By signal, lines since it began that show it, and updates since the last of these.
        self._shown, self._quiet = Counter[str](), Counter[str]()
        self.signals: list[Signal] = []

    @property
    def open(self) -> list[Signal]:
        return [signal for signal in self.signals if signal.until is None]

    @property
    def final(self) -> list[Signal]:
        """Signals that nothing in the course of the run can end, as two lines have shown."""
        shown = [
            one for one in self.open if self._shown[one.name] > 1 and not self._quiet[one.name]
        ]
        return [one for one in shown if one.weight == "final"]

    def add(self, seen: Row | EvalResult) -> list[Signal]:
        """Judge a line of metrics.jsonl, a wait or an evaluation; returns what began or ended."""
        if isinstance(seen, EvalResult):
            return self._judged(self._first, seen)
        policy, own = "", dict[str, Any]()
        for key, figure in seen.items():
            if key.startswith("policies/"):
                _, policy, name = key.split("/", 2)
                own[name] = figure
        if not policy or policy not in self._policies:  # a line of the first names none
            return self._judged(self._first, seen, adds="games_without_batch" in seen)
        self._own |= own.keys()
        own |= {name: seen[name] for name in ("step", "samples") if name in seen}
        of_run = {key: each for key, each in seen.items() if not key.startswith("policies/")}
        of_run.pop("samples", None)
        return [*self._judged(self._first, of_run, adds=True), *self._judged(policy, own)]

    def _judged(self, policy: str, line: Row | EvalResult, *, adds: bool = False) -> list[Signal]:
        seen = self._policies[policy]
        evaluated = isinstance(line, EvalResult)
        update = not isinstance(line, EvalResult) and not adds and line["step"] > seen.step
        seen.add(line, adds=adds)
        changed = list[Signal]()
        for condition in [*self._conditions]:
            name = condition if policy == self._first else f"{policy}/{condition}"
            found = self._found(condition, policy)
            at = next((at for at, one in enumerate(self.signals) if one.goes_on(name)), None)
            if found is not None:
                self._quiet[name] = 0
                self._shown[name] = (0 if at is None else self._shown[name]) + (not evaluated)
                signal = Signal(
                    name=name,
                    step=seen.step if at is None else self.signals[at].step,
                    text=_one_line(found.text),
                    mend=_one_line(found.mend),
                    weight=found.weight,
                    change=found.change,
                )
                if at is None:
                    self.signals.append(signal)
                    changed.append(signal)
                else:
                    # A reader who comes later finds the newest figure.
                    self.signals[at] = signal
            elif at is not None and update:
                self._quiet[name] += 1
                if self._quiet[name] >= _QUIET:
                    self.signals[at] = replace(self.signals[at], until=seen.step)
                    changed.append(self.signals[at])
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


def ranked(signals: Iterable[Signal]) -> list[Signal]:
    """Signals that go on first, of these the ones of runs that learn nothing, then the newest."""
    return sorted(signals, key=lambda one: (one.until is not None, one.weight == "slow", -one.step))


def with_times(signals: Iterable[Signal]) -> list[tuple[Signal, str]]:
    """The last signal of each name, as ``ranked``, and in words when it held, all times of it.

    Example:
        >>> first = Signal(name="x", step=3, until=5, text="it stands", mend="push", weight="slow")
        >>> [when for _, when in with_times([first, replace(first, step=9, until=None)])]
        ['since update 9, and in updates 3 to 5']
    """
    found: dict[str, list[Signal]] = {}
    for one in ranked(signals):
        found.setdefault(one.name, []).append(one)
    return [(times[0], _when(times)) for times in found.values()]


def _when(times: Iterable[Signal]) -> str:
    in_order = sorted(times, key=lambda one: one.step)
    ended = [f"{one.step} to {one.until}" for one in in_order if one.until is not None]
    more = len(ended) - _TIMES
    spans = f"updates {', '.join(ended[-_TIMES:])}{f' and {more} times before' * (more > 0)}"
    if (last := in_order[-1]).until is not None:
        return f"{spans}, ended"
    return f"since update {last.step}{f', and in {spans}' if ended else ''}"


def verdict(signals: Iterable[Signal]) -> str:
    """A clause on what a run with these signals, as they stand at its end, has not done; or ''.

    Example:
        >>> verdict([])
        ''
    """
    still = [signal for signal in signals if signal.until is None]
    if barren := [signal.line for signal in still if signal.weight != "slow"]:
        return f"but nothing was learned: {'. '.join(barren[:2])}"
    return f"but {'. '.join(signal.line for signal in still[:2])}" if still else ""


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
    if isinstance(node, list) and head.isdigit() and int(head) < len(node):
        return not rest or _has(node[int(head)], rest)
    if is_dataclass(node) and hasattr(node, head):
        return not rest or _has(getattr(node, head), rest)
    return isinstance(node, dict)


def _one_line(text: str) -> str:
    """A text in one line, without the sign of a zero."""
    return re.sub(r"(?<![\w.-])-(?=0(?:\.0+)?(?![\w.]))", "", " ".join(text.split()))


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not math.isnan(found) else None
