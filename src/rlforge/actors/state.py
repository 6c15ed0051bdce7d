"""Tracker, pool and buffer: the actors that hold the state of a run and compute little."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlforge.actors.process import freeze_gc
from rlforge.buffer import make_buffer
from rlforge.buffer.base import write_batch
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.league.pool import ModelPool
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import Delivery
from rlforge.rollout.lineup import fixed_opponents, train_envs
from rlforge.rollout.schedule import GameScheduler, GamesUnderWay
from rlforge.system.hardware import versions
from rlforge.tracking.files import open_log
from rlforge.tracking.tracker import Tracker
from rlforge.tracking.window_tracker import WindowTracker
from rlforge.types import Checkpoint, GameRecord, GameSpec, TrainBatch


class TrackerActor(Tracker):
    """The tracker as an actor; its callers do not wait for it."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        open_log("tracker", run_dir)
        name, total = config.name, config.total_updates
        super().__init__(Path(run_dir), config.tracker, name, total, about=_about(config))
        freeze_gc()


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
        games = self._scheduler.next_games(count)
        self._under_way.begin(collector, games)
        return games

    def push_outcomes(self, records: Sequence[GameRecord]) -> None:
        for record in records:
            self._under_way.end(record)
            self._pool.push_outcome(record)

    def forget_games(self, collector: str) -> None:
        """Forget the running games of a collector that was restarted."""
        self._under_way.forget(collector)

    def needed(self) -> set[str]:
        """Uids of the versions that training games, under way or to come, may ask for."""
        group = self._scheduler.open_group
        return self._pool.needed([*self._under_way.specs, *([group] if group else [])])

    def snapshot(self) -> dict[str, Any]:
        return self._pool.snapshot()

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self._pool.state_dict(), "schedule": self._scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.load_state_dict(state["pool"])
        self._scheduler.load_state_dict(state["schedule"])


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
        )
        self._batches = Path(run_dir) / "batches" if config.buffer.save_batches else None
        self._changed = asyncio.Condition()
        self._stopped = False
        self._reserved: dict[str, int] = {}
        freeze_gc()

    async def reserve(self, collector: str, games: int) -> int:
        """Games that ``collector`` may start now; waits for room. 0: collection is over."""
        async with self._changed:
            granted = 0
            while not self._stopped and not (granted := self._buffer.reserve(games)):
                await self._changed.wait()
            self._reserved[collector] = self._reserved.get(collector, 0) + granted
            return granted

    async def release_all(self, collector: str) -> None:
        """Forget the games of a collector that died."""
        async with self._changed:
            self._buffer.release(self._reserved.pop(collector, 0))
            self._changed.notify_all()

    async def deliver(self, collector: str, delivery: Delivery) -> None:
        """Shape and add the games to learn from; release the places of games that ended."""
        episodes = [
            episode
            for record, learnable in zip(delivery.records, delivery.learnable, strict=True)
            if learnable
            for episode in self._rewards.shape(record)
        ]
        # A failed game keeps its place for its replacement: only played games release theirs.
        ended = sum(record.error is None for record in delivery.records)
        async with self._changed:
            self._buffer.add(episodes)
            for record, learnable in zip(delivery.records, delivery.learnable, strict=True):
                # A filtered game leaves its group incomplete; a failed one is replayed.
                if not learnable and record.error is None and record.spec.group_id is not None:
                    self._buffer.drop_group(record.spec.group_id)
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
        batch = TrainBatch(
            steps=tuple(self._rewards.on_draw(drawn.steps)),
            whole_episodes=drawn.whole_episodes,
            min_version=drawn.min_version,
            max_version=drawn.max_version,
            dropped_stale=drawn.dropped_stale,
        )
        if self._batches is not None:
            self._batches.mkdir(exist_ok=True)
            await asyncio.to_thread(
                write_batch, self._batches / f"batch-{version + 1:06d}.parquet", batch
            )
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

    async def size(self) -> int:
        return self._buffer.size()

    async def state_dict(self) -> dict[str, Any]:
        return {"buffer": self._buffer.state_dict(), "rewards": self._rewards.state_dict()}

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._buffer.load_state_dict(state["buffer"])
        self._rewards.load_state_dict(state["rewards"])


def _episodes_per_game(config: RunConfig) -> float | None:
    """Trained seats of a game: all of them in self-play, the learner's own otherwise.

    None for the step buffer, which cannot know how many turns a game will have.
    """
    if config.buffer.kind != "episode":
        return None
    seats = max(env.num_players for env in config.env.train)
    return float(seats) if config.pool.mode == "mirror" else 1.0
