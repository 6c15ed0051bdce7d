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

``collect`` runs in the collector actors, the other loops run here. ``learn`` makes the next update
while the last version is published: it only waits for that before it saves again. No loop waits for
the tracker. Ray restarts collectors and engines that die, and their calls are repeated
(``_call``); a learner, pool, buffer or tracker that dies ends the run.

With ``hardware.elastic`` collectors and engines are absent while no node has room for them.
Versions are published to the engines that are there, and evaluation games of a collector that is
lost are played by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import ray

from rlforge.actors.colocation import update_in_turn
from rlforge.actors.engine import EngineReport
from rlforge.actors.process import restarted
from rlforge.config.per_policy import entry_of, evaluated_at, of_policy, policy_names, turns
from rlforge.config.policies import START
from rlforge.config.schema import RunConfig
from rlforge.errors import RunError
from rlforge.league.pool import RECENT_GAMES
from rlforge.rollout.expected import forecast
from rlforge.rollout.lineup import eval_envs, eval_pairings, fixed_opponents, train_envs
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint, step_name
from rlforge.system.utilisation import Utilisation
from rlforge.system.values import Codec
from rlforge.tracking.bottleneck import BottleneckWatch
from rlforge.tracking.digests import DigestChain, facts, moved
from rlforge.training.evaluations import Evaluations
from rlforge.training.guard import Guard
from rlforge.training.lifecycle import RunContext
from rlforge.training.resume import BEFORE_ALL, Retention, rewind
from rlforge.types import Checkpoint, EvalResult, GameRecord, GameSpec, PolicyRef

log = logging.getLogger(__name__)

_CHECKPOINTS = Codec(Checkpoint, form="json")

LATE_S = 5.0
"""Seconds that a publication waits for further engines of an elastic run once one has it."""

ENGINE_POLL_S = 5.0
"""Seconds between throughput reports of the engines."""


@dataclasses.dataclass
class Trained:
    """One of the policies in training; that of a run with one has no name.

    newest: its newest saved version. parent: of its next version; None: ``newest``. updated: number
    of its newest update. begun: of the update at which it began, or began anew; updates: its own
    since then.
    """

    name: str
    newest: Checkpoint
    parent: str | None = None
    updated: int = 0
    begun: int = 0
    updates: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "newest": _CHECKPOINTS.encode(self.newest),
            "begun": self.begun,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.newest = _CHECKPOINTS.decode(state["newest"])
        self.updated = self.newest.version
        self.begun, self.updates = state["begun"], state["updates"]


class GameController:
    """Training on games; see ``rlforge.training.lifecycle`` for what calls it."""

    def __init__(self, context: RunContext[RunConfig]) -> None:
        config = context.config
        self._config, self._hardware, self._run_dir = config, context.hardware, context.run_dir
        self._actors, self._note = context.actors, context.note
        self._turns = turns(config)
        self._policies = {
            name: Trained(
                name=name,
                newest=Checkpoint(
                    uid=step_name(0, name),
                    version=0,
                    path=config.learner.initial_adapter,
                    name=name,
                ),
            )
            for name in policy_names(config)
        }
        self._retention = Retention(self._run_dir / "checkpoints", config.learner.keep_checkpoints)
        self._elastic = context.hardware.elastic
        collectors = list(self._actors.replicas("collector"))
        self._evaluations = Evaluations(
            config,
            collectors,
            self._play,
            self._played,
            self._rate,
            self._measure,
            part=context.part,
        )
        self._guard = Guard(context)
        # Updates so far, of all policies.
        self._version = 0
        self._interrupted = False
        self._publication: asyncio.Task[None] | None = None
        self._state_saved = 0
        self._started = context.started
        self._chain, self._part = DigestChain(self._run_dir), context.part
        #: Digests and facts of the newest update.
        self._made: dict[str, Any] = {}
        self._engine_reports: dict[str, tuple[float, EngineReport]] = {}
        self._utilisation = Utilisation(time.time())
        #: By engine, the mean share of its places in use.
        self._occupied: dict[str, float] = {}
        self._bottleneck = BottleneckWatch()
        self._restarts = 0
        #: Process ids of the collectors.
        self._processes: dict[str, int] = {}
        self._given_up: set[str] = set()
        met = [pairing.opponents for pairing in eval_pairings(config)]
        met += [fixed_opponents(of_policy(config, name)) for name in policy_names(config)]
        self._api_plays = any(policy.kind == "api" for policy in chain(*met))
        #: Whether it was said that no game with API players may begin any more.
        self._api_closed = False

    def stop(self) -> None:
        self._interrupted = True
        self._actors.buffer.stop.remote()

    async def close(self) -> None:
        """Nothing to release: the actors end with Ray."""

    def summary(self) -> Mapping[str, Any]:
        return {
            "updates": self._version,
            "total_updates": self._config.learner.total_updates,
            "seed": self._config.seed,
            "restarts": self._restarts,
            "objective": self._evaluations.objective(),
            **self._utilisation.shares(time.time()),
        }

    # ---------------------------------------------------------------- the loops

    async def run(self) -> bool:
        """The loops of collectors, engines and learner side by side; any failure ends all."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._evaluations.begin(group, self._run_dir)
            others = [
                group.create_task(self._unless_given_up(name, loop(name)))
                for kind, loop in self._loops().items()
                for name in self._actors.replicas(kind)
            ]
            others.append(group.create_task(self._watch_api()))
            self._utilisation = Utilisation(time.time())
            if self._version == 0:
                self._evaluate(edge=True)
            else:  # resumed
                self._evaluate_if_due()
                self._evaluations.follow(self._seated())
            await self._learn()
            await self._actors.buffer.stop.remote()
            await self._finish()
            for task in others:
                task.cancel()
        return not self._interrupted

    def _loops(self) -> Mapping[str, Callable[[str], Awaitable[None]]]:
        """What runs beside ``_learn`` for each actor of a kind."""
        return {"engine": self._watch, "collector": self._train}

    async def _learn(self) -> None:
        """Draw, update, save, publish: one round is one policy version."""
        learner = self._config.learner
        while self._version < learner.total_updates and not self._interrupted:
            policy = self._policies[self._turns[self._version % len(self._turns)]]
            if await self._begins_anew(policy):
                await self._begin_anew(policy)
            elif not await self._update(policy):  # the buffer was stopped
                return
            await self._write_digests()
            last = self._version == learner.total_updates
            if last:  # before it is published: no update would use its games
                await self._actors.buffer.stop.remote()
                self._evaluations.close()
            if self._version % learner.save_every == 0 or last:
                await self._save(policy)
            if self._version % learner.state_every == 0:
                await self._save_state()
            self._evaluate_if_due()

    async def _update(self, policy: Trained) -> bool:
        """One update of a policy, which is recorded and judged; False where no batch comes."""
        batch = await self._draw(policy)
        if batch is None:
            return False
        await self._learn_from(batch, policy)
        return True

    async def _draw(self, policy: Trained, *, wait: bool = True) -> Any:
        """The next batch of a policy; goes from the buffer to the learner, by this reference.

        None where the buffer was stopped, or without ``wait`` has no batch yet.
        """
        next_batch = self._actors.buffer.next_batch.options(num_returns=2)
        batch, digest = next_batch.remote(policy.updated, self._version + 1, policy.name, wait)
        self._made = {"batch": await digest}
        return batch if self._made["batch"] is not None else None

    async def _learn_from(self, batch: Any, policy: Trained) -> None:
        """Let the learner make an update; record and judge it."""
        update: Callable[..., Any] = self._actors.learner.update
        if self._hardware.alternate:
            update = partial(update_in_turn, self._actors, self._call)
        name, write_batch = policy.name, self._actors.buffer.write_batch.remote
        try:
            result, span = await update(batch, name, self._version + 1)
        except Exception:
            with contextlib.suppress(Exception):  # of an actor that died with it
                await write_batch(self._version + 1)
            raise
        self._version = policy.updated = result.version
        policy.updates += 1
        self._made |= {**result.digests, "name": name, "samples": result.samples}
        self._utilisation.learner_worked(span)
        custom, figures, _ = await asyncio.gather(
            self._actors.custom_scalars(),
            self._actors.buffer.figures.remote(name),
            write_batch(result.version, result.advantages),
        )
        self._actors.tracker.log_scalars.remote(custom)
        shares = self._utilisation.shares(time.time())
        if self._occupied:
            figures["engine_occupancy"] = statistics.mean(self._occupied.values())
        main = policy is next(iter(self._policies.values()))  # the one that is evaluated
        self._actors.tracker.log_learner.remote(
            result, {**shares, **figures, "restarts": self._restarts}, policy="" if main else name
        )
        if not main:
            return
        if (found := self._bottleneck.updated({**shares, **figures})) is not None:
            self._note(f"update {result.version}, bottleneck: {found}")
        if (back_to := await self._guard.look_out(result)) is not None:
            policy.parent = back_to

    async def _begins_anew(self, policy: Trained) -> bool:
        """Whether ``reset`` says so of the policy whose turn it is; the last update is one."""
        reset = entry_of(self._config, policy.name).reset
        if not policy.updates or self._version + 1 == self._config.learner.total_updates:
            return False
        if reset.every is not None and policy.updates >= reset.every:
            return True
        if reset.score is None:
            return False
        games, score = await self._actors.pool.score.remote(policy.name, policy.begun)
        return bool(games >= RECENT_GAMES and score > reset.score)

    async def _begin_anew(self, policy: Trained) -> None:
        """In place of an update, give the policy other weights, which become its next version."""
        to = entry_of(self._config, policy.name).reset.to
        like = None if to == START else self._policies[to]
        number = self._version + 1
        digests = await self._actors.learner.begin_anew(
            policy.name, number, None if like is None else to
        )
        self._made = {**digests, "name": policy.name}
        await self._actors.buffer.begin_anew.remote(number, policy.name)
        self._version = policy.updated = policy.begun = number
        policy.updates = 0
        policy.parent = step_name(0, policy.name) if like is None else like.newest.uid
        source = "its start" if like is None else like.newest.uid
        self._note(f"{policy.name} begins anew as {step_name(number, policy.name)}, from {source}")

    async def _save(self, policy: Trained) -> None:
        """Write the policy's version, and publish it while the next update is made."""
        if policy.newest.version == policy.updated:
            return
        policy.newest = await self._actors.learner.save(
            policy.updated, policy.parent or policy.newest.uid, name=policy.name
        )
        policy.parent = None
        log.info("%s is saved", policy.newest.uid)
        await self._published()
        self._publication = self._group.create_task(self._publish(policy.newest))

    async def _publish(self, checkpoint: Checkpoint) -> None:
        """Load it in the engines first: games, pool and buffer only name loaded versions."""
        await self._load(checkpoint.policy())
        for collector in self._actors.collectors:
            collector.use_version.remote(checkpoint.policy())
        snapshot = await self._actors.pool.publish.remote(checkpoint)
        await self._actors.buffer.set_version.remote(checkpoint.version, checkpoint.name)
        self._actors.tracker.log_pool.remote(snapshot)
        if checkpoint.version:  # version 0 has the evaluation of the start
            self._evaluations.follow(self._seated())
        needed = self._evaluations.needed | await self._actors.pool.needed_versions.remote()
        self._retention.prune(needed | self._guard.needed(), checkpoint.version)

    async def _load(self, policy: PolicyRef) -> None:
        """In all engines; with ``elastic`` in those that answer: the others load it when asked."""
        if not self._elastic:
            names = self._actors.replicas("engine")
            await asyncio.gather(*(self._call(name, "load", policy) for name in names))
            return
        loads = [
            asyncio.ensure_future(self._ask(name, "load", policy))
            for name in self._actors.present("engine")
        ]
        if loads:
            await asyncio.wait(loads, return_when=asyncio.FIRST_COMPLETED)
            loaded, late = await asyncio.wait(loads, timeout=LATE_S)
            for task in late:
                task.cancel()
            for task in loaded:
                task.result()

    async def _write_digests(self) -> None:
        part = {"part": self._part} if self._part else {}
        self._chain.append(self._version, {**await self._digests(), **part})

    async def _digests(self) -> dict[str, Any]:
        """What the newest update was made of and what it made (``rlforge.tracking.digests``)."""
        return self._made

    async def _published(self) -> None:
        if self._publication is not None:
            await self._publication

    async def _save_state(self) -> None:
        """Make the newest version one that ``--resume`` can continue from."""
        if self._state_saved == self._version:
            return
        self._state_saved = self._version
        newest = max(self._policies.values(), key=lambda policy: policy.updated)
        await self._save(newest)
        await self._published()
        self._retention.resumable = await self._actors.pool.needed_versions.remote()
        await self._actors.learner.save_state(newest.newest.uid, await self._state())
        log.info("--resume can continue from %s", newest.newest.uid)

    async def _state(self) -> dict[str, Any]:
        """What a resumed run needs beside the learner's state, as plain data."""
        pool, buffer = await asyncio.gather(
            self._actors.pool.state_dict.remote(), self._actors.buffer.state_dict.remote()
        )
        return {
            "run_dir": str(self._run_dir),
            "pool": pool,
            "buffer": buffer,
            "policies": {name: each.state_dict() for name, each in self._policies.items()},
            "guard": self._guard.state_dict(),
        }

    # ---------------------------------------------------------------- beginning and end

    async def begin(self, *, resume: bool) -> None:
        """Publish version 0: the model, or its initial adapter. A resumed run restores its state.

        Versions and records made after that state are dropped.
        """
        self._note(f"collection: {forecast(self._config, await self._actors.buffer.flow.remote())}")
        if resume:
            path = latest_checkpoint(self._run_dir / "checkpoints", with_state=True)
            version = BEFORE_ALL if path is None else checkpoint_version(path)
            rewind(self._run_dir, version)
            await self._actors.tracker.resume.remote(version)
            self._chain.rewind(version)
            if path is not None:
                state = await self._actors.learner.load_state(path.name)
                await self._restore(state, version)
                return
        self._chain.append(0, {"computed": facts(self._config, self._hardware)})
        for policy in self._policies.values():
            await self._publish(policy.newest)

    async def _restore(self, state: dict[str, Any], version: int) -> None:
        here = str(self._run_dir)
        state |= {name: moved(state[name], state["run_dir"], here) for name in ("pool", "policies")}
        self._version = self._state_saved = version
        for name, policy in self._policies.items():
            policy.load_state_dict(state["policies"][name])
        self._guard.load_state_dict(state["guard"])
        await asyncio.gather(
            self._actors.pool.load_state_dict.remote(state["pool"]),
            self._actors.buffer.load_state_dict.remote(state["buffer"]),
        )
        self._retention.resumable = await self._actors.pool.needed_versions.remote()
        for policy in self._policies.values():
            await self._load(policy.newest.policy())
            for collector in self._actors.collectors:
                collector.use_version.remote(policy.newest.policy())
            await self._actors.buffer.set_version.remote(policy.newest.version, policy.name)

    async def _finish(self) -> None:
        """Save the last version with its state; unless interrupted, evaluate it."""
        await self._save_state() if self._version else await self._published()
        if self._interrupted:
            self._evaluations.cancel()
        else:
            self._evaluations.close()
            await self._evaluations.finish()
            self._evaluate(edge=True)
            await self._evaluations.finish()
        self._guard.report()
        await asyncio.gather(*(self._look_at(name) for name in self._actors.present("engine")))
        await self._look_at_api()
        self._actors.tracker.log_pool.remote(await self._actors.pool.snapshot.remote())

    # ---------------------------------------------------------------- evaluations, engine reports

    def _rate(self, result: EvalResult) -> None:
        """Record an evaluation, and let the sentinel judge it."""
        self._actors.tracker.add_eval.remote(result)
        self._guard.evaluated(result)

    def _evaluate(self, *, edge: bool) -> None:
        """Evaluate the newest saved version. edge: at the start or the end of training."""
        self._evaluations.evaluate(self._seated(), self._published, edge=edge)

    def _seated(self) -> list[Checkpoint]:
        """What is evaluated at each seat: the newest version of the policy there."""
        envs = [*train_envs(self._config), *eval_envs(self._config)]
        return [
            self._policies[evaluated_at(self._config, seat)].newest
            for seat in range(max(env.num_players for env in envs))
        ]

    def _evaluate_if_due(self) -> None:
        """After every ``eval.every`` updates; the last version is evaluated at the end."""
        settings, last = self._config.eval, self._version == self._config.learner.total_updates
        due = settings.every and self._version % settings.every == 0
        if due and not last and not settings.continuous:
            self._evaluate(edge=False)

    async def _measure(self, checkpoint: Checkpoint) -> None:
        """The exact measure of the version that the learner holds; training goes on without it."""
        try:
            envs = eval_envs(self._config)
            results = await self._actors.learner.measure_exactly(checkpoint.policy(), envs)
        except RunError as error:
            self._note(f"{checkpoint.uid}: {error}")
            return
        for result in results:
            self._actors.tracker.add_exact.remote(result)
            self._guard.measured(result)

    async def _play(self, collector: str, specs: Sequence[GameSpec]) -> list[GameRecord]:
        """Play evaluation games; with ``elastic`` in another collector where this one is absent."""
        records: list[GameRecord] | None = None
        if not self._elastic:
            records = await self._call(collector, "evaluate", specs)
        while records is None:
            present = list(self._actors.present("collector"))
            if not present:
                await asyncio.sleep(1.0)
                continue
            name = collector if collector in present else present[0]
            records = await self._ask(name, "evaluate", specs)
        return records

    async def _played(self, records: Sequence[GameRecord]) -> None:
        """Count finished evaluation games in the pool."""
        await self._actors.pool.push_outcomes.remote(records)

    async def _watch(self, engine: str) -> None:
        while True:
            await self._back(engine)
            await self._look_at(engine)
            await asyncio.sleep(ENGINE_POLL_S)

    async def _look_at(self, engine: str) -> None:
        """Report an engine's queue and token rate; count its working time, and its restarts."""
        report: EngineReport | None = await self._ask(engine, "report")
        if report is None:
            return
        now = time.time()
        then, before = self._engine_reports.get(engine, (self._started, None))
        self._engine_reports[engine] = now, report
        self._utilisation.engines_worked(report.spans)
        if report.restarted_since(before):
            self._count_restart(engine)
        load = report.throughput(before, now - then)
        self._actors.tracker.log_inference.remote(engine, load)
        if before is not None:
            in_use = load["sequences"] / self._config.engine.max_parallel_seq
            mean = self._occupied.setdefault(engine, in_use)
            self._occupied[engine] = mean + 0.3 * (in_use - mean)

    async def _watch_api(self) -> None:
        while self._api_plays:
            await self._look_at_api()
            await asyncio.sleep(ENGINE_POLL_S)

    async def _look_at_api(self) -> None:
        """Report what API players took, and say once that their budget is used."""
        if not self._api_plays:
            return
        players, figures, closed = await self._actors.pool.api_usage.remote()
        self._actors.tracker.log_api.remote(players, figures)
        if closed is not None and not self._api_closed:
            self._api_closed = True
            self._note(f"{closed}; no further game with API players begins, and the run goes on")

    # ---------------------------------------------------------------- absent actors

    async def _train(self, collector: str) -> None:
        """Let a collector play whenever it is there."""
        while True:
            await self._back(collector)
            actor = self._actors.named[collector]
            try:
                process = await actor.process.remote()
                if self._processes.setdefault(collector, process) != process:
                    self._processes[collector] = process
                    self._count_restart(collector)
                await actor.train.remote()
                return
            except ray.exceptions.ActorUnavailableError as error:
                self._lost(collector, error)
                await self._actors.buffer.release_all.remote(collector)

    async def _ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor once; None where the actor is lost meanwhile."""
        try:
            return await getattr(self._actors.named[name], method).remote(*arguments)
        except ray.exceptions.RayActorError as error:
            self._lost(name, error)
            return None

    async def _call(self, name: str, method: str, *arguments: Any) -> Any:
        """Call a method of an actor; again when its process died meanwhile and Ray restarts it.

        Ray counts the restarts that the config allows (``max_restarts``), and raises
        ActorDiedError instead of ActorUnavailableError when there are no more.
        """
        while True:
            try:
                return await getattr(self._actors.named[name], method).remote(*arguments)
            except ray.exceptions.ActorUnavailableError as error:
                self._lost(name, error)
                await self._back(name)

    def _lost(self, name: str, error: Exception) -> None:
        """An actor does not answer: it is absent until ``_back`` returns."""
        log.warning("%s is absent: %s", name, error)
        if self._elastic and name not in self._actors.absent:  # it may come back, or not
            self._note(f"{name} does not answer")
        self._actors.absent.add(name)

    async def _back(self, name: str) -> None:
        """Wait until an actor is no longer absent."""
        if name not in self._actors.absent:
            return
        await restarted(self._actors.named[name], name, elastic=self._elastic)
        if self._elastic and name in self._actors.absent:
            self._note(f"{name} has joined")
        self._actors.absent.discard(name)

    async def _unless_given_up(self, name: str, loop: Awaitable[None]) -> None:
        """Await the loop of an actor; with ``elastic`` the run goes on while others are left."""
        try:
            await loop
        except ray.exceptions.RayActorError as error:
            self._actors.absent.add(name)
            self._given_up.add(name)
            kind = name.partition("-")[0]
            if not self._elastic or self._given_up.issuperset(self._actors.replicas(kind)):
                raise
            self._note(f"{name} died more often than {kind}.max_restarts; the run goes on without")
            log.error("%s is given up: %s", name, error)

    def _count_restart(self, name: str) -> None:
        self._restarts += 1
        self._note(f"{name} died and is restarted")
