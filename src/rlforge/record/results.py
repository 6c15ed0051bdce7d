"""What a run measures, as it is recorded: evaluations, the pool with its ratings and its ladder.

Each has one type, which the league and the evaluations make, the tracker writes, and all that shows
runs reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from rlforge.record.files import RunPaths, read_jsonl
from rlforge.system.values import Codec
from rlforge.types import EvalResult, ExactResult, PolicyKind, PolicyRef, value

#: Lines of evals.jsonl and exact.jsonl.
EVALS, EXACT = Codec(EvalResult, form="json"), Codec(ExactResult, form="json")


def read_evals(run: RunPaths) -> list[EvalResult]:
    """The evaluations of a run, oldest first."""
    return list(map(EVALS.decode, read_jsonl(run.evals)))


def by_pairing(evals: Iterable[EvalResult]) -> dict[tuple[str, str], list[EvalResult]]:
    """The evaluations of each opponent in each environment, by both; orders are kept."""
    found: dict[tuple[str, str], list[EvalResult]] = {}
    for one in evals:
        found.setdefault((one.env_id, one.opponent), []).append(one)
    return found


#: learner: a version of this run. fixed: may always be drawn. guest: met in evaluations only.
Role = Literal["learner", "fixed", "guest"]


@value
class PoolEntry(PolicyRef):
    """A policy of the pool: TrueSkill mean and deviation, games, whether it is sampled.

    rated_games: those against other policies, which change a rating; at 0 it is only inherited.
    """

    kind: PolicyKind = "checkpoint"
    role: Role = "learner"
    mu: float
    sigma: float
    active: bool
    games: int
    rated_games: int


@value
class LadderRow:
    """One policy of the run's ladder.

    uids: its names, those of equal weights together. elo: Bradley-Terry strength in Elo points
    above the start of training; low, high: the 95 % interval. games: against the others.
    """

    uids: tuple[str, ...]
    elo: float
    low: float
    high: float
    games: int

    @property
    def name(self) -> str:
        """All its names, as they are shown."""
        return " = ".join(self.uids)


@value
class MatchRow:
    """The number of games between two policies."""

    first: str
    second: str
    games: int


@value
class PoolSnapshot:
    """The pool at one moment, as pool.json holds it.

    mode: by which opponents are drawn. current: uid of the newest policy; None: there is none yet.
    matches: ``{uid: {uid: games}}``, symmetric; the diagonal counts games in which a policy met
    itself. results: ``{uid: {uid: [wins, draws, losses]}}``, each pair both ways. ladder: strongest
    first. unrated_out_of_range: games too unlikely to be rated. exploration: counts of n-grams of
    actions per environment (``envs``), and per opponent of those (``opponents``).
    """

    mode: str
    current: str | None
    entries: tuple[PoolEntry, ...]
    matches: Mapping[str, Any]
    results: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ladder: tuple[LadderRow, ...] = ()
    unrated_out_of_range: int = 0
    exploration: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def coverage(self) -> dict[str, float]:
        """Per environment the share of n-grams that are distinct, 0..1."""
        envs = self.exploration.get("envs", {})
        return {env: counts["coverage"] for env, counts in envs.items()}

    def pairs(self) -> tuple[MatchRow, ...]:
        """Every pair that met, once, most games first."""
        pairs: dict[frozenset[str], MatchRow] = {}
        for first, row in self.matches.items():
            for second, games in row.items():
                pairs.setdefault(
                    frozenset((first, second)), MatchRow(first=first, second=second, games=games)
                )
        return tuple(sorted(pairs.values(), key=lambda row: -row.games))


POOLS = Codec(PoolSnapshot, form="json")


@value
class Ratings:
    """A line of ratings.jsonl: those of the pool's active policies after an update.

    ratings: mean and deviation by uid. current: uid of the newest policy.
    """

    step: int
    time_s: float
    current: str | None
    coverage: Mapping[str, Any]
    ratings: Mapping[str, Any]


RATINGS = Codec(Ratings, form="json")
