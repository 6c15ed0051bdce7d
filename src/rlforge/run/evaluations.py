"""When the versions of a run are evaluated, and what comes of it.

    start, end             ``eval.final_games`` games of version 0 and of the last version
    every N updates        ``eval.games`` games of the newest saved version
    ``eval.continuous``    games of the newest version in all evaluation slots, until the next one

Each version is evaluated at most once, under its own number. ``evals.jsonl`` is the record: a
resumed run evaluates the version that it continues from unless its results are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from rlforge.config.schema import RunConfig
from rlforge.record.files import RunPaths
from rlforge.record.results import read_evals
from rlforge.rollout.evaluation import OpenEvaluation, plan_evaluation, summarise
from rlforge.rollout.lineup import eval_pairings
from rlforge.run.actors.cluster import RunActors
from rlforge.run.collection import Collection
from rlforge.run.observers import Observers
from rlforge.run.policies import Policies
from rlforge.types import Checkpoint, EvalResult, GameRecord, GameSpec

log = logging.getLogger(__name__)


Play = Callable[[str, Sequence[GameSpec]], Awaitable[list[GameRecord]]]
"""Lets a collector, by name, play evaluation games; the records of those that were admitted."""


class Evaluations:
    """The evaluations of one run, played by its collectors while it trains."""

    def __init__(
        self,
        config: RunConfig,
        collectors: Sequence[str],
        play: Play,
        played: Callable[[Sequence[GameRecord]], Awaitable[object]],
        record: Callable[[EvalResult], object],
        measure: Callable[[Checkpoint], Coroutine[Any, Any, object]],
        part: int = 0,
    ) -> None:
        """collectors: their names. played: called with finished games, in the order of their specs.
        record: called with each result. measure: called with a version that the learner holds; its
        evaluation waits for that. part: of the games (``GameSpec``).
        """
        self._part = part
        self._config, self._collectors, self._play, self._tell = config, collectors, play, record
        self._played = played
        self._measure = measure
        self._pairings = eval_pairings(config)
        self._results: dict[tuple[str, str], EvalResult] = {}
        #: Uids of the versions in each evaluation under way, by what names it.
        self._needed: dict[str, set[str]] = {}
        self._begun: set[int] = set()
        self._planned: asyncio.Task[None] | None = None
        self._slots: list[asyncio.Task[None]] = []
        # With ``eval.continuous``: the newest version's, after older ones that are not over.
        self._open: list[OpenEvaluation] = []
        self._more = asyncio.Event()
        self._closed = False

    def begin(self, group: asyncio.TaskGroup, run_dir: Path) -> None:
        """Take up the record of the run; play as tasks of ``group`` from now on."""
        self._group = group
        for result in read_evals(RunPaths(root=run_dir)):
            self._begun.add(result.step)
            self._results[result.env_id, result.opponent] = result
        if self._config.eval.continuous:
            self._slots = [
                group.create_task(self._fill_slot(name))
                for name in self._collectors
                for _ in range(self._config.collector.num_eval_workers)
            ]

    def objective(self) -> float:
        """The mean win rate of the last evaluations, without that against ``base``."""
        rates = [result.win_rate for result in self._results.values() if result.opponent != "base"]
        rates = rates or [result.win_rate for result in self._results.values()]
        return sum(rates) / len(rates) if rates else 0.0

    def _is_first(self, checkpoint: Checkpoint, seated: Sequence[Checkpoint]) -> bool:
        """Whether the version has no evaluation yet; from now on it has one under way."""
        if checkpoint.version in self._begun:
            return False
        self._begun.add(checkpoint.version)
        self._needed[checkpoint.uid] = {each.uid for each in seated}
        return True

    @property
    def needed(self) -> set[str]:
        """Uids of the versions whose evaluation is under way: engines may load them again."""
        return set().union(*self._needed.values())

    def _record(self, uid: str, results: Sequence[EvalResult]) -> None:
        self._needed.pop(uid, None)
        for result in results:
            self._results[result.env_id, result.opponent] = result
            log.info(
                "%s against %s in %s: %.1f %% won of %d games",
                uid,
                result.opponent,
                result.env_id,
                100 * result.win_rate,
                result.games,
            )
            self._tell(result)

    # ---------------------------------------------------------------- a number of games at once

    def evaluate(
        self, seated: Sequence[Checkpoint], published: Callable[[], Awaitable[None]], *, edge: bool
    ) -> None:
        """Evaluate a version in the background, unless it was, after any earlier evaluation.

        seated: what takes each seat: the version, or versions of several policies, of which the
        newest names the evaluation. published: returns once the engines have them. edge: at the
        start or the end of training, with ``final_games``.
        """
        checkpoint = max(seated, key=lambda one: one.version)
        if not self._is_first(checkpoint, seated):
            return
        settings, before = self._config.eval, self._planned
        games = settings.final_games if edge and settings.final_games else settings.games
        specs = list(self._games(checkpoint, seated, games))

        # The learner makes its calls in order: one of an observer comes before its next update.
        measured = self._group.create_task(self._measure(checkpoint))

        async def evaluate() -> None:
            await measured
            if before is not None:
                await before
            await published()
            number = len(self._collectors)
            shares = await asyncio.gather(
                *(
                    self._play(name, specs[index::number])
                    for index, name in enumerate(self._collectors)
                )
            )
            order = {spec.game_id: place for place, spec in enumerate(specs)}
            records = sorted(chain(*shares), key=lambda record: order[record.spec.game_id])
            await self._played(records)
            self._record(checkpoint.uid, summarise(records, checkpoint.version, checkpoint.uid))

        self._planned = self._group.create_task(evaluate())

    # ---------------------------------------------------------------- all the time

    def follow(self, seated: Sequence[Checkpoint]) -> None:
        """With ``eval.continuous``: the engines have this version, which is evaluated from now on.

        Older ones are recorded once the games that were begun are over. seated: as in ``evaluate``.
        """
        if not self._config.eval.continuous or self._closed:
            return
        self._supersede()
        checkpoint = max(seated, key=lambda one: one.version)
        if self._is_first(checkpoint, seated):
            games = self._games(checkpoint, seated, None)
            self._open.append(OpenEvaluation(games, checkpoint.policy(), step=checkpoint.version))
            self._more.set()

    def _games(
        self, checkpoint: Checkpoint, seated: Sequence[Checkpoint], games: int | None
    ) -> Iterator[GameSpec]:
        return plan_evaluation(
            self._pairings,
            checkpoint.policy(),
            games,
            step=checkpoint.version,
            seed=self._config.seed,
            max_games=self._config.eval.max_games_per_checkpoint,
            seats=[each.policy() for each in seated],
            part=self._part,
        )

    def close(self) -> None:
        """Follow no further version: the last one has an evaluation of its own."""
        self._closed = True
        self._supersede()
        self._more.set()

    async def finish(self) -> None:
        """After ``close``: wait until all evaluations are recorded."""
        await asyncio.gather(*self._slots, *([self._planned] if self._planned else []))

    def cancel(self) -> None:
        """Give up what is under way: a resumed run evaluates its version again."""
        for task in (*self._slots, *([self._planned] if self._planned else [])):
            task.cancel()

    def _supersede(self) -> None:
        for evaluation in self._open:
            evaluation.close()
        self._record_what_is_over()

    def _record_what_is_over(self) -> None:
        for evaluation in [each for each in self._open if each.over]:
            self._open.remove(evaluation)
            self._record(evaluation.policy.uid, evaluation.results())

    async def _fill_slot(self, collector: str) -> None:
        """Keep one game under way in ``collector``, until there are no more."""
        if self._planned is not None:  # its games have all slots, and come first in the record
            await self._planned
        while True:
            dealt = ((one, spec) for one in self._open if (spec := one.next_game()) is not None)
            if (game := next(dealt, None)) is not None:
                evaluation, spec = game
                played = await self._play(collector, [spec])
                await self._played(played)
                evaluation.add(next(iter(played), None))
                self._record_what_is_over()
            elif self._closed:
                return
            else:
                self._more.clear()
                await self._more.wait()


class Measuring:
    """The evaluations of a run at its start, every ``eval.every`` updates, and at its end."""

    def __init__(
        self,
        config: RunConfig,
        actors: RunActors,
        collection: Collection,
        policies: Policies,
        observers: Observers,
        part: int,
    ) -> None:
        self._config, self._policies, self._collection = config, policies, collection
        collectors = list(actors.replicas("collector"))
        #: What is played and recorded; the controller begins and closes it.
        self.evaluations = Evaluations(
            config,
            collectors,
            collection.evaluate,
            collection.evaluated,
            observers.evaluated,
            observers.evaluating,
            part=part,
        )

    async def started(self, version: int, published: Callable[[], Awaitable[None]]) -> None:
        """Evaluate what the run begins with. version: 0, or that of the state it goes on from."""
        if version == 0:
            self.evaluations.evaluate(self._policies.seated(), published, edge=True)
        else:
            await self.updated(version, published)
            self.evaluations.follow(self._policies.seated())
        await self._settled()

    async def updated(self, version: int, published: Callable[[], Awaitable[None]]) -> None:
        """After an update: evaluate its version where ``eval.every`` says so.

        The last version is evaluated at the end.
        """
        settings, last = self._config.eval, version == self._config.learner.total_updates
        due = settings.every and version % settings.every == 0
        if due and not last and not settings.continuous:
            self.evaluations.evaluate(self._policies.seated(), published, edge=False)
        await self._settled()

    async def _settled(self) -> None:
        if self._collection.in_order:
            await self.evaluations.finish()

    def published(self, version: int) -> None:
        """The engines have a version; 0 has the evaluation of the start."""
        if version:
            self.evaluations.follow(self._policies.seated())

    async def end(self, published: Callable[[], Awaitable[None]], *, interrupted: bool) -> None:
        """Evaluate the last version after all others; nothing more where it is interrupted."""
        if interrupted:
            self.evaluations.cancel()
            return
        self.evaluations.close()
        await self.evaluations.finish()
        self.evaluations.evaluate(self._policies.seated(), published, edge=True)
        await self.evaluations.finish()
