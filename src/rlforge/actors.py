"""Ray shells around the plain classes: each method hands on, none decides.

    TrackerActor  PoolActor  BufferActor  EngineActor  CollectorActor  LearnerActor

``ray_started`` is the one place where Ray is configured: quiet, loopback-only unless it joins a
cluster, and gone when the run is.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Before ``import ray``: afterwards Ray has already chosen to listen on every interface.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray

from rlforge.buffer import make_buffer
from rlforge.checkpoint import extend_checkpoint, write_checkpoint
from rlforge.collector import Collector, Delivery
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.engines.base import EngineStats
from rlforge.errors import EngineError, RlforgeError
from rlforge.graph import RunGraph
from rlforge.pool.pool import ModelPool
from rlforge.rewards.pipeline import RewardPipeline
from rlforge.schedule import GameScheduler
from rlforge.seats import SeatAnswers
from rlforge.tracking.files import GameWriter
from rlforge.tracking.tracker import Tracker
from rlforge.types import (
    Checkpoint,
    Completion,
    EvalResult,
    GameRecord,
    GameSpec,
    PolicyRef,
    SamplingParams,
    TrainBatch,
    UpdateResult,
    value,
)
from rlforge.utilisation import Span
from rlforge.validate import fixed_opponents, train_envs

log = logging.getLogger(__name__)


@contextlib.contextmanager
def ray_started(hardware: HardwareConfig, graph: RunGraph) -> Iterator[None]:
    """A Ray of our own for the block, or a connection to ``hardware.ray_address``."""
    quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if hardware.ray_address is not None:
        ray.init(address=hardware.ray_address, **quiet)
    else:
        # Our own Ray counts cores for placement only: the small actors share what there is.
        cpus = max(hardware.num_cpus or 1, round(graph.num_cpus))
        ray.init(num_cpus=cpus, num_gpus=hardware.num_gpus, include_dashboard=False, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _enter(name: str, run_dir: str) -> None:
    """What every actor process does first: its own log file, and tracebacks of hard crashes."""
    logs = Path(run_dir) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(logs / f"{name}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("rlforge")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    root.propagate = False
    faulthandler.enable(handler.stream)
    root.info("%s started as process %d", name, os.getpid())


def _limit_threads(threads: int | None) -> None:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)


@ray.remote(num_cpus=0)
class TrackerActor:
    """Hears everybody; nobody waits for it."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        _enter("tracker", run_dir)
        self._tracker = Tracker(
            Path(run_dir), config.tracker, config.name, config.learner.total_updates
        )

    def add_games(self, records: Sequence[GameRecord]) -> None:
        self._tracker.add_games(records)

    def add_eval(self, result: EvalResult) -> None:
        self._tracker.add_eval(result)

    def log_inference(self, engine: str, stats: Mapping[str, float]) -> None:
        self._tracker.log_inference(engine, stats)

    def log_learner(self, result: UpdateResult, shares: Mapping[str, float]) -> None:
        self._tracker.log_learner(result, shares)

    def resume(self, version: int) -> None:
        self._tracker.resume(version)

    def log_pool(self, snapshot: Mapping[str, Any]) -> None:
        self._tracker.log_pool(snapshot)

    def put(self, key: str, number: float) -> None:
        self._tracker.put(key, number)

    def progress(self) -> Any:
        return self._tracker.progress()

    def close(self, summary: Mapping[str, Any]) -> None:
        self._tracker.close(summary)


@ray.remote(num_cpus=0)
class PoolActor:
    """Who plays whom: the pool's ratings and the schedule drawn from it."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        _enter("pool", run_dir)
        group_size = getattr(config.algorithm, "group_size", 1)
        self._pool = ModelPool(config.pool, fixed_opponents(config), seed=config.seed)
        self._scheduler = GameScheduler(
            train_envs(config), self._pool, group_size=group_size, seed=config.seed
        )

    def add_checkpoint(self, checkpoint: Checkpoint) -> dict[str, Any]:
        self._pool.add_checkpoint(checkpoint)
        return self._pool.snapshot()

    def current(self) -> Checkpoint:
        return self._pool.current()

    def active(self) -> list[str]:
        return [policy.uid for policy in self._pool.active()]

    def next_games(self, count: int) -> list[GameSpec]:
        return self._scheduler.next_games(count)

    def push_outcomes(self, records: Sequence[GameRecord]) -> None:
        for record in records:
            self._pool.push_outcome(record)

    def snapshot(self) -> dict[str, Any]:
        return self._pool.snapshot()

    def state_dict(self) -> dict[str, Any]:
        return {"pool": self._pool.state_dict(), "schedule": self._scheduler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pool.load_state_dict(state["pool"])
        self._scheduler.load_state_dict(state["schedule"])


@ray.remote(num_cpus=0)
class BufferActor:
    """Shaped steps between collectors and learner; its waits are the pipeline's back-pressure."""

    def __init__(self, config: RunConfig, run_dir: str) -> None:
        _enter("buffer", run_dir)
        self._rewards = RewardPipeline(config.rewards)
        self._batch_size = config.learner.batch_size
        self._buffer = make_buffer(
            config.buffer,
            batch_size=config.learner.batch_size,
            batch_delay=config.learner.batch_delay_buffer,
            seed=config.seed,
        )
        self._batches = Path(run_dir) / "batches" if config.buffer.save_batches else None
        self._changed = asyncio.Condition()
        self._stopped = False
        self._reserved: dict[str, int] = {}

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
        """Shape and keep what is learned from; give back the places of games that ended."""
        episodes = [
            episode
            for record, learnable in zip(delivery.records, delivery.learnable, strict=True)
            if learnable
            for episode in self._rewards.shape(record)
        ]
        # A failed game's replacement goes on in its place, so only played games give it back.
        ended = sum(record.error is None for record in delivery.records)
        async with self._changed:
            self._buffer.add(episodes)
            ended = min(ended, self._reserved.get(collector, 0))
            self._reserved[collector] = self._reserved.get(collector, 0) - ended
            self._buffer.release(ended)
            self._changed.notify_all()

    async def next_batch(self, version: int) -> TrainBatch | None:
        """The batch for the update that makes ``version`` + 1; waits for it. None: stopped."""
        async with self._changed:
            while not self._stopped and not self._buffer.ready():
                await self._changed.wait()
            if self._stopped:
                return None
            drawn = self._buffer.draw(self._batch_size, version)
            self._changed.notify_all()
        batch = TrainBatch(
            steps=tuple(self._rewards.on_draw(drawn.steps)),
            whole_episodes=drawn.whole_episodes,
            min_version=drawn.min_version,
            max_version=drawn.max_version,
            dropped_stale=drawn.dropped_stale,
        )
        if self._batches is not None:
            from rlforge.batch_files import write_batch

            self._batches.mkdir(exist_ok=True)
            await asyncio.to_thread(
                write_batch, self._batches / f"batch-{version + 1:06d}.parquet", batch
            )
        return batch

    async def set_version(self, version: int) -> None:
        """A new version is out: too old samples go, room for new games appears."""
        async with self._changed:
            self._buffer.set_version(version)
            self._changed.notify_all()

    async def stop(self) -> None:
        """Wake all waiters for the last time."""
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


@value
class Request:
    """One generation on its way to an engine actor; ``ticket`` is unique for its client."""

    ticket: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    policy: PolicyRef


Answered = tuple[int, Completion | EngineError]


@ray.remote(num_cpus=1, max_concurrency=1000)
class EngineActor:
    """A generator behind a mailbox: requests come in bundles, answers leave in bundles."""

    def __init__(
        self, config: RunConfig, hardware: HardwareConfig, name: str, run_dir: str
    ) -> None:
        from rlforge.engines.registry import make_engine

        _enter(name, run_dir)
        _limit_threads(hardware.threads)
        self._engine = make_engine(config, device=hardware.device)
        self._outbox: dict[str, list[Answered]] = {}
        self._filled: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
        for request in requests:
            task = asyncio.create_task(self._serve(client, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: str, request: Request) -> None:
        try:
            answer: Completion | EngineError = await self._engine.generate(
                request.prompt_token_ids, request.params, request.policy
            )
        except EngineError as error:
            answer = error
        self._outbox.setdefault(client, []).append((request.ticket, answer))
        self._event(client).set()

    async def collect(self, client: str) -> list[Answered]:
        """Answers for ``client``, as soon as there is one."""
        event = self._event(client)
        await event.wait()
        event.clear()
        return self._outbox.pop(client, [])

    def _event(self, client: str) -> asyncio.Event:
        return self._filled.setdefault(client, asyncio.Event())

    async def load(self, policy: PolicyRef) -> None:
        await self._engine.load(policy)

    async def stats(self) -> tuple[EngineStats, list[Span]]:
        """Counters since the start, and the spans of work since the last call."""
        return self._engine.stats(), self._engine.take_busy_spans()

    async def close(self) -> None:
        await self._engine.close()


class RemoteEngine:
    """The engine protocol over engine actors: least-loaded routing, bundles, and second tries.

    A request whose engine died is asked again, ``retries`` times at most, a second apart: time
    for Ray to bring the actor back.
    """

    def __init__(self, engines: Sequence[Any], client: str, *, timeout_s: float, retries: int):
        self._engines = list(engines)
        self._client = client
        self._timeout_s = timeout_s
        self._retries = retries
        self._tickets = 0
        self._unsent: list[list[Request]] = [[] for _ in engines]
        self._pending: list[dict[int, asyncio.Future[Completion]]] = [{} for _ in engines]
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_planned = False

    async def generate(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        attempt = 0
        while True:
            try:
                return await self._ask(tuple(prompt_token_ids), params, policy)
            except ray.exceptions.RayActorError as error:
                attempt += 1
                if attempt > self._retries:
                    raise EngineError(f"the engine died while answering: {error}") from None
                await asyncio.sleep(1.0)

    async def _ask(
        self, prompt_token_ids: tuple[int, ...], params: SamplingParams, policy: PolicyRef
    ) -> Completion:
        loop = asyncio.get_running_loop()
        if not self._tasks:
            for index in range(len(self._engines)):
                self._start(self._pump(index))
        target = min(range(len(self._engines)), key=lambda i: len(self._pending[i]))
        self._tickets += 1
        request = Request(
            ticket=self._tickets, prompt_token_ids=prompt_token_ids, params=params, policy=policy
        )
        future: asyncio.Future[Completion] = loop.create_future()
        self._pending[target][request.ticket] = future
        self._unsent[target].append(request)
        if not self._flush_planned:
            # One bundle per turn of the event loop: all games that are ready now ask together.
            self._flush_planned = True
            loop.call_soon(self._flush)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await future
        except TimeoutError:
            raise EngineError(
                f"no answer from the engine within engine.request_timeout_s={self._timeout_s:g} s"
            ) from None
        finally:
            self._pending[target].pop(request.ticket, None)

    def _flush(self) -> None:
        self._flush_planned = False
        for index, requests in enumerate(self._unsent):
            if requests:
                self._unsent[index] = []
                self._start(self._send(index, requests))

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, index: int, requests: Sequence[Request]) -> None:
        try:
            await self._engines[index].submit.remote(self._client, requests)
        except ray.exceptions.RayActorError as error:
            self._fail(index, [request.ticket for request in requests], error)

    def _fail(self, index: int, tickets: Iterable[int], error: Exception) -> None:
        for ticket in tickets:
            waiting = self._pending[index].get(ticket)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

    async def _pump(self, index: int) -> None:
        """Hand answers of one engine to the games that wait for them."""
        while True:
            try:
                answers = await self._engines[index].collect.remote(self._client)
            except ray.exceptions.RayActorError as error:
                log.warning("engine-%d is gone: %s", index, error)
                self._fail(index, list(self._pending[index]), error)
                await asyncio.sleep(1.0)
                continue
            for ticket, answer in answers:
                waiting = self._pending[index].get(ticket)
                if waiting is None or waiting.done():
                    continue
                if isinstance(answer, EngineError):
                    waiting.set_exception(answer)
                else:
                    waiting.set_result(answer)


@ray.remote(num_cpus=1, max_concurrency=16)
class CollectorActor:
    """A collector with its ports tied to the other actors."""

    def __init__(
        self,
        config: RunConfig,
        name: str,
        run_dir: str,
        *,
        engines: Sequence[Any],
        pool: Any,
        buffer: Any,
        tracker: Any,
    ) -> None:
        from rlforge.models.load import load_tokenizer, stop_token_ids

        _enter(name, run_dir)
        self._name, self._pool, self._buffer, self._tracker = name, pool, buffer, tracker
        # A restarted collector must not read the answers meant for its predecessor.
        client = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self._engine = RemoteEngine(
            engines,
            client,
            timeout_s=config.engine.request_timeout_s,
            retries=config.engine.max_restarts,
        )
        tokenizer = load_tokenizer(config.model)
        self._answers = SeatAnswers(
            config, tokenizer, self._engine, stop_token_ids(config.model, tokenizer)
        )
        self._writer = GameWriter(Path(run_dir), name) if config.collector.save_games else None
        self._collector = Collector(config.collector, self, self._answers.for_game)

    async def train(self) -> None:
        try:
            await self._collector.train()
        finally:
            if self._writer is not None:
                self._writer.flush()

    async def evaluate(self, specs: Sequence[GameSpec]) -> list[GameRecord]:
        records = await self._collector.evaluate(specs)
        if self._writer is not None:
            self._writer.add(records)
        await self._pool.push_outcomes.remote([_outline(record) for record in records])
        return [_outline(record) for record in records]

    async def next_games(self, wanted: int) -> list[GameSpec] | None:
        granted = await self._buffer.reserve.remote(self._name, wanted)
        return await self._pool.next_games.remote(granted) if granted else None

    async def deliver(self, delivery: Delivery) -> None:
        if self._writer is not None:
            self._writer.add(delivery.records)
        outlines = [_outline(record) for record in delivery.records]
        self._tracker.add_games.remote(outlines)
        self._pool.push_outcomes.remote(outlines)
        await self._buffer.deliver.remote(self._name, delivery)


def _outline(record: GameRecord) -> GameRecord:
    """The record without texts and tokens: what ratings and statistics need."""
    import dataclasses

    return dataclasses.replace(
        record,
        turns=tuple(
            dataclasses.replace(
                turn,
                observation="",
                completion=dataclasses.replace(turn.completion, text="", prompt_token_ids=()),
            )
            for turn in record.turns
        ),
    )


@ray.remote(num_cpus=1)
class LearnerActor:
    """The learner, its checkpoints on disk."""

    def __init__(self, config: RunConfig, hardware: HardwareConfig, run_dir: str) -> None:
        from rlforge.learner import make_learner

        _enter("learner", run_dir)
        _limit_threads(hardware.threads)
        self._checkpoints = Path(run_dir) / "checkpoints"
        self._config = config
        self._learner = make_learner(config, device=hardware.device)

    def update(self, batch: TrainBatch | None) -> tuple[UpdateResult, Span] | None:
        """Learn from ``batch``; also says when. None in, None out: the buffer was stopped."""
        if batch is None:
            return None
        started = time.time()
        result = self._learner.update(batch)
        return result, (started, time.time())

    def save(self, version: int, parent_uid: str | None) -> Checkpoint:
        """Write version ``version`` as it is now."""
        path = write_checkpoint(
            self._checkpoints,
            f"step-{version}",
            self._learner.save,
            {"version": version, "experiment": self._config.name},
        )
        return Checkpoint(
            uid=f"step-{version}", version=version, path=str(path), parent_uid=parent_uid
        )

    def save_state(self, version: int, others: Mapping[str, Any]) -> None:
        """Put beside version ``version`` what a resumed run needs."""
        from rlforge.learner import write_state

        path = self._checkpoints / f"step-{version}"
        extend_checkpoint(path, lambda folder: write_state(folder, self._learner, others))

    def load_state(self, version: int) -> dict[str, Any]:
        """Continue from version ``version``; returns what the other actors saved."""
        from rlforge.learner import read_state

        return read_state(self._checkpoints / f"step-{version}", self._learner)


@value
class Cast:
    """All live actors of a run."""

    tracker: Any
    pool: Any
    buffer: Any
    engines: tuple[Any, ...]
    collectors: tuple[Any, ...]
    learner: Any


async def start_actors(config: RunConfig, hardware: HardwareConfig, run_dir: str) -> Cast:
    """Start everything; engines and learner load the model side by side.

    Raises what an actor's constructor raised, wrapped by Ray (see ``reason``).
    """
    tracker = TrackerActor.remote(config, run_dir)
    pool = PoolActor.remote(config, run_dir)
    buffer = BufferActor.remote(config, run_dir)
    engines = tuple(
        EngineActor.options(
            num_gpus=hardware.engine_gpus, max_restarts=config.engine.max_restarts
        ).remote(config, hardware, f"engine-{index}", run_dir)
        for index in range(config.engine.num_engines)
    )
    learner = LearnerActor.options(num_gpus=hardware.learner_gpus).remote(config, hardware, run_dir)
    collectors = tuple(
        CollectorActor.options(max_restarts=config.collector.max_restarts).remote(
            config,
            f"collector-{index}",
            run_dir,
            engines=engines,
            pool=pool,
            buffer=buffer,
            tracker=tracker,
        )
        for index in range(config.collector.num_collectors)
    )
    everyone = (tracker, pool, buffer, *engines, learner, *collectors)
    await asyncio.gather(*(actor.__ray_ready__.remote() for actor in everyone))
    return Cast(
        tracker=tracker,
        pool=pool,
        buffer=buffer,
        engines=engines,
        collectors=collectors,
        learner=learner,
    )


def reason(error: BaseException) -> str:
    """The user's sentence inside whatever Ray wrapped around it."""
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, RlforgeError):
        return str(cause)
    return f"{type(cause).__name__}: {str(cause).splitlines()[0] if str(cause) else ''}"
