"""Training on games with ``determinism=strict``: the same run again, to the last bit.

    draw a batch ─┬─▶ the learner makes update N ─┬─▶ games recorded in their order; version N
                  └─▶ collectors play the games ──┘   published, evaluated; digests, state written
                      that the buffer admits

What the processes compute follows from what they are given: games from their specs and weights
(``rlforge.engines.invariant``), updates from their batches. So what is left is the order in which
results meet, and it is fixed here: games are handed out in rounds, and everything else happens
between two rounds. A process that dies is restarted and computes the same again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from rlforge.config.schema import RunConfig
from rlforge.errors import RunError
from rlforge.rollout.collector import Delivery
from rlforge.tracking.digests import digest_of, digest_of_games, moved
from rlforge.training.controller import GameController, Trained
from rlforge.training.lifecycle import RunContext
from rlforge.types import GameRecord, GameSpec

_ROUND = "round"
"""Whom the buffer and the pool hand games out to."""


class StrictController(GameController):
    """The loops of ``GameController`` as one, in a fixed order."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        super().__init__(context)
        #: Games recorded since the last line of digests.
        self._recorded: list[GameRecord] = []
        #: Number of the newest file of games when the state was saved.
        self._game_files = 0

    def stop(self) -> None:
        self._interrupted = True

    def _loops(self) -> Mapping[str, Callable[[str], Awaitable[None]]]:
        return {"engine": self._watch}

    async def _learn(self) -> None:
        learner = self._config.learner
        await self._evaluations.finish()
        # An interrupted run ends where an uninterrupted one would have published, too.
        while self._version < learner.total_updates and not (
            self._interrupted and self._version % learner.save_every == 0
        ):
            policy = self._policies[self._turns[self._version % len(self._turns)]]
            if await self._begins_anew(policy):
                await self._begin_anew(policy)
            else:
                await self._update(policy)
            last = self._version == learner.total_updates
            if self._version % learner.save_every == 0 or last:
                await self._save(policy)
                await self._published()
            self._evaluate_if_due()
            await self._evaluations.finish()
            await self._write_digests()
            if self._version % learner.state_every == 0:
                await self._save_state()

    async def _update(self, policy: Trained) -> bool:
        while (batch := await self._draw(policy, wait=False)) is None:
            specs = await self._hand_out()
            if not specs:
                raise RunError(
                    f"determinism=strict: update {self._version + 1} waits for samples, and the "
                    "buffer admits no game; raise buffer.max_size"
                )
            await self._record(await self._play_round(specs))
        more = self._version + 1 < self._config.learner.total_updates
        specs = await self._hand_out() if more else []
        playing = self._group.create_task(self._play_round(specs))
        await self._learn_from(batch, policy)
        await self._record(await playing)
        return True

    async def _hand_out(self) -> list[GameSpec]:
        """The games of the next round: what the buffer admits now."""
        most = self._config.collector.most_games
        counts = await self._actors.buffer.admit.remote(_ROUND, most)
        games: list[GameSpec] = await self._actors.pool.next_games.remote(_ROUND, counts)
        return games

    async def _play_round(self, specs: Sequence[GameSpec]) -> list[Delivery]:
        """Let the collectors play, each a share; what came of the games, in their order."""
        names = self._actors.replicas("collector")
        shares = await asyncio.gather(
            *(
                self._call(name, "play", specs[place :: len(names)])
                for place, name in enumerate(names)
            )
        )
        return [shares[n % len(names)][n // len(names)] for n in range(len(specs))]

    async def _record(self, played: Sequence[Delivery]) -> None:
        records = [record for delivery in played for record in delivery.records]
        learned = [players for delivery in played for players in delivery.learned]
        self._recorded += records
        await self._actors.pool.push_outcomes.remote(records)
        await self._actors.tracker.add_games.remote(records)
        await self._actors.buffer.deliver.remote(_ROUND, records, learned)

    async def _play(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        records: list[GameRecord] = await self._call(collector, "evaluate", specs, True)
        return records

    async def _finish(self) -> None:
        await super()._finish()
        if self._recorded:  # the games of the last evaluation
            self._chain.append(self._version, {"final": True, **self._games_digest()})

    async def _played(self, records: Sequence[GameRecord]) -> None:
        self._recorded += records
        if self._config.collector.save_games:
            await self._actors.tracker.save_games.remote(records)
        await super()._played(records)

    async def _digests(self) -> dict[str, Any]:
        pool, buffer = await asyncio.gather(
            self._actors.pool.state_dict.remote(), self._actors.buffer.state_dict.remote()
        )
        return {
            **await super()._digests(),
            **self._games_digest(),
            "pool": digest_of(moved(pool, str(self._run_dir), ".")),
            "buffer": digest_of(buffer),
        }

    def _games_digest(self) -> dict[str, Any]:
        """Of the games recorded since the last line, training and evaluation."""
        games, self._recorded = self._recorded, []
        return {"played": len(games), "games": digest_of_games(games)}

    async def _state(self) -> dict[str, Any]:
        files = await self._actors.tracker.close_game_file.remote()
        return {**await super()._state(), "game_files": files}

    async def begin(self, *, resume: bool) -> None:
        await super().begin(resume=resume)
        if resume:  # games that were played after the state are played again
            await self._actors.tracker.rewind_games.remote(self._game_files)

    async def _restore(self, state: dict[str, Any], version: int) -> None:
        self._game_files = state["game_files"]
        await super()._restore(state, version)
