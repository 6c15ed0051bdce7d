"""Signals: conditions, judged from the records of a run, under which it learns little or nothing.

    metrics.jsonl ─▶ Seen ─▶ Condition.check ─▶ Finding ─▶ Signal: begins, goes on, ends
    evals.jsonl   ─┤
    waits         ─┘

A condition is a pure function of recorded figures, so that the tracker of a run, the report and
``rlforge why`` find the same. ``rlforge.record.conditions`` has rlforge's own, and
``rlforge.record.judge`` judges a run by them. A wait is a line of what was played since the last
update, where it brings no batch: the tracker alone sees it.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rlforge.config.per_policy import policy_names
from rlforge.config.plugins import SIGNALS
from rlforge.config.schema import GamesConfig
from rlforge.errors import ConfigError
from rlforge.record.game_files import GameIndex
from rlforge.types import EvalResult, Turn, value

#: Updates over which means are taken.
SPAN = 10
#: Times of one signal that are listed.
_TIMES = 4

Row = Mapping[str, Any]
#: ``slow``: the run learns, but less than it could. ``barren``: it learns nothing meanwhile.
#: ``final``: nor can that change while it goes on.
Weight = Literal["slow", "barren", "final"]
_HEAVIER: Sequence[Weight] = ("slow", "barren", "final")
#: Games that show a condition: those for which a function holds; ``any`` while it holds; ``alike``:
#: of a group whose rewards are the same; ``lost``: evaluations against whom fewer are won.
Shown = Callable[[GameIndex], bool] | Literal["any", "alike", "lost"]


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
        explains: Names of conditions that this one brings about: its mend is theirs.
        games: Games that ``rlforge why`` shows; None: those with ``turns``.
        turns: Whether a turn that is learned from shows it.

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
    explains: tuple[str, ...] = ()
    games: Shown | None = None
    turns: Callable[[Turn], bool] | None = None

    def __post_init__(self) -> None:
        if _number(self.threshold) is None or not callable(self.check):
            raise ConfigError("a Condition has a number as threshold, and a function as check")
        for what in ("figures", "explains"):
            names: object = getattr(self, what)  # a plug-in is not type-checked
            if not isinstance(names, tuple) or not all(isinstance(one, str) for one in names):
                raise ConfigError(f'a Condition has names in a tuple as {what}: ("moved",)')


def condition_of(signal: Signal) -> Condition | None:
    """The condition of a signal; None for that of a package that is not installed here."""
    try:
        found: Condition = SIGNALS.find(signal.condition)
    except ConfigError:
        return None
    return found


def causes(signals: Iterable[Signal]) -> dict[str, list[str]]:
    """Names of open signals that bring about another one, by the name of that one.

    Example:
        >>> alike = {"text": "", "mend": "", "weight": "final"}
        >>> causes(Signal(name=name, step=1, **alike) for name in ("turn_limit", "equal_rewards"))
        {'equal_rewards': ['turn_limit']}
    """
    still, found = [one for one in signals if one.until is None], dict[str, list[str]]()
    for cause in still:
        condition = condition_of(cause)
        explained = () if condition is None else condition.explains
        for one in still:
            # What begins later is no cause, and a policy's figures explain no other policy.
            before = cause.step <= one.step and cause.policy in ("", one.policy)
            if before and one.condition in explained:
                found.setdefault(one.name, []).append(cause.name)
    return found


def _weights(signals: Sequence[Signal], of: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Weights of open signals by name: a cause has that of the heaviest that it brings about."""
    weights = {one.name: _HEAVIER.index(one.weight) for one in signals if one.until is None}
    for _ in of:  # a chain has at most as many links
        for name, brought in of.items():
            for cause in brought:
                weights[cause] = max(weights[cause], weights[name])
    return weights


def ranked(signals: Iterable[Signal]) -> list[Signal]:
    """Signals that go on first, of these causes before what they bring about, then the heaviest."""
    signals = [*signals]
    of = causes(signals)
    weights = _weights(signals, of)

    def rank(one: Signal) -> tuple[bool, bool, int, int]:
        return one.until is not None, one.name in of, -weights.get(one.name, 0), -one.step

    return sorted(signals, key=rank)


def with_times(signals: Iterable[Signal]) -> list[tuple[Signal, str]]:
    """The last signal of each name, as ``ranked``, and in words when it held, all times of it.

    Example:
        >>> from dataclasses import replace
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
    still = ranked(signal for signal in signals if signal.until is None)
    weights = _weights(still, of := causes(still))
    still = [signal for signal in still if signal.name not in of]
    if barren := [signal.line for signal in still if weights[signal.name]]:
        return f"but nothing was learned: {'. '.join(barren[:2])}"
    return f"but {'. '.join(signal.line for signal in still[:2])}" if still else ""


def _number(found: Any) -> float | None:
    return float(found) if isinstance(found, int | float) and not math.isnan(found) else None
