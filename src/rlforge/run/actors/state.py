"""Tracker, pool and buffer: the actors that hold the state of a run and compute little."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rlforge.buffer import BUFFERS, EpisodeBuffer, Shaped
from rlforge.buffer.admission import Flow
from rlforge.buffer.batches import Decode, write_batch
from rlforge.config.per_policy import entry_of, of_policy, policy_names, turns
from rlforge.config.schema import PolicyConfig, RunConfig
from rlforge.league.budget import ApiBudget, api_players
from rlforge.league.matchmaking import Matchmaking
from rlforge.league.pool import ModelPool
from rlforge.models.load import load_decoder
from rlforge.record.digests import digest_of_batch
from rlforge.record.files import RunPaths
from rlforge.record.game_files import GameWriter
from rlforge.record.judge import Judge
from rlforge.record.results import ApiUsage, PoolSnapshot
from rlforge.record.tracker import Tracker
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.rollout.collector import learned_episodes
from rlforge.rollout.expected import buffer_settings
from rlforge.rollout.lineup import fixed_opponents, train_envs
from rlforge.rollout.schedule import GameScheduler, GamesUnderWay
from rlforge.run.actors.bundle import Received, Sent
from rlforge.run.actors.process import begin
from rlforge.samples import TrainBatch
from rlforge.system.checkpoint import is_step_name
from rlforge.system.garbage import freeze_gc
from rlforge.system.hardware import versions
from rlforge.types import Checkpoint, EvalResult, GameRecord, GameSpec


class TrackerActor(Tracker):
    """The tracker as an actor, which also writes the games of all collectors to disk."""

    def __init__(self, config: PolicyConfig, run_dir: str) -> None:
        begin("tracker", run_dir)
        name, total = config.name, config.total_updates or 0
        self._writer = GameWriter(run_dir)
        games = config.games
        judge = partial(Judge, games) if games is not None else None
        super().__init__(
            Path(run_dir), config.tracker, name, total, judge=judge, about=about(config)
        )
        self._saves = config.games is not None and config.games.collector.save_games
        self._received = Received()
        freeze_gc()

    def add_games(self, records: Sequence[GameRecord], sent: Sent | None = None) -> None:
        if not self._received.is_new(sent):
            return
        if self._saves:
            self._writer.add(records)
        super().add_games(records)

    def add_eval(self, result: EvalResult) -> None:
        # A line that is kept by a resumed run refers to these games.
        self._writer.flush()
        super().add_eval(result)

    def save_games(self, records: Sequence[GameRecord]) -> None:
        self._writer.add(records)

    def close_game_file(self) -> int:
        """Write the games so far; returns the number of their newest file."""
        self._writer.flush()
        return self._writer.written

    def rewind_games(self, number: int) -> None:
        self._writer.rewind(number)

    def tick(self) -> None:
        self._writer.tick()
        super().tick()

    def close(self, summary: Mapping[str, Any]) -> list[str]:
        try:
            self._writer.flush()
        finally:
            # Sinks are closed even where the disk is full.
            lines = super().close(summary)
        return lines


def about(config: PolicyConfig) -> dict[str, Any]:
    """Facts that a tracker writes down about a run."""
    return {"seed": config.seed, "versions": versions(), "experiment": config.name}


class PoolActor(ModelPool):
    """The pool as an actor, with the schedules of games drawn from it."""

    def __init__(self, config: RunConfig, run_dir: str, part: int) -> None:
        begin("pool", run_dir)
        names = policy_names(config)
        own = {name: of_policy(config, name) for name in names}
        entries = {name: entry_of(config, name) for name in names}
        matchmaking = {
            name: Matchmaking(
                config=own[name].pool,
                fixed=fixed_opponents(own[name]),
                meets=entry.meets(name),
                seats=None if entry.seats is None else tuple(entry.seats),
            )
            for name, entry in entries.items()
        }
        self._api = ApiBudget(config.pool.api, RunPaths(root=Path(run_dir)).api)
        super().__init__(config.pool, (), seed=config.seed, policies=matchmaking, budget=self._api)
        self._schedules = {
            name: GameScheduler(
                train_envs(config),
                self,
                group_size=getattr(own[name].algorithm, "group_size", 1),
                seed=config.seed,
                part=part,
                name=name,
            )
            for name in names
        }
        self._under_way = GamesUnderWay(part)
        self._received = Received()
        freeze_gc()

    def publish(self, checkpoint: Checkpoint) -> PoolSnapshot:
        self.add_checkpoint(checkpoint)
        return self.snapshot()

    def next_games(self, collector: str, counts: Mapping[str, int]) -> list[GameSpec]:
        """Games for ``collector``; ``counts`` says how many, by the policy that learns."""
        games: list[GameSpec] = []
        for name, count in counts.items():
            # Lost games first: long ones are lost most often, and with new games in their place the
            # training data would lack them.
            again = self._under_way.take_lost(count, name)
            for number in range(count):
                fresh = number >= len(again)
                [spec] = self._schedules[name].next_games(1) if fresh else [again[number]]
                # The next draw depends on what is left of the budget.
                self._api.begin(spec)
                games.append(spec)
        self._under_way.begin(collector, games)
        if any(map(api_players, games)):
            self._api.save()
        return games

    def admit(self, spec: GameSpec, usage: Sequence[ApiUsage]) -> bool:
        """Whether an evaluation game with API players may begin; ``usage`` as in ``spend``."""
        self._api.spend(usage)
        admitted = self._api.admit(spec)
        self._api.save()
        return admitted

    def spend(self, usage: Sequence[ApiUsage]) -> None:
        """Add the usage of API players in the games of a collector since its last report."""
        self._api.spend(usage)
        # The usage is saved at once: a run resumed from an older state must not spend it again.
        self._api.save()

    def api_usage(self) -> tuple[tuple[ApiUsage, ...], dict[str, float], str | None]:
        """Usage so far of each API player and of all, and why none may play any more."""
        figures = {
            "games": self._api.games,
            "cost": self._api.cost,
            "declined_games": self._api.declined,
        }
        return self._api.players, figures, self._api.closed

    def push_outcomes(
        self,
        records: Sequence[GameRecord],
        sent: Sent | None = None,
        usage: Sequence[ApiUsage] = (),
    ) -> None:
        """Take the outcomes of games; ``usage`` as in ``spend``."""
        if not self._received.is_new(sent):
            return
        if usage:
            self.spend(usage)
        for record in records:
            self._under_way.end(record)
            self.push_outcome(record)

    def lose_games(self, collector: str) -> None:
        self._under_way.lose(collector)

    def needed_versions(self) -> set[str]:
        """Uids of the versions that training games, under way or to come, may ask for."""
        groups = [schedule.open_group for schedule in self._schedules.values()]
        return self.needed([*self._under_way.specs, *filter(None, groups)])

    def state_dict(self) -> dict[str, Any]:
        return {
            "pool": super().state_dict(),
            "schedules": {name: each.state_dict() for name, each in self._schedules.items()},
            "under_way": self._under_way.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state["pool"])
        for name, own in state["schedules"].items():
            self._schedules[name].load_state_dict(own)
        self._under_way.load_state_dict(state["under_way"])


class _Samples:
    """Buffer of one policy, and how rewards are shaped on the way in and out."""

    def __init__(self, config: RunConfig, name: str) -> None:
        own = of_policy(config, name)
        self.rewards = RewardPipeline(own.rewards)
        self.batch_size = own.learner.batch_size
        settings = buffer_settings(config, name)
        self._dynamic = settings.max_replaced > 0
        self._flowing = config.determinism != "strict"
        self._collecting = config.collector
        self.buffer = BUFFERS[config.buffer.kind](settings)
        #: Games that each collector plays.
        self.reserved: Counter[str] = Counter()
        #: Opponents that are no versions of the run in each game delivered since the last draw, and
        #: the largest share of these games that one of them had at that draw. Not in the saved
        #: state: a resumed run counts anew.
        self._met: list[set[str]] = []
        self._opponent_share: float | None = None

    def reserve(self, collector: str, games: int, now: float | None) -> int:
        granted = self.buffer.reserve(games, now)
        self.reserved[collector] += granted
        return granted

    def add(self, collector: str, records: Sequence[GameRecord]) -> None:
        # A failed game is replayed: it keeps its place, and its group waits for the replacement.
        now, played = time.monotonic(), [record for record in records if record.error is None]
        self.buffer.add(
            Shaped(
                learned_episodes(record, self.rewards, self._collecting),
                record.spec.group_id,
                record.spec.group_size,
                begun=now - record.duration_s if self._flowing else None,
            )
            for record in played
        )
        for record in played:
            others = {seat.policy.uid for seat in record.spec.seats if not seat.trained}
            self._met.append({uid for uid in others if not is_step_name(uid)})
        ended = min(len(played), self.reserved[collector])
        self.reserved[collector] -= ended
        durations = [record.duration_s for record in played]
        self.buffer.release(ended, statistics.mean(durations) if durations else None)

    def draw(self, version: int, now: float, update: int) -> TrainBatch | None:
        """Draw a batch from the buffer."""
        drawn = self.buffer.draw(self.batch_size, version, now, update)
        if drawn is not None and self._met:
            games = Counter(chain.from_iterable(self._met))
            self._opponent_share = max(games.values(), default=0) / len(self._met)
            self._met = []
        return drawn

    def release_all(self, collector: str) -> None:
        self.buffer.release(self.reserved.pop(collector, 0))

    def figures(self) -> dict[str, float]:
        flow, losses = self.buffer.flow, self.buffer.losses
        figures = {
            "buffer_size": float(self.buffer.size()),
            "games_in_progress": flow.games,
            "games_wanted": flow.target,
            "games_most": float(flow.workers),
            "expected_age": flow.age,
            "learner_waits": flow.waiting,
            "lost_share": flow.lost,
            "dropped_old": float(losses.old),
            "dropped_old_length": losses.old_length,
            "evicted": float(losses.evicted),
        }
        if self._opponent_share is not None:
            figures["opponent_share_max"] = self._opponent_share
        if isinstance(self.buffer, EpisodeBuffer):
            figures["group_wait"] = self.buffer.group_wait
        if isinstance(self.buffer, EpisodeBuffer) and self._dynamic:
            figures["episodes_replaced"] = float(self.buffer.replaced)
        return figures

    def state_dict(self) -> dict[str, Any]:
        return {"buffer": self.buffer.state_dict(), "rewards": self.rewards.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state["buffer"])
        self.rewards.load_state_dict(state["rewards"])


PACE_S = 0.1
"""Seconds until a wait for room looks at the clock again."""


class BufferActor:
    """Shaped samples between collectors and learner."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        begin("buffer", run_dir)
        self._samples = {name: _Samples(config, name) for name in policy_names(config)}
        self._received = Received()
        self._turns = turns(config)
        #: Number of the update that is drawn next.
        self._update = 1
        #: The newest batch, until it is written.
        self._drawn: TrainBatch | None = None
        self._model = config.model
        self._decode: Decode | None = None
        self._batches = Path(run_dir) / "batches"
        self._formats = config.buffer.save_batches_as if config.buffer.save_batches else []
        self._changed = asyncio.Condition()
        self._stopped = False
        #: By policy, when its last batch was handed out, and asked for.
        self._handed: dict[str, float] = {}
        self._lost: Counter[str] = Counter()
        freeze_gc()

    async def times_lost(self, collector: str) -> int:
        """How often ``collector`` was lost: the number that its calls of ``reserve`` name."""
        return self._lost[collector]

    async def reserve(self, collector: str, games: int, times_lost: int = 0) -> dict[str, int]:
        """Games that ``collector`` may start now, by the policy that learns from them.

        Waits for room. Empty: collection is over, or the collector was lost since it began. Its
        node may have been cut off, and its process goes on: no other would get the room it takes.
        """
        async with self._changed:
            granted = dict[str, int]()
            while not (self._stopped or self._lost[collector] > times_lost or granted):
                granted = self._admit(collector, games, time.monotonic())
                if not granted:
                    # A delivery, a draw or time makes room. With wait_for Python 3.11 may lose a
                    # cancellation, and the loop would go on.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(PACE_S):
                            await self._changed.wait()
            return granted

    async def admit(self, collector: str, games: int) -> dict[str, int]:
        """Games of a round; does not wait."""
        async with self._changed:
            return self._admit(collector, games, None)

    def _admit(self, collector: str, games: int, now: float | None) -> dict[str, int]:
        left, granted = games, dict[str, int]()
        begin = (self._update - 1) % len(self._turns)
        # Policies whose updates are next come first, else the learner would wait for their games.
        for name in dict.fromkeys([*self._turns[begin:], *self._turns[:begin]]):
            if left and (fitting := self._samples[name].reserve(collector, left, now)):
                granted[name] = fitting
                left -= fitting
        return granted

    async def release_all(self, collector: str) -> None:
        """Forget the games of a collector that is lost, and its calls of ``reserve``."""
        async with self._changed:
            self._lost[collector] += 1
            for samples in self._samples.values():
                samples.release_all(collector)
            self._changed.notify_all()

    async def deliver(
        self, collector: str, records: Sequence[GameRecord], sent: Sent | None = None
    ) -> None:
        """Shape and add games; release the places of those that ended."""
        if not self._received.is_new(sent):
            return
        games: dict[str, list[GameRecord]] = {}
        for record in records:
            games.setdefault(record.spec.learner, []).append(record)
        async with self._changed:
            for name, own in games.items():
                self._samples[name].add(collector, own)
            self._changed.notify_all()

    async def next_batch(
        self, version: int, update: int, name: str = "", wait: bool = True
    ) -> tuple[TrainBatch | None, str | None]:
        """The batch, and its digest, for the run's ``update``, of a policy at its ``version``.

        Waits until it is full. (None, None) once the buffer is stopped, or without ``wait`` where
        it is not full.
        """
        samples, asked = self._samples[name], time.monotonic()
        async with self._changed:
            self._update = update
            drawn = None
            while drawn is None:
                if self._stopped:
                    return None, None
                if samples.buffer.ready():
                    now = time.monotonic()
                    drawn = samples.draw(version, now, update)
                    if drawn is not None and wait:
                        handed, self._handed[name] = self._handed.get(name, asked), now
                        samples.buffer.waited(now - asked, asked - handed)
                    # Even if nothing was drawn, dropped stale samples may have made room for games.
                    self._changed.notify_all()
                if drawn is None and not wait:
                    return None, None
                if drawn is None:
                    await self._changed.wait()
            self._update = update + 1
        # Two values, so that the caller awaits only the digest, and hands the batch's reference on.
        batch = dataclasses.replace(drawn, samples=tuple(samples.rewards.on_draw(drawn.samples)))
        self._drawn = batch
        return batch, await asyncio.to_thread(digest_of_batch, batch)

    async def write_batch(self, update: int, advantages: Sequence[float] | None = None) -> None:
        """Write the batch drawn for ``update``, if that is switched on.

        ``advantages`` None: the update failed.
        """
        batch, self._drawn = self._drawn, None
        if batch is None:
            return
        for suffix in self._formats:
            path = self._batches / f"batch-{update:06d}.{suffix}"
            if self._decode is None:
                self._decode = await asyncio.to_thread(load_decoder, self._model)
            await asyncio.to_thread(write_batch, path, batch, self._decode, advantages)

    async def skipped(self, update: int, name: str) -> None:
        """Make room for games, where the ``update`` of a policy makes no version to wait for."""
        async with self._changed:
            self._samples[name].buffer.skipped(update)
            self._changed.notify_all()

    async def set_version(self, version: int, name: str = "") -> None:
        """Take a published version: drop samples that are too old, make room for games."""
        async with self._changed:
            self._samples[name].buffer.set_version(version)
            self._changed.notify_all()

    async def begin_anew(self, version: int, name: str) -> None:
        """Begin anew with a policy's ``version``: what earlier ones played is not learned from."""
        async with self._changed:
            self._samples[name].buffer.begin_anew(version)
            self._changed.notify_all()

    async def stop(self) -> None:
        async with self._changed:
            self._stopped = True
            self._changed.notify_all()

    async def flow(self) -> Flow:
        return next(iter(self._samples.values())).buffer.flow

    async def figures(self, name: str = "") -> dict[str, float]:
        return self._samples[name].figures()

    async def state_dict(self) -> dict[str, Any]:
        return {"policies": {name: each.state_dict() for name, each in self._samples.items()}}

    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, own in state["policies"].items():
            self._samples[name].load_state_dict(own)
