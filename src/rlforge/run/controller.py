"""Training on games: the loops of one run, and how they wait for each other.

    loop        consumes            produces              waits for             unblocks
    ─────────────────────────────────────────────────────────────────────────────────────────────
    collect ×N  GameSpecs of the    GameRecords, to the   room in the buffer,   learn (samples)
                pool                buffer                engines
    learn       TrainBatch          the next version      a whole batch         publish
    publish     the saved version   an adapter in each    the publication       collect (room for
                                    engine and the pool   before it             its games), evaluate
    evaluate    a published         EvalResults           the evaluation        the end of the run
                version                                   before it
    watch       engine reports      token rates           5 seconds             –

``collect`` runs in the collector actors, the other loops run here. Ray restarts collectors and
engines that die, and their calls are repeated (``rlforge.run.actors.calls``); a learner, pool,
buffer or tracker that dies ends the run. With ``hardware.elastic`` collectors and engines are
absent while no node has room for them. With ``determinism=strict`` the same steps come one after
the other (``collection.Rounds``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rlforge.config.schema import RunConfig
from rlforge.record.digests import DigestChain, facts, moved
from rlforge.rollout.expected import forecast
from rlforge.run.actors.calls import ActorCalls
from rlforge.run.actors.colocation import update_in_turn
from rlforge.run.collection import Collection, Flow, Rounds
from rlforge.run.evaluations import Evaluations
from rlforge.run.lifecycle import RunContext
from rlforge.run.observers import Updated, observers_of, stop_without_signal
from rlforge.run.policies import Policies, Trained
from rlforge.run.resume import BEFORE_ALL, Retention, rewind
from rlforge.run.watch import Watch
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint
from rlforge.system.loops import unless
from rlforge.types import Checkpoint

log = logging.getLogger(__name__)

WAIT_S = 1.0
"""Seconds between looks at games that are played without a batch."""


class GameController:
    """Training on games; see ``rlforge.run.lifecycle`` for what calls it."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        config, self._context = context.config, context
        self._config, self._hardware, self._run_dir = config, context.hardware, context.run_dir
        self._actors, self._note, self._part = context.actors, context.note, context.part
        self._calls = ActorCalls(context.actors, context.note, elastic=context.hardware.elastic)
        self._watch = Watch(config, context.actors, self._calls, context.note, context.started)
        self._collection: Collection = (
            Rounds(config, context.actors, self._calls, context.run_dir)
            if config.strict
            else Flow(config, context.actors, self._calls)
        )
        self._policies, self._observers = Policies(config), observers_of(context)
        self._evaluations = Evaluations(
            config,
            list(context.actors.replicas("collector")),
            self._collection,
            self._policies,
            self._observers,
            self._published,
            context.note,
            context.part,
        )
        self._retention = Retention(self._run_dir / "checkpoints", config.learner.keep_checkpoints)
        self._chain = DigestChain(self._run_dir)
        # Both count the updates of all policies together.
        self._version, self._state_saved = 0, 0
        self._stopped = asyncio.Event()
        self._publication: asyncio.Task[None] | None = None

    def stop(self) -> None:
        self._stopped.set()
        self._collection.stop()

    async def close(self) -> None:
        """Nothing to release: the actors end with Ray."""

    def summary(self) -> Mapping[str, Any]:
        return {
            "updates": self._version,
            "total_updates": self._config.learner.total_updates,
            "seed": self._config.seed,
            "restarts": self._calls.restarts,
            "objective": self._evaluations.objective(),
            **self._watch.shares(),
        }

    # ---------------------------------------------------------------- the loops

    async def run(self) -> bool:
        """Run all loops side by side; any failure ends all."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._evaluations.begin(group, self._run_dir)
            engines = {name: self._watch.engine(name) for name in self._actors.replicas("engine")}
            others = [
                group.create_task(self._calls.unless_given_up(name, loop))
                for name, loop in {**engines, **self._collection.loops()}.items()
            ]
            others.append(group.create_task(self._watch.api()))
            # The time in which models were loaded would else count as idle.
            self._watch.begin()
            await unless(self._stopped, self._evaluations.started(self._version))
            await self._learn()
            await self._actors.buffer.stop.remote()
            complete = await self._finish()
            # The loops of engines have no end of their own: the group would wait for ever.
            for task in others:
                task.cancel()
        return complete

    async def _learn(self) -> None:
        """Draw, update, save, publish: one round is one policy version."""
        learner = self._config.learner
        while self._version < learner.total_updates:
            if self._stopped.is_set() and self._collection.may_end(self._version):
                return
            policy, number = self._policies.at_turn(self._version), self._version + 1
            made: dict[str, Any] | None
            if await self._policies.begins_anew(policy, number, self._actors):
                made = await self._policies.begin_anew(policy, number, self._actors, self._note)
                self._version = number
            elif (made := await self._update(policy)) is None:
                # An interrupt has stopped the buffer: there is no further batch.
                return
            last = self._version == learner.total_updates
            # Once the last version is published collectors would begin games that no update uses.
            if last:
                await self._actors.buffer.stop.remote()
                self._evaluations.close()
            state_due = self._version % learner.state_every == 0
            if self._version % learner.save_every == 0 or state_due or last:
                await self._save(policy)
            await self._evaluations.updated(self._version)
            part = {"part": self._part} if self._part else {}
            line = {**made, "name": policy.name, **await self._collection.digests(), **part}
            self._chain.append(self._version, line)
            if state_due:
                await self._save_state()

    async def _update(self, policy: Trained) -> dict[str, Any] | None:
        """Make one update of a policy; returns its digests, or None without a batch."""
        number = self._version + 1
        # Games may give no sample, and so no batch for ever: the user hears of it.
        waiting = self._group.create_task(self._judge_wait(policy))
        try:
            drawn = await self._collection.batch(policy, number)
        finally:
            waiting.cancel()
        if drawn is None:
            return None
        batch, digest = drawn
        more = number < self._config.learner.total_updates
        async with self._collection.playing(more=more):
            made = await self._learn_from(batch, policy, number)
        return {"batch": digest, **made}

    async def _judge_wait(self, policy: Trained) -> None:
        """Let games that are played without a batch be judged, until there is one."""
        while True:
            await asyncio.sleep(WAIT_S)
            figures = await self._actors.buffer.figures.remote(policy.name)
            await self._actors.tracker.log_wait.remote(figures)
            await stop_without_signal(self._context)

    async def _learn_from(self, batch: Any, policy: Trained, number: int) -> dict[str, Any]:
        """Let the learner make an update, and tell the observers; returns its digests."""
        update: Callable[..., Any] = self._actors.learner.update
        if self._hardware.alternate:
            update = partial(update_in_turn, self._actors, self._calls.call)
        name, write_batch = policy.name, self._actors.buffer.write_batch.remote
        try:
            result, span = await update(batch, name, number)
        except Exception:
            # If the buffer fails as well, its error must not hide that of the update.
            with contextlib.suppress(Exception):
                await write_batch(number)
            raise
        self._version = result.version
        if result.new_policy:
            policy.updated = result.version
        else:
            await self._actors.buffer.skipped.remote(number, name)
        policy.updates += 1
        self._watch.learner_worked(span)
        custom, figures, _ = await asyncio.gather(
            self._actors.custom_scalars(),
            self._actors.buffer.figures.remote(name),
            write_batch(result.version, result.advantages),
        )
        # This call is not awaited, because a slow sink of the tracker would hold up training.
        self._actors.tracker.log_scalars.remote(custom)
        figures = {**self._watch.figures(), **figures, "restarts": self._calls.restarts}
        first = policy is self._policies.every[0]
        update_made = Updated(policy=policy, result=result, figures=figures, first=first)
        await self._observers.updated(update_made)
        return {**result.digests, "samples": result.samples}

    async def _save(self, policy: Trained) -> None:
        """Write the policy's version, and begin to publish it."""
        if policy.newest.version == policy.updated:
            return
        policy.newest = await self._actors.learner.save(
            policy.updated, policy.parent or policy.newest.uid, name=policy.name
        )
        policy.parent = None
        log.info("%s is saved", policy.newest.uid)
        await self._observers.saved(policy.newest)
        await self._published()
        # Engines load this version during the next update; the ``_save`` after that waits for it.
        self._publication = self._group.create_task(self._publish(policy.newest))
        if self._collection.in_order:
            await self._published()

    async def _publish(self, checkpoint: Checkpoint) -> None:
        # Engines come first, so that games, pool and buffer name only versions that are loaded.
        await self._calls.use(checkpoint.policy())
        snapshot = await self._actors.pool.publish.remote(checkpoint)
        await self._actors.buffer.set_version.remote(checkpoint.version, checkpoint.name)
        self._actors.tracker.log_pool.remote(snapshot)
        # ``Evaluations.started`` evaluates version 0.
        if checkpoint.version:
            self._evaluations.follow()
        await self._observers.published(checkpoint)
        needed = self._evaluations.needed | self._observers.needed()
        needed |= await self._actors.pool.needed_versions.remote()
        self._retention.prune(needed, checkpoint.version)

    async def _published(self) -> None:
        if self._publication is not None:
            await self._publication

    # ---------------------------------------------------------------- beginning and end

    async def begin(self, *, resume: bool) -> None:
        """Publish version 0: the model, or its initial adapter.

        A resumed run restores its state, and drops versions and records made after it.
        """
        self._note(f"collection: {forecast(self._config, await self._actors.buffer.flow.remote())}")
        if resume:
            path = latest_checkpoint(self._run_dir / "checkpoints", with_state=True)
            version = BEFORE_ALL if path is None else checkpoint_version(path)
            rewind(self._run_dir, version)
            await self._actors.tracker.resume.remote(version)
            self._chain.rewind(version)
            if path is not None:
                await self._restore(await self._actors.learner.load_state(path.name), version)
                return
            await self._collection.restore(None)
        self._chain.append(0, {"computed": facts(self._config, self._hardware)})
        for policy in self._policies.every:
            await self._publish(policy.newest)

    async def _save_state(self) -> None:
        """Let ``--resume`` continue from the newest version."""
        if self._state_saved == self._version:
            return
        self._state_saved = self._version
        newest = self._policies.newest
        await self._save(newest)
        await self._published()
        uid = newest.newest.uid
        if newest.updated != self._version:
            # The update had no signal. A state is in the folder of its update's number, so that
            # all else is rewound to it: here with the weights of an earlier one, not published.
            last = self._policies.at_turn(self._version - 1)
            parent = last.newest.uid
            uid = (await self._actors.learner.save(self._version, parent, name=last.name)).uid
        self._retention.resumable = await self._actors.pool.needed_versions.remote()
        pool, buffer = await asyncio.gather(
            self._actors.pool.state_dict.remote(), self._actors.buffer.state_dict.remote()
        )
        state = {
            "run_dir": str(self._run_dir),
            "pool": pool,
            "buffer": buffer,
            "policies": self._policies.state_dict(),
            "observers": self._observers.state_dict(),
            "evaluations": self._evaluations.state_dict(),
            # Last: what the others refer to is on disk then, also if the run is killed next.
            "game_files": await self._actors.tracker.close_game_file.remote(),
        }
        await self._actors.learner.save_state(uid, state)
        log.info("--resume can continue from %s", uid)

    async def _restore(self, state: dict[str, Any], version: int) -> None:
        here = str(self._run_dir)
        # A state of an earlier version owes no evaluations.
        state = {"evaluations": {}, **state}
        paths = ("pool", "policies", "evaluations")
        state |= {name: moved(state[name], state["run_dir"], here) for name in paths}
        self._version = self._state_saved = version
        self._policies.load_state_dict(state["policies"])
        self._observers.load_state_dict(state.get("observers", {}))
        self._evaluations.load_state_dict(state["evaluations"])
        await asyncio.gather(
            self._actors.pool.load_state_dict.remote(state["pool"]),
            self._actors.buffer.load_state_dict.remote(state["buffer"]),
        )
        self._retention.resumable = await self._actors.pool.needed_versions.remote()
        for policy in self._policies.every:
            await self._calls.use(policy.newest.policy())
            await self._actors.buffer.set_version.remote(policy.newest.version, policy.name)
        if self._chain.final:
            # Its games stay, as its results do: nothing was played after the last evaluation.
            state["game_files"] = None
        await self._collection.restore(state)

    async def _finish(self) -> bool:
        """Save the last version with its state, and evaluate it; whether all of it is done."""
        await self._save_state() if self._version else await self._published()
        complete = self._version == self._config.learner.total_updates and bool(
            await unless(self._stopped, self._evaluations.end())
        )
        if not complete:
            self._evaluations.cancel()
        # A stopped evaluation is made again, and its games are dropped then.
        if complete and (rest := self._collection.unrecorded()) is not None:
            self._chain.append(self._version, {"final": True, **rest})
        self._observers.ended()
        await self._watch.look()
        self._actors.tracker.log_pool.remote(await self._actors.pool.snapshot.remote())
        return complete
