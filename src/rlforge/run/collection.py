"""Who plays when: games all the time, or in rounds that are the same again to the last bit.

    Flow      collectors play by themselves whenever the buffer has room; the learner waits for a
              batch; evaluations are played beside all that
    Rounds    ``determinism=strict``: each round, all games that the buffer admits, is played beside
              one update and recorded in its order; version, evaluation and digests come between
              two rounds

Games follow from their specs and weights (``rlforge.engines.invariant``), updates from their
batches. ``Rounds`` fixes the order in which their results meet.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from rlforge.config.schema import RunConfig
from rlforge.errors import RunError
from rlforge.record.digests import digest_of, digest_of_games, moved
from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.cluster import RunActors
from rlforge.run.policies import Trained
from rlforge.types import GameRecord, GameSpec

_ROUND = "round"
"""The collector to which buffer and pool hand out the games of a round."""


class Collection(ABC):
    """How the games of a run are played, and in which order its steps meet."""

    #: Whether each step ends before the next begins.
    in_order = False

    def __init__(self, config: RunConfig, actors: RunActors, calls: ActorCalls) -> None:
        self._config, self._actors, self._calls = config, actors, calls

    def loops(self) -> Mapping[str, Awaitable[None]]:
        """Loops that run beside the learner, by name."""
        return {}

    @abstractmethod
    async def batch(self, policy: Trained, update: int) -> tuple[Any, str] | None:
        """Reference and digest of the batch of an update; None once the buffer was stopped."""

    async def _drawn(self, policy: Trained, update: int, *, wait: bool) -> tuple[Any, str] | None:
        """The next batch of a policy; None also where there is none yet, without ``wait``."""
        # Only Ray's reference comes here: the batch itself goes from the buffer to the learner.
        next_batch = self._actors.buffer.next_batch.options(num_returns=2)
        batch, digest = next_batch.remote(policy.updated, update, policy.name, wait)
        found: str | None = await digest
        return None if found is None else (batch, found)

    def playing(self, *, more: bool) -> contextlib.AbstractAsyncContextManager[None]:
        """Play games while the learner makes an update; ``more``: another one follows."""
        return contextlib.nullcontext()

    @abstractmethod
    async def evaluate(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        """Play evaluation games; returns the records of those that were admitted."""

    @abstractmethod
    async def evaluated(self, records: Sequence[GameRecord]) -> None:
        """Count finished evaluation games."""

    @abstractmethod
    def stop(self) -> None:
        """End the run after the work in hand."""

    def may_end(self, update: int) -> bool:
        """Whether an interrupted run may end after an update."""
        return True

    async def digests(self) -> dict[str, Any]:
        """The collection's part of the digests of an update."""
        return {}

    def unrecorded(self) -> dict[str, Any] | None:
        """Digests of what was played since the last line, where there is something."""
        return None

    @abstractmethod
    async def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from ``state``; None: from the start of the run."""


class Flow(Collection):
    """Collectors play whenever the buffer has room."""

    def __init__(self, config: RunConfig, actors: RunActors, calls: ActorCalls) -> None:
        super().__init__(config, actors, calls)
        #: Process ids of the collectors.
        self._processes: dict[str, int] = {}

    def loops(self) -> Mapping[str, Awaitable[None]]:
        return {name: self._collect(name) for name in self._actors.replicas("collector")}

    async def _collect(self, collector: str) -> None:
        """Let a collector play whenever it is there."""
        while True:
            await self._calls.back(collector)
            actor = self._actors.named[collector]
            try:
                process = await actor.process.remote()
                if self._processes.setdefault(collector, process) != process:
                    self._processes[collector] = process
                    self._calls.count_restart(collector)
                await actor.train.remote()
                return
            except ray.exceptions.ActorUnavailableError as error:
                self._calls.lost(collector, error)
                # Without this the games of the lost collector would keep room from others.
                await self._actors.buffer.release_all.remote(collector)

    async def batch(self, policy: Trained, update: int) -> tuple[Any, str] | None:
        return await self._drawn(policy, update, wait=True)

    async def evaluate(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        records: list[GameRecord] | None = None
        if not self._config.hardware.elastic:
            records = await self._calls.call(collector, "evaluate", specs)
        # An elastic run may never get this collector back: another one plays its games.
        while records is None:
            present = list(self._actors.present("collector"))
            if not present:
                await asyncio.sleep(1.0)
                continue
            name = collector if collector in present else present[0]
            records = await self._calls.ask(name, "evaluate", specs)
        return records

    async def evaluated(self, records: Sequence[GameRecord]) -> None:
        await self._actors.pool.push_outcomes.remote(records)

    def stop(self) -> None:
        self._actors.buffer.stop.remote()

    async def restore(self, state: Mapping[str, Any] | None) -> None:
        """Games in progress do not survive a restart."""


class Rounds(Collection):
    """The games of a run with ``determinism=strict``."""

    in_order = True

    def __init__(
        self, config: RunConfig, actors: RunActors, calls: ActorCalls, run_dir: Path
    ) -> None:
        super().__init__(config, actors, calls)
        self._run_dir = run_dir
        #: Games recorded since the last line of digests.
        self._recorded: list[GameRecord] = []

    async def batch(self, policy: Trained, update: int) -> tuple[Any, str] | None:
        while (drawn := await self._drawn(policy, update, wait=False)) is None:
            specs = await self._hand_out()
            if not specs:
                raise RunError(
                    f"determinism=strict: update {update} waits for samples, and the "
                    "buffer admits no game; raise buffer.max_size"
                )
            await self._record(await self._play(specs))
        return drawn

    @contextlib.asynccontextmanager
    async def playing(self, *, more: bool) -> AsyncIterator[None]:
        specs = await self._hand_out() if more else []
        round_ = asyncio.ensure_future(self._play(specs))
        try:
            yield
        except BaseException:
            # A failed update ends the run: the games of its round must not go on meanwhile.
            round_.cancel()
            raise
        await self._record(await round_)

    async def _hand_out(self) -> list[GameSpec]:
        """The games of the next round: what the buffer admits now."""
        most = self._config.collector.most_games
        counts = await self._actors.buffer.admit.remote(_ROUND, most)
        games: list[GameSpec] = await self._actors.pool.next_games.remote(_ROUND, counts)
        return games

    async def _play(self, specs: Sequence[GameSpec]) -> list[list[GameRecord]]:
        """Let the collectors play, each a share; what came of the games, in their order."""
        names = self._actors.replicas("collector")
        shares = await asyncio.gather(
            *(
                self._calls.call(name, "play", specs[place :: len(names)])
                for place, name in enumerate(names)
            )
        )
        return [shares[n % len(names)][n // len(names)] for n in range(len(specs))]

    async def _record(self, played: Sequence[Sequence[GameRecord]]) -> None:
        records = [record for games in played for record in games]
        self._recorded += records
        await self._actors.pool.push_outcomes.remote(records)
        await self._actors.tracker.add_games.remote(records)
        await self._actors.buffer.deliver.remote(_ROUND, records)

    async def evaluate(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        records: list[GameRecord] = await self._calls.call(collector, "evaluate", specs, True)
        return records

    async def evaluated(self, records: Sequence[GameRecord]) -> None:
        self._recorded += records
        if self._config.collector.save_games:
            await self._actors.tracker.save_games.remote(records)
        await self._actors.pool.push_outcomes.remote(records)

    def stop(self) -> None:
        """The round in hand is played to its end."""

    def may_end(self, update: int) -> bool:
        # A run that ends publishes its version. Where an uninterrupted run would not have done so,
        # the games of the resumed run would be others.
        return update % self._config.learner.save_every == 0

    async def digests(self) -> dict[str, Any]:
        pool, buffer = await asyncio.gather(
            self._actors.pool.state_dict.remote(), self._actors.buffer.state_dict.remote()
        )
        return {
            **self._digest_of_games(),
            "pool": digest_of(moved(pool, str(self._run_dir), ".")),
            "buffer": digest_of(buffer),
        }

    def unrecorded(self) -> dict[str, Any] | None:
        # No update follows the last evaluation: its games would be in no line of digests.
        return self._digest_of_games() if self._recorded else None

    def _digest_of_games(self) -> dict[str, Any]:
        games, self._recorded = self._recorded, []
        return {"played": len(games), "games": digest_of_games(games)}

    async def restore(self, state: Mapping[str, Any] | None) -> None:
        # Games after the saved state are played again, and would be recorded twice.
        files = 0 if state is None else state["game_files"]
        if files is not None:
            await self._actors.tracker.rewind_games.remote(files)
