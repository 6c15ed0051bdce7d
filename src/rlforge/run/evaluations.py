"""When the versions of a run are evaluated, and what comes of it.

    start, end             ``eval.final_games`` games of version 0 and of the last version
    every N updates        ``eval.games`` games of the newest saved version
    ``eval.continuous``    games of the newest version in all evaluation slots, until the next one

Each version is evaluated at most once, under its own number, and ``evals.jsonl`` is the record.
Where the last updates made no version, the last one may have been evaluated before with fewer games
than at the end: then it is evaluated again.
Those of the first two kinds are owed from when they begin: a resumed run makes them anew, unless
their results are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from rlforge.config.schema import RunConfig
from rlforge.errors import counted
from rlforge.record.files import RunPaths
from rlforge.record.results import read_evals
from rlforge.rollout.evaluation import OpenEvaluation, plan_evaluation, summarise
from rlforge.rollout.lineup import eval_pairings
from rlforge.run.collection import Collection
from rlforge.run.observers import Observer
from rlforge.run.policies import Policies
from rlforge.system.values import from_json, to_json
from rlforge.types import Checkpoint, EvalResult, GameSpec

log = logging.getLogger(__name__)


class Evaluations:
    """The evaluations of one run, played by its collectors while it trains.

    The versions that ``policies`` have at the seats are evaluated; the newest one names the
    evaluation.

    Args:
        collection: Plays and counts the games.
        observers: Measure a version that the learner holds, and hear of each result.
        published: Returns once the engines have what was saved.
        note: Shows a line to the user.
        part: Part of the run in the ids of its games (``GameSpec``).
    """

    def __init__(
        self,
        config: RunConfig,
        collectors: Sequence[str],
        collection: Collection,
        policies: Policies,
        observers: Observer,
        published: Callable[[], Awaitable[None]],
        note: Callable[[str], None],
        part: int = 0,
    ) -> None:
        self._config, self._collectors, self._collection = config, collectors, collection
        self._policies, self._observers = policies, observers
        self._published, self._note, self._part = published, note, part
        self._pairings = eval_pairings(config)
        self._results: dict[tuple[str, str], EvalResult] = {}
        #: Uids of the versions in each evaluation under way, by what names it.
        self._needed: dict[str, set[str]] = {}
        #: What a resumed run needs of each evaluation that is owed, by what names it.
        self._owed: dict[str, dict[str, Any]] = {}
        self._begun: set[int] = set()
        #: Uids of the versions whose results are recorded.
        self._measured: set[str] = set()
        self._planned: asyncio.Task[None] | None = None
        self._slots: list[asyncio.Task[None]] = []
        # With ``eval.continuous``: evaluations that are not over, that of the newest version last.
        self._open: list[OpenEvaluation] = []
        self._more = asyncio.Event()
        self._closed = False

    def objective(self) -> float:
        """The mean win rate of the last evaluations, without that against ``base``."""
        rates = [result.win_rate for result in self._results.values() if result.opponent != "base"]
        rates = rates or [result.win_rate for result in self._results.values()]
        return sum(rates) / len(rates) if rates else 0.0

    @property
    def needed(self) -> set[str]:
        """Uids of the versions whose evaluation is under way: engines may load them again.

        With ``learner.result=best`` also of those among which the best is.
        """
        measured = self._measured if self._config.learner.result == "best" else ()
        return set().union(*self._needed.values(), measured)

    # ---------------------------------------------------------------- in the course of the run

    def begin(self, group: asyncio.TaskGroup, run_dir: Path) -> None:
        """Take up the record of the run; play as tasks of ``group`` from now on."""
        self._group, owed = group, list(self._owed.values())
        self._owed.clear()
        for result in read_evals(RunPaths(root=run_dir)):
            self._begun.add(result.step)
            self._measured.add(result.policy_uid)
            self._results[result.env_id, result.opponent] = result
        for one in owed:
            self._plan(from_json(list[Checkpoint], one["seated"]), edge=one["edge"], again=True)
        if self._config.eval.continuous:
            self._slots = [
                group.create_task(self._fill_slot(name))
                for name in self._collectors
                for _ in range(self._config.collector.num_eval_workers)
            ]

    async def started(self, version: int) -> None:
        """Evaluate the version that the run begins, or goes on, with."""
        if version:
            await self.updated(version)
            self.follow()
        else:
            self.evaluate(edge=True)
            await self._settled()

    async def updated(self, version: int) -> None:
        """After an update: evaluate its version where ``eval.every`` says so."""
        settings, last = self._config.eval, version == self._config.learner.total_updates
        due = settings.every and version % settings.every == 0
        # Begun here, the last version would get ``eval.games`` in place of ``eval.final_games``.
        if due and not last and not settings.continuous:
            self.evaluate(edge=False)
        await self._settled()

    async def _settled(self) -> None:
        if self._collection.in_order:
            await self.finish()

    def cancel(self) -> None:
        """End those under way, which stay owed."""
        for task in self._tasks():
            task.cancel()

    async def end(self) -> None:
        """Evaluate the last version after all others."""
        self.close()
        await self.finish()
        self._plan(self._policies.seated(), edge=True, last=True)
        await self.finish()

    def state_dict(self) -> dict[str, Any]:
        """The evaluations that a resumed run owes, as plain data."""
        return dict(self._owed)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Owe, before ``begin``, what ``state_dict`` says."""
        self._owed = dict(state)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._slots, *([self._planned] if self._planned else [])]

    async def finish(self) -> None:
        """Wait until all evaluations are recorded; with ``eval.continuous`` after ``close``."""
        await asyncio.gather(*self._tasks())

    # ---------------------------------------------------------------- a number of games at once

    def _begun_now(self, seated: Sequence[Checkpoint]) -> Checkpoint | None:
        checkpoint = _newest(seated)
        if checkpoint.version in self._begun:
            return None
        self._begun.add(checkpoint.version)
        self._needed[checkpoint.uid] = {each.uid for each in seated}
        return checkpoint

    def evaluate(self, *, edge: bool) -> None:
        """Evaluate the newest version in the background, once, after any earlier one.

        ``edge``: at the start or the end of training, with ``final_games``.
        """
        self._plan(self._policies.seated(), edge=edge)

    def _plan(
        self, seated: Sequence[Checkpoint], *, edge: bool, again: bool = False, last: bool = False
    ) -> None:
        """Plan an evaluation.

        Args:
            seated: Versions at the seats.
            edge: At the start or the end of training.
            again: It was begun before, by an earlier part of the run.
            last: The run ends with these versions.
        """
        settings, before = self._config.eval, self._planned
        games = settings.final_games if edge and settings.final_games else settings.games
        specs = list(self._games(_newest(seated), seated, games))
        if last and (version := _newest(seated).version) in self._begun:
            played = [one for one in self._results.values() if one.step == version]
            if sum(one.games + one.failed for one in played) < len(specs):
                self._begun.remove(version)
                # Observers measure what is planned, not what is evaluated all the time.
                again = not settings.continuous
                specs = [replace(spec, game_id=f"{spec.game_id}-final") for spec in specs]
        if (checkpoint := self._begun_now(seated)) is None:
            return
        if gone := [one.uid for one in seated if one.path and not Path(one.path).exists()]:
            self._needed.pop(checkpoint.uid)
            self._note(f"{checkpoint.uid} is not evaluated: {gone[0]} is no longer on disk")
            return
        self._owed[checkpoint.uid] = {"seated": list(map(to_json, seated)), "edge": edge}

        # Begun here, calls of observers reach the learner before an update changes this version.
        # One that is made again has been measured.
        measuring = None if again else self._observers.evaluating(checkpoint)
        measured = None if measuring is None else self._group.create_task(measuring)

        async def evaluate() -> None:
            if measured is not None:
                await measured
            if before is not None:
                await before
            await self._published()
            number = len(self._collectors)
            shares = await asyncio.gather(
                *(
                    self._collection.evaluate(name, specs[index::number])
                    for index, name in enumerate(self._collectors)
                )
            )
            # In the order of the plan, the record does not depend on which collector was faster.
            order = {spec.game_id: place for place, spec in enumerate(specs)}
            records = sorted(chain(*shares), key=lambda record: order[record.spec.game_id])
            await self._collection.evaluated(records)
            self._record(checkpoint.uid, summarise(records, checkpoint.version, checkpoint.uid))

        self._planned = self._group.create_task(evaluate())

    def _record(self, uid: str, results: Sequence[EvalResult]) -> None:
        self._needed.pop(uid, None)
        self._owed.pop(uid, None)
        self._measured.add(uid)
        for result in results:
            self._results[result.env_id, result.opponent] = result
            won = f"{100 * result.win_rate:.1f} % won of {counted(result.games, 'game')}"
            log.info("%s against %s in %s: %s", uid, result.opponent, result.env_id, won)
            self._observers.evaluated(result)

    # ---------------------------------------------------------------- all the time

    def follow(self) -> None:
        """With ``eval.continuous``: evaluate the version that the engines have now.

        Older ones are recorded once the games that were begun are over.
        """
        if not self._config.eval.continuous or self._closed:
            return
        self._supersede()
        seated = self._policies.seated()
        if (checkpoint := self._begun_now(seated)) is not None:
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
        # The planned evaluation has all slots, and comes first in the record.
        if self._planned is not None:
            await self._planned
        while True:
            dealt = ((one, spec) for one in self._open if (spec := one.next_game()) is not None)
            if (game := next(dealt, None)) is not None:
                evaluation, spec = game
                played = await self._collection.evaluate(collector, [spec])
                await self._collection.evaluated(played)
                evaluation.add(next(iter(played), None))
                self._record_what_is_over()
            elif self._closed:
                return
            else:
                self._more.clear()
                await self._more.wait()


def _newest(seated: Sequence[Checkpoint]) -> Checkpoint:
    return max(seated, key=lambda one: one.version)
