"""The collector as an actor."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

from rlforge.config.per_policy import of_policy, policy_names
from rlforge.config.schema import RunConfig
from rlforge.games.registry import check_env
from rlforge.league.budget import api_players
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.rollout.collector import Collector
from rlforge.rollout.legal import LegalTokens
from rlforge.rollout.lineup import other_models, train_envs
from rlforge.rollout.policies import SeatPolicies
from rlforge.run.actors.bundle import Bundle
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.host import find_actor
from rlforge.run.actors.process import begin, executed
from rlforge.system.garbage import freeze_gc
from rlforge.system.timeouts import Clock
from rlforge.types import GameRecord, GameSpec, PolicyRef


class CollectorActor:
    """Collector whose games come from the pool and go to buffer, pool and tracker."""

    def __init__(self, config: RunConfig, name: str, folder: RunFolder) -> None:
        begin(name, folder.open())
        self._name = name
        # Handles in the arguments may be invalid once Ray restarts this actor; names stay valid.
        self._pool: Any = find_actor("pool")
        self._buffer: Any = find_actor("buffer")
        self._tracker: Any = find_actor("tracker")
        engines = [find_actor(f"engine-{i}") for i in range(config.engine.num_engines)]
        clock = self._clock = Clock()
        # A restarted collector must not read the answers meant for its predecessor.
        client = self._client = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self._deliveries = self._times_lost = 0
        self._engine = RemoteEngine(
            engines,
            client,
            timeout_s=config.engine.request_timeout_s,
            time_limit=clock.timeout,
            elastic=config.hardware.elastic,
        )
        # Loaded before transformers, libraries of games import less (``statistics_hidden``).
        for env in train_envs(config):
            check_env(env)
        tokenizer = load_tokenizer(config.model)
        over_legal = any(
            of_policy(config, name).algorithm.over_legal for name in policy_names(config)
        )
        self._answers = SeatPolicies(
            config,
            tokenizer,
            self._engine,
            stop_token_ids(config.model, tokenizer),
            other_models(config),
        )
        self._saves = config.collector.save_games
        self._collector = Collector(
            config.collector,
            self,
            self._answers.for_game,
            time_limit=clock.timeout,
            legal_tokens=LegalTokens(config.model, tokenizer) if over_legal else None,
            admit=self._admit,
        )
        self._training: asyncio.Task[None] | None = None
        freeze_gc()

    def process(self) -> int:
        """Id of this process, a new one after a restart."""
        return os.getpid()

    async def train(self) -> None:
        """Play training games to the end of the run."""
        # A caller that lost only the connection calls again. The first call is cancelled, and its
        # games, which end without a result, are played again.
        if self._training is not None:
            self._training.cancel()
            await asyncio.wait([self._training])
        self._times_lost = await self._buffer.times_lost.remote(self._name)
        await self._pool.lose_games.remote(self._name)
        self._training = asyncio.create_task(self._collector.train())
        await self._training

    def use_version(self, policy: PolicyRef) -> None:
        self._answers.use_version(policy)

    async def engines_sleep(self) -> None:
        """Pause the time limits of requests and games."""
        self._clock.stop()

    async def engines_wake(self) -> None:
        self._clock.go_on()

    async def play(self, specs: Sequence[GameSpec]) -> list[list[GameRecord]]:
        """Play training games that the caller hands out and records."""
        return await self._collector.play(specs)

    async def evaluate(self, specs: Sequence[GameSpec], whole: bool = False) -> list[GameRecord]:
        """Play evaluation games, whose outcomes the caller records, and save them.

        ``whole``: the caller saves them, too, and gets all texts.
        """
        records = await self._collector.evaluate(specs)
        self._report_api_usage()
        if whole:
            return records
        if self._saves:
            await self._tracker.save_games.remote(Bundle(records))
        return [_outline(record) for record in records]

    async def _admit(self, spec: GameSpec) -> bool:
        if not api_players(spec):
            return True
        # Only the pool knows what API players have spent in the games of all collectors.
        return bool(await self._pool.admit.remote(spec, self._answers.take_api_usage()))

    def _report_api_usage(self) -> None:
        if usage := self._answers.take_api_usage():
            self._pool.spend.remote(usage)

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        granted: dict[str, int] = await self._buffer.reserve.remote(
            self._name, wanted, self._times_lost
        )
        return await self._pool.next_games.remote(self._name, granted) if granted else None

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        games = Bundle(records)
        outlines = Bundle([_outline(record) for record in records])
        self._deliveries += 1
        sent = (self._client, self._deliveries)
        usage = self._answers.take_api_usage()
        # The tracker comes before the buffer, whose state, and batches, refer to its games. A game
        # of which the pool did not hear would be played again.
        await asyncio.gather(
            executed(self._pool.push_outcomes, outlines, sent, usage),
            executed(self._tracker.add_games, games if self._saves else outlines, sent),
        )
        await executed(self._buffer.deliver, self._name, games, sent)


def _outline(record: GameRecord) -> GameRecord:
    """The record without texts and tokens: what ratings and statistics need."""
    return dataclasses.replace(
        record,
        turns=tuple(
            dataclasses.replace(
                turn,
                observation="",
                legal_tokens=(),
                completion=dataclasses.replace(turn.completion, text="", prompt_token_ids=()),
            )
            for turn in record.turns
        ),
    )
