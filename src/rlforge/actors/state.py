"""Tracker, pool and buffer: the actors that hold the state of a run and compute little."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.actors.process import freeze_gc
from rlforge.buffer import EpisodeBuffer, make_buffer
from rlforge.buffer.batches import write_batch
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import GrpoConfig, PolicyConfig, RunConfig
from rlforge.league.pool import ModelPool
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import Delivery
from rlforge.rollout.lineup import fixed_opponents, train_envs
from rlforge.rollout.schedule import GameScheduler, GamesUnderWay
from rlforge.system.hardware import versions
from rlforge.tracking.files import open_log
from rlforge.tracking.game_files import GameWriter
from rlforge.tracking.tracker import Tracker
from rlforge.tracking.window_tracker import WindowTracker
from rlforge.types import Checkpoint, GameRecord, GameSpec, TrainBatch


class TrackerActor(Tracker):
    """The tracker as an actor, which also writes the games of all collectors to disk."""

    def __init__(self, config: PolicyConfig, run_dir: str) -> None:
        open_log("tracker", run_dir)
        name, total = config.name, config.total_updates or 0
        self._writer = GameWriter(run_dir)
        super().__init__(Path(run_dir), config.tracker, name, total, about=_about(config))
        self._saves = isinstance(config, RunConfig) and config.collector.save_games
        freeze_gc()

    def add_games(self, records: Sequence[GameRecord]) -> None:
        if self._saves:
            self._writer.add(records)
        super().add_games(records)

    def save_games(self, records: Sequence[GameRecord]) -> None:
        """Write games that are not for training."""
        self._writer.add(records)

    def tick(self) -> None:
        self._writer.tick()
        super().tick()

    def close(self, summary: Mapping[str, Any]) -> list[str]:
        try:
            self._writer.flush()
        finally:
            lines = super().close(summary)
        return lines


class WindowTrackerActor(WindowTracker):
    """The tracker of continuous training as an actor."""

    def __init__(self, config: ContinuousConfig, run_dir: str) -> None:
        open_log("tracker", run_dir)
        name, total = config.name, config.continuous.windows or 0
        super().__init__(Path(run_dir), config.tracker, name, total, about=_about(config))
        freeze_gc()


def _about(config: PolicyConfig) -> dict[str, Any]:
    return {"seed": config.seed, "versions": versions(), "experiment": config.name}


class PoolActor:
    """The pool of policies, its ratings, and the schedule of games drawn from it."""

    def __init__(self, config: RunConfig, run_dir: str, part: int) -> None:
        open_log("pool", run_dir)
        group_size = getattr(config.algorithm, "group_size", 1)
        self._pool = ModelPool(config.pool, fixed_opponents(config), seed=config.seed)
        self._scheduler = GameScheduler(
            train_envs(config), self._pool, group_size=group_size, seed=config.seed, part=part
        )
        self._under_way = GamesUnderWay()
        freeze_gc()

    def add_checkpoint(self, checkpoint: Checkpoint) -> dict[str, Any]:
        self._pool.add_checkpoint(checkpoint)
        return self._pool.snapshot()

    def next_games(self, collector: str, count: int) -> list[GameSpec]:
        games = self._under_way.take_lost(count)
        games += self._scheduler.next_games(count - len(games))
        self._under_way.begin(collector, games)
        return games

    def push_outcomes(self, records: Sequence[GameRecord]) -> None:
        for record in records:
            self._under_way.end(record)
            self._pool.push_outcome(record)

    def lose_games(self, collector: str) -> None:
        """A collector was restarted: its running games are played again."""
        self._under_way.lose(collector)

    def needed(self) -> set[str]:
        """Uids of the versions that training games, under way or to come, may ask for."""
        group = self._scheduler.open_group
        return self._pool.needed([*self._under_way.specs, *([group] if group else [])])

    def snapshot(self) -> dict[str, Any]:
        return self._pool.snapshot()

    def games_with_past(self) -> tuple[int, float]:
        return self._pool.games_with_past()

    def use_mode(self, mode: str) -> None:
        self._pool.use_mode(mode)

    def state_dict(self) -> dict[str, Any]:
        return {
            "pool": self._pool.state_dict(),
            "schedule": self._scheduler.state_dict(),
            "under_way": self._under_way.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.load_state_dict(state["pool"])
        self._scheduler.load_state_dict(state["schedule"])
        self._under_way.load_state_dict(state.get("under_way", []))


class BufferActor:
    """Shaped steps between collectors and learner; collectors wait while it is full."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        open_log("buffer", run_dir)
        self._rewards = RewardPipeline(config.rewards)
        self._batch_size = config.learner.batch_size
        self._buffer = make_buffer(
            config.buffer,
            batch_size=config.learner.batch_size,
            batch_delay=config.learner.batch_delay_buffer,
            seed=config.seed,
            samples_per_game=_episodes_per_game(config),
            max_replaced=_max_replaced(config),
            save_every=config.learner.save_every,
        )
        self._dynamic = _max_replaced(config) > 0
        self._batches = Path(run_dir) / "batches"
        self._formats = config.buffer.save_batches_as if config.buffer.save_batches else []
        self._changed = asyncio.Condition()
        self._stopped = False
        self._reserved: dict[str, int] = {}
        self._deaths: Counter[str] = Counter()
        freeze_gc()

    async def reserve(self, collector: str, games: int) -> int:
        """Games that ``collector`` may start now; waits for room. 0: collection is over."""
        async with self._changed:
            deaths, granted = self._deaths[collector], 0
            while not (self._stopped or self._deaths[collector] > deaths) and not (
                granted := self._buffer.reserve(games)
            ):
                await self._changed.wait()
            self._reserved[collector] = self._reserved.get(collector, 0) + granted
            return granted

    async def release_all(self, collector: str) -> None:
        """Forget the games of a collector that died, and the calls of ``reserve`` it waits in."""
        async with self._changed:
            self._deaths[collector] += 1
            self._buffer.release(self._reserved.pop(collector, 0))
            self._changed.notify_all()

    async def deliver(self, collector: str, delivery: Delivery) -> None:
        """Shape and add the games to learn from; release the places of games that ended."""
        shaped = [
            (record, self._rewards.shape(record, learned))
            for record, learned in zip(delivery.records, delivery.learned, strict=True)
        ]
        # A failed game keeps its place for its replacement: only played games release theirs.
        ended = sum(record.error is None for record in delivery.records)
        async with self._changed:
            self._buffer.add([episode for _, episodes in shaped for episode in episodes])
            for record, episodes in shaped:
                # A failed game is replayed: its group waits for the replacement.
                if not episodes and record.error is None and record.spec.group_id is not None:
                    self._buffer.pass_over(record.spec.group_id, record.spec.group_size)
            ended = min(ended, self._reserved.get(collector, 0))
            self._reserved[collector] = self._reserved.get(collector, 0) - ended
            self._buffer.release(ended)
            self._changed.notify_all()

    async def next_batch(self, version: int) -> tuple[TrainBatch | None, bool]:
        """The batch for the update from ``version`` to ``version`` + 1; waits until it is full.

        (None, False) once the buffer is stopped. Two values: the caller awaits only the second, and
        hands the reference of the first to the learner.
        """
        async with self._changed:
            drawn = None
            while drawn is None:
                if self._stopped:
                    return None, False
                if self._buffer.ready():
                    drawn = self._buffer.draw(self._batch_size, version)
                    # Even if nothing was drawn, stale samples may have been dropped.
                    self._changed.notify_all()
                if drawn is None:
                    await self._changed.wait()
        batch = dataclasses.replace(drawn, steps=tuple(self._rewards.on_draw(drawn.steps)))
        for suffix in self._formats:
            path = self._batches / f"batch-{version + 1:06d}.{suffix}"
            await asyncio.to_thread(write_batch, path, batch)
        return batch, True

    async def set_version(self, version: int) -> None:
        """A new version is published: drop samples that are too old, make room for games."""
        async with self._changed:
            self._buffer.set_version(version)
            self._changed.notify_all()

    async def stop(self) -> None:
        """End all waits, of collectors and learner."""
        async with self._changed:
            self._stopped = True
            self._changed.notify_all()

    async def figures(self) -> dict[str, float]:
        """Samples stored, and episodes replaced for the last batch where that is switched on."""
        figures = {"buffer_size": float(self._buffer.size())}
        if isinstance(self._buffer, EpisodeBuffer) and self._dynamic:
            figures["episodes_replaced"] = float(self._buffer.replaced)
        return figures

    async def state_dict(self) -> dict[str, Any]:
        return {"buffer": self._buffer.state_dict(), "rewards": self._rewards.state_dict()}

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._buffer.load_state_dict(state["buffer"])
        self._rewards.load_state_dict(state["rewards"])


def _max_replaced(config: RunConfig) -> int:
    """Most episodes of groups without advantage that are replaced for one batch."""
    algorithm = config.algorithm
    if not (isinstance(algorithm, GrpoConfig) and algorithm.dynamic_sampling):
        return 0
    return round(algorithm.max_replaced * config.learner.batch_size)


def _episodes_per_game(config: RunConfig) -> float | None:
    """Trained seats of a game: all of them in self-play, the learner's own otherwise.

    None for the step buffer, which cannot know how many turns a game will have.
    """
    if config.buffer.kind != "episode":
        return None
    seats = max(env.num_players for env in config.env.train)
    return float(seats) if config.pool.mode == "mirror" else 1.0
