"""A run, from graph to result: start the actors, learn until done, leave everything on disk.

    collect   collectors play until the buffer says stop              (supervised, restarted)
    learn     batch ─▶ update ─▶ save ─▶ publish to engines, pool, buffer     (``_learn``)
    measure   an evaluation every ``eval.every`` updates, beside both

Nobody waits for the tracker. A dead collector or engine is restarted; a dead learner ends the run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import ray

from rlforge.actors.cluster import RunActors, explained, ray_started, start_actors
from rlforge.actors.colocation import update_in_turn
from rlforge.actors.process import restarted
from rlforge.actors.specs import RunGraph
from rlforge.actors.watch import EngineWatch
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.rollout.evaluation import plan_evaluation, summarise
from rlforge.rollout.lineup import eval_envs, eval_opponents
from rlforge.system.checkpoint import checkpoint_version, latest_checkpoint, step_name
from rlforge.system.utilisation import Utilisation
from rlforge.tracking.display import Display, make_display
from rlforge.tracking.files import open_log
from rlforge.train.resume import BEFORE_ALL, Retention, rewind
from rlforge.types import Checkpoint, EvalResult, PolicyRef, value

log = logging.getLogger(__name__)

ONE_SIGNAL_S = 1.0
"""Signals closer together than this are one: shells and ``timeout`` send them twice."""

POLL_S = 0.5
"""Seconds between looks at the tracker for the progress display."""

ENGINE_POLL_S = 5.0
"""Seconds between throughput reports of the engines."""


@value
class Outcome:
    """How a run ended. evals: the last evaluation per environment and opponent."""

    run_dir: Path
    version: int
    interrupted: bool
    wall_s: float
    evals: tuple[EvalResult, ...]

    def objective(self) -> float:
        """What a sweeper maximises: mean win rate of the last evaluations, ``base`` aside."""
        rates = [result.win_rate for result in self.evals if result.opponent != "base"]
        rates = rates or [result.win_rate for result in self.evals]
        return sum(rates) / len(rates) if rates else 0.0


class Run:
    """One training run in ``run_dir``, which exists and is locked by the caller."""

    def __init__(
        self, config: RunConfig, graph: RunGraph, hardware: HardwareConfig, run_dir: Path
    ) -> None:
        self._config, self._graph, self._hardware = config, graph, hardware
        self._run_dir = run_dir
        self._newest = Checkpoint(uid=step_name(0), version=0, path=config.learner.initial_adapter)
        self._retention = Retention(run_dir / "checkpoints", config.learner.keep_checkpoints)
        self._version = 0
        self._evals: dict[tuple[str, str], EvalResult] = {}
        self._interrupted = False
        self._interrupted_at = 0.0
        self._evaluation: asyncio.Task[None] | None = None
        self._publication: asyncio.Task[None] | None = None
        self._started = time.time()
        self._live: RunActors | None = None
        self._display: Display
        self._state_saved = 0
        self._engines_seen = EngineWatch(self._started)
        self._utilisation = Utilisation(self._started)  # begun anew once the actors are up
        self._restarts = 0

    @property
    def _cast(self) -> RunActors:
        assert self._live is not None, "the actors are started first"
        return self._live

    def execute(self, *, resume: bool) -> Outcome:
        """Train to the end or to the first signal; RunError with the cause when it cannot go on."""
        with ray_started(self._hardware, self._graph.num_cpus):
            return asyncio.run(self._main(resume))

    async def _main(self, resume: bool) -> Outcome:
        open_log("run", str(self._run_dir))
        with make_display(self._config.tracker, self._config.name) as display:
            self._display = display
            display.note("starting the actors")
            try:
                await self._begin_and_train(resume)
            except (BaseExceptionGroup, ray.exceptions.RayError) as error:
                raise await self._failed(explained(error, self._live, self._run_dir)) from None
            outcome = Outcome(
                run_dir=self._run_dir,
                version=self._version,
                interrupted=self._interrupted,
                wall_s=time.time() - self._started,
                evals=tuple(self._evals.values()),
            )
            await self._cast.tracker.close.remote(self._summary(outcome))
            display.show(await self._cast.tracker.progress.remote())
        return outcome

    async def _begin_and_train(self, resume: bool) -> None:
        parts = len((self._run_dir / "command.txt").read_text().splitlines())
        self._live = await start_actors(
            self._graph, self._config, self._hardware, self._run_dir, parts - 1
        )
        self._catch_signals()
        await (self._continue() if resume else self._begin())
        await self._train()

    async def _failed(self, failure: BaseException) -> BaseException:
        """Write down that the run failed, and why; returns ``failure``."""
        if self._live is not None:
            summary = {"status": "failed", "error": str(failure), "updates": self._version}
            await self._cast.tracker.close.remote(summary)
        return failure

    # ---------------------------------------------------------------- the loops

    async def _train(self) -> None:
        """Collectors, watchers and the learn loop side by side; the first failure ends them all."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            watchers = [
                group.create_task(self._watch_progress()),
                group.create_task(self._watch_engines()),
            ]
            collecting = [
                group.create_task(self._keep_collecting(index))
                for index in range(len(self._cast.collectors))
            ]
            self._utilisation = Utilisation(time.time())
            if self._version == 0:
                self._evaluate(edge=True)
            await self._learn()
            await self._cast.buffer.stop.remote()
            await self._finish()
            for task in [*collecting, *watchers]:
                task.cancel()

    async def _learn(self) -> None:
        """Draw, update, save, publish: one round is one policy version."""
        learner, every = self._config.learner, self._config.eval.every
        update: Callable[[Any], Any] = self._cast.learner.update
        if self._hardware.alternate:
            update = partial(update_in_turn, self._cast, self._surviving, self._run_dir)
        while self._version < learner.total_updates and not self._interrupted:
            # The batch goes from the buffer to the learner; only its reference passes here.
            next_batch = self._cast.buffer.next_batch.options(num_returns=2)
            batch, drawn = next_batch.remote(self._version)
            if not await drawn:  # the buffer was stopped
                return
            result, span = await update(batch)
            self._version = result.version
            self._utilisation.learner_worked(span)
            beside = {
                "restarts": self._restarts,
                "buffer_size": await self._cast.buffer.size.remote(),
            }
            self._cast.tracker.log_learner.remote(
                result, self._utilisation.shares(time.time()) | beside
            )
            last = self._version == learner.total_updates
            if last:  # before the last version is out: games of it would teach nobody
                await self._cast.buffer.stop.remote()
            if self._version % learner.save_every == 0 or last:
                await self._save()
            if self._version % learner.state_every == 0:
                await self._save_state()
            if every and self._version % every == 0 and not last:
                self._evaluate(edge=False)

    async def _save(self) -> None:
        """Write the version, and let it be published while the next update begins."""
        if self._newest.version == self._version:
            return
        self._newest = await self._cast.learner.save(self._version, self._newest.uid)
        await self._published()
        self._publication = self._group.create_task(self._publish(self._newest))

    async def _publish(self, checkpoint: Checkpoint) -> None:
        """Engines first, then games under way, the pool, room for more: none asks too early."""
        await self._load(checkpoint.policy())
        for collector in self._cast.collectors:
            collector.use_version.remote(checkpoint.policy())
        snapshot = await self._cast.pool.add_checkpoint.remote(checkpoint)
        await self._cast.buffer.set_version.remote(checkpoint.version)
        self._cast.tracker.log_pool.remote(snapshot)
        self._retention.prune(await self._cast.pool.needed.remote(), checkpoint.version)

    async def _load(self, policy: PolicyRef) -> None:
        await asyncio.gather(
            *(
                self._surviving(f"engine-{index}", engine.load, policy)
                for index, engine in enumerate(self._cast.engines)
            )
        )

    async def _published(self) -> None:
        if self._publication is not None:
            await self._publication

    async def _save_state(self) -> None:
        """Make the newest version one that ``--resume`` can continue from."""
        if self._state_saved == self._version:
            return
        self._state_saved = self._version
        await self._save()
        await self._published()
        self._retention.resumable = await self._cast.pool.needed.remote()
        pool, buffer = await asyncio.gather(
            self._cast.pool.state_dict.remote(), self._cast.buffer.state_dict.remote()
        )
        state = {
            "pool": pool,
            "buffer": buffer,
            "newest": dataclasses.asdict(self._newest),
            "evals": [dataclasses.asdict(result) for result in self._evals.values()],
        }
        await self._cast.learner.save_state(self._version, state)

    # ---------------------------------------------------------------- beginning and end

    async def _begin(self) -> None:
        """Version 0 is the model as it stands, or the adapter it starts from."""
        await self._publish(self._newest)

    async def _continue(self) -> None:
        """Take up the newest saved state; versions and records made after it are dropped."""
        path = latest_checkpoint(self._run_dir / "checkpoints", with_state=True)
        version = BEFORE_ALL if path is None else checkpoint_version(path)
        rewind(self._run_dir, version)
        await self._cast.tracker.resume.remote(version)  # which drops the lines of its own files
        if path is None:  # killed before its first state: it begins again
            await self._begin()
            return
        state = await self._cast.learner.load_state(version)
        self._version = self._state_saved = version
        self._newest = Checkpoint(**state["newest"])
        for row in state["evals"]:
            result = EvalResult(**row | {"ci95": tuple(row["ci95"])})
            self._evals[result.env_id, result.opponent] = result
        await asyncio.gather(
            self._cast.pool.load_state_dict.remote(state["pool"]),
            self._cast.buffer.load_state_dict.remote(state["buffer"]),
        )
        self._retention.resumable = await self._cast.pool.needed.remote()
        await self._load(self._newest.policy())
        for collector in self._cast.collectors:
            collector.use_version.remote(self._newest.policy())
        await self._cast.buffer.set_version.remote(version)

    async def _finish(self) -> None:
        """The last version is saved with its state; unless interrupted, it is measured."""
        await self._save_state() if self._version else await self._published()
        if self._evaluation is not None:
            if self._interrupted:
                self._evaluation.cancel()
            else:
                await self._evaluation
        if not self._interrupted:
            self._evaluate(edge=True)
            if self._evaluation is not None:
                await self._evaluation
        await self._look_at_engines()
        self._cast.tracker.log_pool.remote(await self._cast.pool.snapshot.remote())

    def _summary(self, outcome: Outcome) -> Mapping[str, Any]:
        return {
            "status": "interrupted" if outcome.interrupted else "done",
            "updates": outcome.version,
            "total_updates": self._config.learner.total_updates,
            "wall_s": outcome.wall_s,
            "seed": self._config.seed,
            "restarts": self._restarts,
            "objective": outcome.objective(),
            **self._utilisation.shares(time.time()),
        }

    def _catch_signals(self) -> None:
        """First Ctrl-C or SIGTERM: end after this update, checkpoint. Second: end at once."""

        def interrupt() -> None:
            now = time.monotonic()
            if self._interrupted:
                if now - self._interrupted_at > ONE_SIGNAL_S:
                    raise KeyboardInterrupt
                return
            self._interrupted, self._interrupted_at = True, now
            self._display.note("stopping: this update is finished and saved; again to stop at once")
            self._cast.buffer.stop.remote()

        for number in (SIGINT, SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, interrupt)

    # ---------------------------------------------------------------- beside the loop

    async def _keep_collecting(self, index: int) -> None:
        """Run one collector; when its process dies, let Ray restart it and go on."""
        await self._surviving(f"collector-{index}", self._cast.collectors[index].train)

    def _evaluate(self, *, edge: bool) -> None:
        """Measure the newest version in the background, after the evaluation before it."""
        before = self._evaluation
        checkpoint, step = self._newest, self._version
        settings = self._config.eval
        games = settings.final_games if edge and settings.final_games else settings.games
        specs = plan_evaluation(
            eval_envs(self._config),
            eval_opponents(self._config),
            checkpoint.policy(),
            games,
            step=step,
            seed=self._config.seed,
            max_games=settings.max_games_per_checkpoint,
        )

        async def measure() -> None:
            if before is not None:
                await before
            await self._published()
            hands = len(self._cast.collectors)
            shares = await asyncio.gather(
                *(
                    self._surviving(f"collector-{index}", collector.evaluate, specs[index::hands])
                    for index, collector in enumerate(self._cast.collectors)
                )
            )
            for result in summarise([record for share in shares for record in share], step):
                self._evals[(result.env_id, result.opponent)] = result
                self._cast.tracker.add_eval.remote(result)

        self._evaluation = self._group.create_task(self._retention.during(measure, checkpoint.uid))

    async def _watch_progress(self) -> None:
        while True:
            self._display.show(await self._cast.tracker.progress.remote())
            await asyncio.sleep(POLL_S)

    async def _watch_engines(self) -> None:
        while True:
            await self._look_at_engines()
            await asyncio.sleep(ENGINE_POLL_S)

    async def _look_at_engines(self) -> None:
        """Report each engine's queue and token rate; count its working time, and its deaths."""
        for index, engine in enumerate(self._cast.engines):
            try:
                report = await engine.report.remote()
            except ray.exceptions.RayActorError as error:
                log.warning("engine-%d does not answer: %s", index, error)
                continue
            self._utilisation.engines_worked(report.spans)
            seen, is_new = self._engines_seen.look(index, report, time.time())
            if is_new:
                self._count_restart(f"engine-{index}")
            self._cast.tracker.log_inference.remote(f"engine-{index}", seen)

    # ---------------------------------------------------------------- failures

    async def _surviving(self, name: str, method: Any, *arguments: Any) -> Any:
        """Call an actor's ``method``; again when its process died meanwhile and Ray restarts it.

        Ray counts the restarts that the config allows (``max_restarts``) and says "died" instead
        of "unavailable" when it gives up.
        """
        while True:
            try:
                return await method.remote(*arguments)
            except ray.exceptions.ActorUnavailableError as error:
                log.warning("%s died and is restarted: %s", name, error)
                if name.startswith("collector"):  # engines: see ``_look_at_engines``
                    self._count_restart(name)
                    await self._cast.buffer.release_all.remote(name)
                await restarted(self._cast.named[name], name)

    def _count_restart(self, name: str) -> None:
        self._restarts += 1
        self._display.note(f"{name} died and is restarted")
