"""Evaluation outside training: one process, the same engine, the same games, no Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rlforge.config.roots import read_run
from rlforge.config.schema import GamesConfig
from rlforge.errors import ConfigError, counted
from rlforge.local.policies import find_opponent, find_policy, seat_policies, seated_with
from rlforge.rollout.collector import Collector
from rlforge.rollout.evaluation import Pairing, opponent_of, plan_evaluation, summarise
from rlforge.rollout.lineup import can_play, eval_pairings
from rlforge.types import EvalResult, GameRecord, PolicyRef, value

log = logging.getLogger(__name__)

#: Seconds between reports of an evaluation.
SAY_EVERY_S = 10.0

Results = Sequence[EvalResult]


@value
class Measurement:
    """The evaluation of ``policy``. failures: a sentence for each result with failed games."""

    policy: PolicyRef
    results: tuple[EvalResult, ...]
    failures: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether at least one game per environment and opponent has finished."""
        return all(result.games for result in self.results)


async def evaluate_run(
    run_dir: Path,
    checkpoint: str,
    opponents: Sequence[str] | None,
    games: int | None,
    say: Callable[[str], None] = log.info,
    keep: Callable[[Results], None] = lambda results: None,
) -> Measurement:
    """Play ``checkpoint`` (``latest`` or a uid) of a run against ``opponents``, seats swapped.

    Args:
        run_dir: The run; CheckpointError for damaged versions.
        checkpoint: ConfigError for an unknown one.
        opponents: Names as in the config, or uids of the run; None takes its own.
        games: Per environment and opponent; None takes the configured number.
        keep: Called with the results so far, every ten seconds and on cancellation.
    """
    config = read_run(run_dir, GamesConfig)
    pairings = eval_pairings(config)
    if games is None:
        games = config.eval.final_games or config.eval.games
    elif games < 1:
        raise ConfigError(f"--games {games}: must be 1 or more")
    elif games % 2 and any(each.env.num_players == 2 for each in pairings):
        raise ConfigError(f"--games {games}: must be even, because seats are swapped")
    policy, step = find_policy(run_dir, checkpoint)
    if opponents:
        pairings = _against(pairings, [find_opponent(run_dir, name, config) for name in opponents])
    against = list(dict.fromkeys(rival for each in pairings for rival in each.opponents))
    most = max(each.env.num_players for each in pairings)
    # Where several policies share the seats, the others play as they were at the same time.
    seats = seated_with(run_dir, policy, config, most)
    planned = plan_evaluation(pairings, policy, games, step=step, seed=config.seed, seats=seats)
    specs = list(planned)
    met = list(dict.fromkeys([*seats, *against]))
    async with seat_policies(config, met, say) as answers:
        say(f"{policy.uid} plays {counted(len(specs), 'game')}")
        collector = Collector(config.collector, None, answers.for_game)
        progress = _Progress(policy, len(specs), say, keep)
        try:
            records = await collector.evaluate(specs, progress.add)
        except asyncio.CancelledError:
            # Else the results since the last report would be lost.
            progress.report()
            raise
    results = summarise(records, step, policy.uid)
    return Measurement(
        policy=policy,
        results=tuple(results),
        failures=tuple(_failure(result, records) for result in results if result.failed),
    )


class _Progress:
    def __init__(
        self,
        policy: PolicyRef,
        games: int,
        say: Callable[[str], None],
        keep: Callable[[Results], None],
    ) -> None:
        self._policy, self._games, self._say, self._keep = policy, games, say, keep
        self._records: list[GameRecord] = []
        self._said = time.monotonic()

    def add(self, record: GameRecord) -> None:
        """Count a game that has ended."""
        self._records.append(record)
        if len(self._records) < self._games and time.monotonic() - self._said >= SAY_EVERY_S:
            self.report()

    def report(self) -> None:
        self._said = time.monotonic()
        results = summarise(self._records, self._policy.version, self._policy.uid)
        won = (
            f"{r.win_rate:.1%} won of {r.games} against {r.opponent}" for r in results if r.games
        )
        self._say(f"{len(self._records)} of {self._games} games: {', '.join(won)}")
        self._keep(results)


def _against(pairings: Sequence[Pairing], rivals: Sequence[PolicyRef]) -> tuple[Pairing, ...]:
    met = [
        dataclasses.replace(
            each, opponents=tuple(one for one in dict.fromkeys(rivals) if can_play(one, each.env))
        )
        for each in pairings
    ]
    return tuple(each for each in met if each.opponents)


def _failure(result: EvalResult, records: Sequence[GameRecord]) -> str:
    met = result.env_id, result.opponent
    errors = [one.error for one in records if (one.spec.env_id, opponent_of(one.spec)) == met]
    *_, last = filter(None, errors)
    return (
        f"{result.failed} of {result.failed + result.games} games in {result.env_id} against "
        f"{result.opponent} failed; the last one: {last}"
    )
