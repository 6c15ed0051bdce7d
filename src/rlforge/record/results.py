"""Values that a run measures: evaluations, alarms, the pool with ratings and ladder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rlforge.record.files import RunPaths, read_values
from rlforge.types import EvalResult, PolicyKind, PolicyRef, value


@value
class ExactResult:
    """How far a policy is from a Nash equilibrium of a game, by its whole tree.

    Attributes:
        step: Updates behind the policy.
        nash_conv: The sum of ``gains``.
        values: Mean rewards where all seats play the policy.
        gains: Gain of each seat by a best response.
        decisions: Number of the game's.
        illegal, illegal_most: Probability of answers that are no legal action alone, in the mean
            over decisions and at the worst. The policy is that of the legal ones.
        weights: Probabilities by uid, where a version is drawn before each game.

    Example:
        >>> ExactResult(
        ...     step=3, policy_uid="step-3", env_id="kuhn_poker", nash_conv=0.5, values=(-0.1, 0.1),
        ...     gains=(0.2, 0.3), decisions=12, illegal=0.0, illegal_most=0.0,
        ... ).nash_conv
        0.5
    """

    step: int
    policy_uid: str
    env_id: str
    nash_conv: float
    values: tuple[float, ...]
    gains: tuple[float, ...]
    decisions: int
    illegal: float
    illegal_most: float
    weights: Mapping[str, float] | None = None

    @property
    def measured(self) -> str:
        """The game, and whether it is the average of the weights that was measured in it."""
        return f"{self.env_id} (average)" if self.policy_uid.endswith("-average") else self.env_id


@value
class Alarm:
    """A signal of training that has changed for the worse.

    Attributes:
        step: The update, or the version that was measured, at which it was noticed.
        signal, about: The entry of ``sentinel.watch``, and which of several it is.
        since, good: The first update at which it showed, and the last before that.
        actions: Actions that were taken.

    Example:
        >>> Alarm(
        ...     step=60, signal="score", about="tictactoe against base", since=60, good=40,
        ...     observed=0.61, expected=0.9, actions=("rollback to step-40",),
        ... ).text
        'score in tictactoe against base: 0.61 instead of 0.9 since 60; rollback to step-40'
    """

    step: int
    signal: str
    about: str
    since: int
    good: int
    observed: float
    expected: float
    actions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        where = f" in {self.about}" if self.about else ""
        values = f"{self.observed:z.3g} instead of {self.expected:z.3g}"
        line = f"{self.signal.replace('_', ' ')}{where}: {values} since {self.since}"
        return "; ".join((line, *self.actions))


def read_evals(run: RunPaths) -> list[EvalResult]:
    return read_values(EvalResult, run.evals)


def by_pairing(evals: Iterable[EvalResult]) -> dict[tuple[str, str], list[EvalResult]]:
    """Evaluations by environment and opponent; orders are kept."""
    found: dict[tuple[str, str], list[EvalResult]] = {}
    for one in evals:
        found.setdefault((one.env_id, one.opponent), []).append(one)
    return found


#: learner: a version of this run. fixed: may always be drawn. guest: met in evaluations only.
Role = Literal["learner", "fixed", "guest"]


@value
class PoolEntry(PolicyRef):
    """A policy of the pool. rated_games: against others; at 0 a rating is inherited."""

    kind: PolicyKind = "checkpoint"
    role: Role = "learner"
    mu: float
    sigma: float
    active: bool
    games: int
    rated_games: int


@value
class LadderRow:
    """A policy of the run's ladder.

    uids: names of equal weights. elo: Bradley-Terry strength in Elo points above the start of
    training, with its 95 % interval. games: against the others.
    """

    uids: tuple[str, ...]
    elo: float
    low: float
    high: float
    games: int

    @property
    def name(self) -> str:
        return " = ".join(self.uids)


@value
class MatchRow:
    """Number of games between two policies."""

    first: str
    second: str
    games: int


@value
class PoolSnapshot:
    """The pool at one moment, as pool.json holds it.

    Attributes:
        matches: ``{uid: {uid: games}}``, symmetric, with games against itself.
        results: ``{uid: {uid: [wins, draws, losses]}}``, each pair both ways.
        ladder: Strongest first.
        unrated_out_of_range: Games too unlikely to be rated.
        exploration: Counts of action n-grams, below ``envs`` and ``opponents``.
    """

    mode: str
    current: str | None
    entries: tuple[PoolEntry, ...]
    matches: Mapping[str, Mapping[str, int]]
    results: Mapping[str, Mapping[str, list[int]]] = dataclasses.field(default_factory=dict)
    ladder: tuple[LadderRow, ...] = ()
    unrated_out_of_range: int = 0
    exploration: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def coverage(self) -> dict[str, float]:
        """Share of n-grams that are distinct, per environment."""
        envs = self.exploration.get("envs", {})
        return {env: counts["coverage"] for env, counts in envs.items()}

    def pairs(self) -> tuple[MatchRow, ...]:
        """Every pair that met, once, most games first."""
        pairs: dict[frozenset[str], MatchRow] = {}
        for first, row in self.matches.items():
            for second, games in row.items():
                # The table is symmetric.
                pairs.setdefault(
                    frozenset((first, second)), MatchRow(first=first, second=second, games=games)
                )
        return tuple(sorted(pairs.values(), key=lambda row: -row.games))


@value
class Ratings:
    """A line of ratings.jsonl: mean and deviation of active policies after an update."""

    step: int
    time_s: float
    current: str | None
    coverage: Mapping[str, float]
    ratings: Mapping[str, list[float]]


@value
class ApiUsage:
    """Usage of the model ``uid`` behind an API.

    Attributes:
        games: Games that began with it.
        requests: Answered or given up, with all their tries.
        failed: Requests without a usable answer.
        prompt_tokens, answer_tokens: Counts of the server.
        seconds: Waited for answers, in sum.
        cost: Dollars.
        unpriced: Answers whose price is not known.

    Example:
        >>> one = ApiUsage(uid="openai:m", requests=1, seconds=0.5)
        >>> one.plus(one).requests, one.plus(one).latency_s
        (2, 0.5)
    """

    uid: str
    games: int = 0
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    unpriced: int = 0

    @property
    def latency_s(self) -> float:
        return self.seconds / max(self.requests, 1)

    def plus(self, other: ApiUsage, sign: int = 1) -> ApiUsage:
        """The sum; sign -1: what came since ``other``."""
        numbers = [field.name for field in dataclasses.fields(self) if field.name != "uid"]
        sums = {name: getattr(self, name) + sign * getattr(other, name) for name in numbers}
        return ApiUsage(uid=self.uid, **sums)
