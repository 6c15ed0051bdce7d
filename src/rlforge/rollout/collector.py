"""Plays many games concurrently; every game is a coroutine.

next_games ──▶ play_game × N ──▶ deliver          (training, until next_games returns None)
evaluate(specs) ──▶ play_game × M ──▶ records     (evaluation, at the same time)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from rlforge.config.games import CollectorConfig
from rlforge.errors import RunError
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.episode import Answer, Legal, play_game
from rlforge.rollout.schedule import derive_seed, retry
from rlforge.samples import Episode
from rlforge.system.timeouts import TimeLimit
from rlforge.types import GameRecord, GameSpec

# Every delivery is a remote call, so finished games wait for others.
#: Longest wait of a finished game for its delivery.
FLUSH_S = 0.05

MakeAnswer = Callable[[GameSpec], Answer]


class Ports(Protocol):
    """The source of training games and the receiver of their records."""

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        """Between 1 and ``wanted`` games, once the buffer admits them; None: stop."""

    async def deliver(self, records: Sequence[GameRecord]) -> None:
        """Receive finished games."""


async def always(spec: GameSpec) -> bool:
    """Admit every game."""
    return True


#: Failed games in a row that end the run.
MAX_FAILURES = 32


class Collector:
    """Plays training and evaluation games, up to the configured numbers at once.

    Example: one evaluation game, with an ``Answer`` that always checks:
        >>> from rlforge.types import Completion, EnvSpec, Form, PolicyRef
        >>> from rlforge.rollout.evaluation import Pairing, plan_evaluation
        >>> async def check(seat, view, seed):
        ...     return Completion(text=view.legal_actions[0])
        >>> env = EnvSpec(id="kuhn_poker", source="openspiel", form=Form(extraction="raw"))
        >>> me, rival = (PolicyRef(uid=uid, kind="checkpoint") for uid in ("step-1", "base"))
        >>> pairing = Pairing(env=env, opponents=(rival,))
        >>> specs = plan_evaluation([pairing], me, games=2, step=1, seed=0)
        >>> collector = Collector(CollectorConfig(), None, lambda spec: check)
        >>> [len(record.turns) for record in asyncio.run(collector.evaluate(specs))]
        [2, 2]
    """

    def __init__(
        self,
        config: CollectorConfig,
        ports: Ports | None,
        make_answer: MakeAnswer,
        time_limit: TimeLimit = asyncio.timeout,
        legal_tokens: Legal | None = None,
        max_failures: int = MAX_FAILURES,
        admit: Callable[[GameSpec], Awaitable[bool]] = always,
    ) -> None:
        """Make a collector.

        Args:
            ports: None for a collector that only evaluates.
            max_failures: Games that fail in a row, or tries of one, that end the run.
            admit: Asked before an evaluation game begins.
        """
        self._admit = admit
        self._config, self._max_failures = config, max_failures
        self._time_limit = time_limit
        self._legal_tokens = legal_tokens
        self._ports = ports
        self._make_answer = make_answer
        self._eval_slots = asyncio.Semaphore(config.num_eval_workers)
        self._finished: list[GameRecord] = []
        self._delivery: asyncio.Future[None] | None = None
        self._failures_in_a_row = 0
        self._slot_freed = asyncio.Event()
        self._under_way = 0

    async def train(self) -> None:
        """Play training games until ``next_games`` returns None; then finish those in progress.

        Raises RunError when ``max_failures`` games in a row failed.
        """
        ports, most = self._ports, self._config.most_games
        assert ports is not None
        # A cancelled call before this one may have left a count.
        self._under_way = 0
        try:
            async with asyncio.TaskGroup() as group:
                flusher = group.create_task(self._flush_forever())
                await self._until_below(most)
                while (specs := await ports.next_games(most - self._under_way)) is not None:
                    for spec in specs:
                        self._under_way += 1
                        group.create_task(self._play_until_it_counts(spec))
                    await self._until_below(most)
                await self._until_below(1)
                flusher.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            # Finished games count, whatever ended the others.
            await self._flush()

    async def play(self, specs: Sequence[GameSpec]) -> list[list[GameRecord]]:
        """Play ``specs`` at the same time; of each, in their order, all games until one counted.

        Raises RunError when one failed ``max_failures`` times, or did not end by its rules.
        """
        return await asyncio.gather(*map(self._play_by_rules, specs))

    async def _play_by_rules(self, spec: GameSpec) -> list[GameRecord]:
        records = list[GameRecord]()
        while not records or records[-1].error is not None:
            record = await self._play_once(spec, self._legal_tokens)
            # An end by time, or by an engine that died, would not be the same in another run.
            by_chance = (record.error or "").startswith(("TimeoutError", "Engine"))
            if record.end_reason == "timeout" or by_chance:
                raise RunError(
                    f"determinism=strict: {spec.env_id} {spec.game_id} did not end by its rules: "
                    f"{record.error or 'it was cut by env.timeout_s'}; raise env.timeout_s and "
                    "engine.request_timeout_s, and go on with --resume"
                )
            records.append(record)
            if len(records) > self._max_failures:
                raise RunError(
                    f"{spec.env_id} {spec.game_id} failed {self._max_failures} times: "
                    f"{record.error}"
                )
            spec = retry(spec)
        return records

    async def evaluate(
        self,
        specs: Iterable[GameSpec],
        on_record: Callable[[GameRecord], None] = lambda record: None,
    ) -> list[GameRecord]:
        """Play those of ``specs`` that are admitted; the records are in their order.

        on_record: called with each game when it ends.
        """

        async def one(spec: GameSpec) -> GameRecord | None:
            async with self._eval_slots:
                if not await self._admit(spec):
                    return None
                record = await self._play_once(spec, None)
                # A failed game gets one more try; a second failure is reported.
                if record.error is not None:
                    record = await self._play_once(spec, None)
            on_record(record)
            return record

        played = await asyncio.gather(*(one(spec) for spec in specs))
        return [record for record in played if record is not None]

    async def _play_until_it_counts(self, spec: GameSpec) -> None:
        while True:
            record = await self._play_once(spec, self._legal_tokens)
            self._finished.append(record)
            if record.error is None:
                self._failures_in_a_row = 0
                self._under_way -= 1
                self._slot_freed.set()
                return
            # The failed game keeps its slot for the one that replaces it.
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= self._max_failures:
                raise RunError(
                    f"{self._failures_in_a_row} games failed in a row; "
                    f"the last one, {spec.env_id} {spec.game_id}: "
                    f"{record.error}"
                )
            spec = retry(spec)

    async def _play_once(self, spec: GameSpec, legal_tokens: Legal | None) -> GameRecord:
        answer = self._make_answer(spec)
        return await play_game(spec, answer, self._time_limit, legal_tokens)

    async def _until_below(self, games: int) -> None:
        """Wait until fewer ``games`` are under way."""
        while self._under_way >= games:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush()

    async def _flush(self) -> None:
        """Deliver what has finished, whole even if the caller is cancelled meanwhile."""
        assert self._ports is not None
        if self._delivery is not None:
            await asyncio.shield(self._delivery)
        if self._finished:
            records, self._finished = self._finished, []
            self._delivery = asyncio.ensure_future(self._ports.deliver(records))
            await asyncio.shield(self._delivery)
            self._delivery = None


def learned_episodes(
    record: GameRecord, rewards: RewardPipeline, config: CollectorConfig
) -> list[Episode]:
    """The episodes of a game that are learned from; none of one that failed."""
    spec, learned = record.spec, record.spec.trained
    # A player that forfeits a game teaches its opponent nothing.
    if config.filter_opponent_invalid and record.invalid_by is not None:
        learned = tuple(player for player in learned if player == record.invalid_by)
    # Rewards are shaped before a seat is drawn, because baselines of roles are means over every
    # seat of the policy.
    episodes = rewards.shape(record, learned)
    if config.learned_seats == "all" or not episodes:
        return episodes
    # The game's seed draws the seat, so that games of a group have the same one.
    seat = random.Random(derive_seed(spec.seed, "learned seat")).choice(spec.trained)
    return [episode for episode in episodes if episode[0].player_id == seat]
