"""From a configuration to the parts of a continuous run, living and ready."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlforge.algorithms import make_algorithm
from rlforge.config.continuous import ContinuousConfig
from rlforge.config.schema import HardwareConfig
from rlforge.continuous.calendar import Calendar
from rlforge.continuous.journal import Entry, Journal
from rlforge.continuous.learner import WindowLearner
from rlforge.continuous.population import Population, SimulationState
from rlforge.continuous.probes import market_probes
from rlforge.continuous.prompting import AgentPrompter
from rlforge.continuous.records import Records
from rlforge.continuous.scorebook import Scorebook
from rlforge.continuous.served import Served
from rlforge.continuous.simulation import SimulatedTimeDriver, SimulationDriver, WallClockDriver
from rlforge.continuous.snapshot import load_simulation_state
from rlforge.continuous.trainer import Parts, simulation_state_path
from rlforge.continuous.trials import MarketTrials
from rlforge.engines.base import Engine, LocalEngine
from rlforge.engines.registry import make_engine
from rlforge.learner import make_learner
from rlforge.learner.ranks import Ranks
from rlforge.market.books import Settled
from rlforge.models.load import load_tokenizer, resolve_device, stop_token_ids
from rlforge.ruler.base import Scorer
from rlforge.ruler.judge_backends import LocalModel
from rlforge.ruler.registry import make_scorer
from rlforge.serving.metrics import Metrics
from rlforge.serving.service import DeploymentService
from rlforge.tracking.files import RunPaths
from rlforge.trajectories.grid import WallClock, WindowGrid, window_start
from rlforge.trajectories.records import Decision, Outcome, Result
from rlforge.trajectories.reward import DecisionReward
from rlforge.trajectories.store import TrajectoryStore, store_folder
from rlforge.trajectories.windows import Windows
from rlforge.types import Completion, PolicyRef, SamplingParams, value

log = logging.getLogger(__name__)


@value
class Assembly:
    """A run that is ready to begin, or to go on. service: what the agents ask, and HTTP may."""

    parts: Parts
    service: DeploymentService
    service_folder: Path
    metrics: Metrics
    trials: MarketTrials
    engine: Engine


@contextlib.asynccontextmanager
async def assembled(
    config: ContinuousConfig,
    hardware: HardwareConfig,
    paths: RunPaths,
    stop: asyncio.Event,
    about: Mapping[str, Any],
) -> AsyncIterator[Assembly]:
    """Make all parts, from what ``paths`` holds where there is something; close them at the end.

    hardware: as resolved. Raises ConfigError, CheckpointError, EngineError or RunError when a part
    cannot be made or taken up.
    """
    async with contextlib.AsyncExitStack() as stack:
        journal = Journal(paths.root / "journal.sqlite")
        stack.callback(journal.close)
        engine = await asyncio.to_thread(_engine, config, hardware)
        stack.push_async_callback(engine.close)
        learner = await asyncio.to_thread(_learner, config, hardware, paths)
        store = TrajectoryStore(store_folder(config.store, paths.root), config.store)
        stack.callback(store.close)

        voice, reward = _voice(config), DecisionReward(config.decision_reward)
        rewarded = _rewarded(config, reward)
        trials = MarketTrials(config, engine, voice.speech, voice.params, rewarded)
        service_folder, metrics = paths.root / "deployments", Metrics()
        service = await DeploymentService.open(
            service_folder,
            engine,
            config.deployment,
            config.model,
            market_probes(config, voice.speech, voice.params),
            holdout=trials.holdout if config.deployment.holdout_games else None,
            on_phase=metrics.on_phase,
        )
        stack.push_async_callback(service.close)

        last = journal.last()
        life, time = _life(config, paths.root, last), _MarketTime(config)
        population = _population(
            config,
            life,
            time,
            voice,
            service,
            store,
            rewarded,
            recorded=await asyncio.to_thread(_recorded, store, last),
        )
        habitat: SimulationDriver
        if time.simulated:
            habitat = SimulatedTimeDriver(population, lambda: time.now(life), stop)
        else:
            habitat = WallClockDriver(population, time.clock, config.market.tick_minutes * 60, stop)
        stack.push_async_callback(habitat.close)
        scorer = _scorer(config, paths, engine, voice)
        stack.push_async_callback(scorer.close)

        parts = Parts(
            habitat=habitat,
            windows=Calendar(Windows(store, config.window), skips=not time.simulated),
            scorer=scorer,
            reward=reward,
            algorithm=make_algorithm(config.algorithm, config.engine.max_tokens),
            learner=learner,
            deployments=Served(service),
            journal=journal,
            records=Records(paths, config.tracker, config.name, config.continuous.windows, about),
            scorebook=Scorebook(paths.root / "scores"),
        )
        yield Assembly(
            parts=parts,
            service=service,
            service_folder=service_folder,
            metrics=metrics,
            trials=trials,
            engine=engine,
        )


@value
class _Voice:
    """How the agents speak: what their model reads and writes, and how it draws."""

    tokenizer: Any
    params: SamplingParams
    speech: AgentPrompter


def _voice(config: ContinuousConfig) -> _Voice:
    tokenizer = load_tokenizer(config.model)
    params = SamplingParams(
        temperature=config.engine.temperature,
        top_p=config.engine.top_p,
        max_tokens=config.engine.max_tokens,
        stop_token_ids=stop_token_ids(config.model, tokenizer),
    )
    speech = AgentPrompter(
        config.market,
        tokenizer,
        template=config.model.prompt_template,
        extraction=config.model.action_extraction,
    )
    return _Voice(tokenizer=tokenizer, params=params, speech=speech)


class _MarketTime:
    """The time of decisions: that of the market, or that of the clock on the wall."""

    def __init__(self, config: ContinuousConfig) -> None:
        self.simulated = config.window.clock == "simulated"
        self.clock = WallClock()
        self._begin = window_start(config.continuous.start)

    def now(self, life: SimulationState) -> float:
        return self._begin + life.world.minute * 60 if self.simulated else self.clock.now()


def _rewarded(config: ContinuousConfig, reward: DecisionReward) -> Callable[[Settled], float]:
    """The reward of a settled decision, or what a refused action costs."""
    invalid = config.continuous.invalid_reward

    def rewarded(settled: Settled) -> float:
        if settled.invalid and invalid is not None:
            return invalid
        return reward(_result(settled)).reward

    return rewarded


def _population(
    config: ContinuousConfig,
    life: SimulationState,
    time: _MarketTime,
    voice: _Voice,
    service: DeploymentService,
    store: TrajectoryStore,
    rewarded: Callable[[Settled], float],
    *,
    recorded: Mapping[str, Decision],
) -> Population:
    """The agents of ``life``, who ask the service like anybody else and tell it how they fared."""

    async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        seeded = dataclasses.replace(voice.params, seed=draw)
        return await service.generate(prompt, seeded, user=agent_id)

    async def heard(uid: str, decision_id: str, reward: float) -> None:
        await service.record_outcome(reward, uid=uid, key=decision_id)

    return Population(
        life,
        name=f"{config.name}-{config.seed}",
        seed=config.seed,
        speech=voice.speech,
        answer=answer,
        provider=config.model.name or config.model.kind,
        ledger=_StoreLedger(store),
        now=time.now,
        window_of=WindowGrid(config.window.minutes).id_of,
        reward=rewarded,
        heard=heard,
        recorded=recorded,
    )


class _StoreLedger:
    """The store as the population sees it: its syncs of the disk hold up nobody else."""

    def __init__(self, store: TrajectoryStore) -> None:
        self._store = store

    async def append(self, decisions: Sequence[Decision]) -> None:
        await asyncio.to_thread(self._store.append, decisions)

    async def complete(self, outcomes: Sequence[Outcome]) -> None:
        await asyncio.to_thread(self._store.complete, outcomes)


def _engine(config: ContinuousConfig, hardware: HardwareConfig) -> LocalEngine:
    return make_engine(
        config, device=hardware.device, threads=hardware.threads, gpus=hardware.engine_gpus
    )


def _learner(config: ContinuousConfig, hardware: HardwareConfig, paths: RunPaths) -> WindowLearner:
    """The learner, beside the engine or, where there is another card, on that.

    Schedules of the learning rate run over ``continuous.windows``, one update each.
    """
    device = resolve_device(hardware.device)
    if device.type == "cuda" and (hardware.num_gpus or 1) > 1:
        device = torch.device("cuda", 1)
    updates = config.continuous.windows or config.learner.total_updates
    settings = dataclasses.replace(config.learner, total_updates=updates)
    learner = make_learner(dataclasses.replace(config, learner=settings), device, Ranks())
    return WindowLearner(learner, paths.checkpoints, config.name)


def _scorer(config: ContinuousConfig, paths: RunPaths, engine: Engine, voice: _Voice) -> Scorer:
    """The scorer, which keeps what it learned with the run: one that is resumed still knows it.

    A judge that is the run's own model is that before training: it does not change.
    """
    local = LocalModel(
        generator=engine,
        tokenizer=voice.tokenizer,
        policy=PolicyRef(uid="base", kind="checkpoint"),
        stop_token_ids=voice.params.stop_token_ids,
    )
    ruler = config.ruler
    if ruler.model_path is None:
        ruler = dataclasses.replace(ruler, model_path=str(paths.root / "ruler"))
    return make_scorer(ruler, seed=config.seed, local=local)


def _life(config: ContinuousConfig, run_dir: Path, last: Entry | None) -> SimulationState:
    """The life that the newest window began with, to be lived again; a new run's own."""
    if last is None:
        return SimulationState(config.market, config.continuous.agents, config.seed)
    return load_simulation_state(simulation_state_path(run_dir, last.number))


def _recorded(store: TrajectoryStore, last: Entry | None) -> dict[str, Decision]:
    """What was decided since the newest window began, by id."""
    if last is None:
        return {}
    begin = window_start(last.window_id)
    windows = [one for one in store.window_ids() if window_start(one) >= begin]
    return {d.id: d for one in windows for d in store.decisions(window_id=one)}


def _result(settled: Settled) -> Result:
    return Result(
        pnl=settled.pnl,
        investment=settled.investment,
        hold_time_minutes=settled.hold_time_minutes,
        win_rate=settled.win_rate,
    )
