"""The parts of a continuous run: policy side, market side and learning side.

market    ──prompts──▶  policy    ──completions──▶  market
market    ──windows──▶  learning  ──checkpoints──▶  policy
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlforge.actors.colocation import update_in_turn
from rlforge.actors.engine_client import REPORT_POLL_S, RemoteEngine
from rlforge.actors.process import call_restarted
from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import Algorithm
from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.journal import Entry, Journal, ScoreFiles
from rlforge.continuous.learner import Update, WindowLearner
from rlforge.continuous.population import (
    AgentModel,
    Labels,
    Population,
    SimulationState,
    Tick,
)
from rlforge.continuous.publishing import DailyPush
from rlforge.continuous.simulation import (
    SimulatedTimeDriver,
    SimulationDriver,
    WallClockDriver,
    load_simulation_state,
    simulation_state_path,
)
from rlforge.continuous.trials import MarketTrials, market_probes
from rlforge.engines.base import Engine
from rlforge.games.trading import AgentPrompter
from rlforge.market.books import Settled
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.ruler.base import DecisionScorer
from rlforge.ruler.judge_backends import LocalModel
from rlforge.ruler.registry import make_scorer
from rlforge.serving.metrics import Metrics
from rlforge.serving.records import Deployment
from rlforge.serving.service import DeploymentService
from rlforge.system.checkpoint import step_name
from rlforge.training.lifecycle import RunContext
from rlforge.trajectories.grid import WallClock, WindowGrid, window_start
from rlforge.trajectories.records import CONTROL, Decision
from rlforge.trajectories.reward import DecisionReward, result_of
from rlforge.trajectories.store import TrajectoryStore, store_folder
from rlforge.trajectories.windows import Windows
from rlforge.types import Checkpoint, Completion, PolicyRef, SamplingParams, value

DEPLOYMENTS = "deployments"
"""Folder of the deployment service in the run directory."""


@value
class Deployed:
    """The result of a deployment.

    success: the version serves all users; None: there was none to deploy, or it is on trial.
    reason: why it does not serve.
    """

    success: bool | None
    reason: str = ""


NOTHING_TO_DEPLOY = Deployed(success=None)


class DeploymentsByStep:
    """The deployments of ``service``, each under the name of its checkpoint, ``step-N``.

    The base model is ``step-0``, because version 0 equals it. Adapters that were deployed from
    elsewhere have no such name: learning never continues from them, and their decisions are not
    learned from.
    """

    def __init__(self, service: DeploymentService) -> None:
        self._service = service

    def on_trial(self) -> bool:
        """Whether a new version is still being compared with the current one."""
        return self._service.trial is not None

    def serving(self) -> str:
        """The version that serves; during a trial, the one that the trial compares with.

        While an adapter from elsewhere serves: the newest one of this run that served before it.
        """
        return next(step for step in map(_step, self._service.stack()) if step is not None)

    def foreign(self) -> Mapping[str, str]:
        """The deployments from elsewhere: where each came from, by ``Deployment.uid``."""
        return {d.uid: d.source for d in self._service.history() if _step(d) is None}

    def needed(self) -> Collection[str]:
        """Versions from which learning may have to continue."""
        return {self.serving(), *self._served()}

    async def deploy(self, checkpoint: Checkpoint) -> Deployed:
        """Deploy ``checkpoint``, unless it serves already."""
        # Deployment 0 is the base model, which ``learner.initial_adapter`` differs from.
        if any(d.number and _step(d) == checkpoint.uid for d in self._service.served()):
            return Deployed(success=True)
        deployment = await self._service.deploy(checkpoint)
        if deployment.phase == "trial":
            return Deployed(success=None, reason=f"{deployment.uid} is on trial")
        return Deployed(success=deployment.succeeded, reason=deployment.reason)

    def _served(self) -> set[str]:
        steps = map(_step, self._service.served())
        return {step for step in steps if step is not None}


def _step(deployment: Deployment) -> str | None:
    """The checkpoint of this run that was deployed; None for an adapter from elsewhere."""
    if deployment.number == 0:
        return step_name(0)
    folder, _, name = deployment.source.rpartition("/")
    return name if folder == "checkpoints" else None


@value
class PolicySide:
    """The engine that answers the agents, and the deployments that it serves.

    prompter, params, tokenizer: how the agents prompt the model and draw its answers.
    """

    engine: Engine
    service: DeploymentService
    deployments: DeploymentsByStep
    metrics: Metrics
    trials: MarketTrials
    prompter: AgentPrompter
    params: SamplingParams
    tokenizer: Any


@value
class MarketSide:
    """The simulation in which the agents act, and the windows of the decisions it stores.

    push: of ``store`` to the hub. simulated: time advances by ticks, not by the wall clock.
    """

    driver: SimulationDriver
    store: TrajectoryStore
    windows: Windows
    push: DailyPush
    simulated: bool


@value
class LearningSide:
    """The learner, and how decisions are scored and rewarded for it."""

    learner: WindowLearner
    scorer: DecisionScorer
    reward: DecisionReward
    algorithm: Algorithm


@value
class Assembly:
    """All parts of a run that is ready to begin or to be resumed."""

    policy: PolicySide
    market: MarketSide
    learning: LearningSide
    journal: Journal
    scores: ScoreFiles


@contextlib.asynccontextmanager
async def assembled(context: RunContext, stop: asyncio.Event) -> AsyncIterator[Assembly]:
    """Make all parts over the actors of a run, resuming what its directory holds.

    They are closed at the end of the block; the actors are the caller's. stop: set when the run is
    asked to end. Raises ConfigError, CheckpointError, EngineError or RunError when a part cannot be
    made or resumed.
    """
    run_dir = context.run_dir
    async with contextlib.AsyncExitStack() as stack:
        journal = stack.enter_context(contextlib.closing(Journal(run_dir / "journal.sqlite")))
        policy = await stack.enter_async_context(policy_side(context))
        learning = await stack.enter_async_context(learning_side(context, policy))
        market = await stack.enter_async_context(market_side(context, policy, journal.last(), stop))
        yield Assembly(
            policy=policy,
            market=market,
            learning=learning,
            journal=journal,
            scores=ScoreFiles(run_dir),
        )


def continuous_config(context: RunContext) -> ContinuousConfig:
    """The configuration of a continuous run."""
    assert isinstance(context.config, ContinuousConfig)
    return context.config


# ---------------------------------------------------------------- policy side


@contextlib.asynccontextmanager
async def policy_side(context: RunContext) -> AsyncIterator[PolicySide]:
    """The engines as one, and the deployments that they served last."""
    config = continuous_config(context)
    tokenizer = load_tokenizer(config.model)
    params = config.engine.sampling(stop_token_ids(config.model, tokenizer))
    prompter = AgentPrompter(config, config.market, tokenizer)
    engine = RemoteEngine(
        context.actors.engines,
        client="continuous",
        timeout_s=config.engine.request_timeout_s,
        poll_s=REPORT_POLL_S,
    )
    metrics = Metrics()
    trials = MarketTrials(config, engine, prompter, params, _reward_of_settled(config))
    try:
        service = await DeploymentService.open(
            context.run_dir / DEPLOYMENTS,
            engine,
            config.deployment,
            config.model,
            market_probes(config, prompter, params),
            holdout=trials.holdout if config.deployment.holdout_games else None,
            on_phase=metrics.on_phase,
        )
        try:
            yield PolicySide(
                engine=engine,
                service=service,
                deployments=DeploymentsByStep(service),
                metrics=metrics,
                trials=trials,
                prompter=prompter,
                params=params,
                tokenizer=tokenizer,
            )
        finally:
            await service.close()
    finally:
        await engine.close()


# ---------------------------------------------------------------- market side


@contextlib.asynccontextmanager
async def market_side(
    context: RunContext, policy: PolicySide, last: Entry | None, stop: asyncio.Event
) -> AsyncIterator[MarketSide]:
    """The market in the state that window ``last`` starts from; a new one where there is none."""
    config = continuous_config(context)
    simulated, clock = config.window.clock == "simulated", WallClock()
    begin = window_start(config.continuous.start)

    def now(state: SimulationState) -> float:
        return begin + state.world.minute * 60 if simulated else clock.now()

    if last is None:
        settings = config.continuous
        state = SimulationState(
            config.market, settings.agents, config.seed, settings.control_agents
        )
    else:
        state = load_simulation_state(simulation_state_path(context.run_dir, last.number))
    store = TrajectoryStore(store_folder(config.store, context.run_dir), config.store)
    with contextlib.closing(store):
        population = Population(
            state,
            _agent_model(config, policy, context.run_dir),
            Labels(
                prefix=f"{config.name}-{config.seed}",
                now=now,
                window_of=WindowGrid(config.window.minutes).id_of,
            ),
            _reward_of_settled(config),
            _recorder(store, policy.service, context.actors.tracker),
            await asyncio.to_thread(_recorded, store, last),
        )
        driver: SimulationDriver
        if simulated:
            driver = SimulatedTimeDriver(population, lambda: now(state), stop)
        else:
            driver = WallClockDriver(population, clock, config.market.tick_minutes * 60, stop)
        windows = Windows(store, config.window)
        try:
            push = DailyPush(config.store, store, context.run_dir)
            yield MarketSide(
                driver=driver, store=store, windows=windows, push=push, simulated=simulated
            )
        finally:
            await driver.close()


def _agent_model(config: ContinuousConfig, policy: PolicySide, run_dir: Path) -> AgentModel:
    """The model behind the agents: the deployment that serves them at each tick.

    Control agents are answered by version 0: the base model, or ``learner.initial_adapter``.
    """
    first = PolicyRef(uid="base", kind="checkpoint")
    if config.learner.initial_adapter is not None:
        path = str(run_dir / "checkpoints" / step_name(0))
        first = PolicyRef(uid=CONTROL, kind="checkpoint", path_or_name=path)

    async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        seeded = dataclasses.replace(policy.params, seed=draw)
        if agent_id.startswith(f"{CONTROL}-"):
            return await policy.engine.generate(prompt, seeded, first)
        return await policy.service.generate(prompt, seeded, user=agent_id)

    name = config.model.name or config.model.kind
    return AgentModel(prompter=policy.prompter, answer=answer, name=name, seed=config.seed)


def _recorder(
    store: TrajectoryStore, service: DeploymentService, tracker: Any
) -> Callable[[Tick], Any]:
    """Writes ticks to the store, and counts outcomes of the model in a trial of versions."""

    async def record(tick: Tick) -> None:
        if tick.decisions:
            await asyncio.to_thread(store.append, tick.decisions)
            for window_id, count in Counter(one.window_id for one in tick.decisions).items():
                tracker.log_decisions.remote(window_id, count)
        if tick.outcomes:
            await asyncio.to_thread(store.complete, tick.outcomes)
        for known, outcome in zip(tick.closed, tick.outcomes, strict=True):
            if known.policy:
                await service.record_outcome(
                    outcome.reward,
                    uid=known.policy,
                    key=known.decision_id,
                    cluster=f"{known.agent_id}/{known.episode}",
                    stage=str(known.episode),
                )

    return record


def _recorded(store: TrajectoryStore, last: Entry | None) -> dict[str, Decision]:
    """The decisions since the start of window ``last``, by id."""
    if last is None:
        return {}
    begin = window_start(last.window_id)
    windows = [one for one in store.window_ids() if window_start(one) >= begin]
    return {d.id: d for one in windows for d in store.decisions(window_id=one)}


def _reward_of_settled(config: ContinuousConfig) -> Callable[[Settled], float]:
    """The reward of a settled decision; ``continuous.invalid_reward`` of a refused action."""
    invalid, reward = config.continuous.invalid_reward, DecisionReward(config.decision_reward)

    def reward_of(settled: Settled) -> float:
        if settled.invalid and invalid is not None:
            return invalid
        return reward(result_of(settled)).reward

    return reward_of


# ---------------------------------------------------------------- learning side


@contextlib.asynccontextmanager
async def learning_side(context: RunContext, policy: PolicySide) -> AsyncIterator[LearningSide]:
    """The learner group, and the scorer with what it learned before."""
    config, actors, run_dir = continuous_config(context), context.actors, context.run_dir
    update: Update = actors.learner.update
    if context.hardware.alternate:
        update = partial(update_in_turn, actors, partial(call_restarted, actors.named), run_dir)
    scorer = _scorer(config, run_dir, policy)
    try:
        yield LearningSide(
            learner=WindowLearner(
                actors.learner, run_dir / "checkpoints", config.learner.keep_checkpoints, update
            ),
            scorer=scorer,
            reward=DecisionReward(config.decision_reward),
            algorithm=make_algorithm(config.algorithm, config.engine.max_tokens),
        )
    finally:
        await scorer.close()


def _scorer(config: ContinuousConfig, run_dir: Path, policy: PolicySide) -> DecisionScorer:
    """The scorer; what it learns is kept in the run directory.

    ``ruler.judge.model=engine`` is the base model, which does not change during training.
    """
    local = LocalModel(
        generator=policy.engine,
        tokenizer=policy.tokenizer,
        policy=PolicyRef(uid="base", kind="checkpoint"),
        stop_token_ids=policy.params.stop_token_ids,
    )
    ruler = config.ruler
    if ruler.model_path is None:
        ruler = dataclasses.replace(ruler, model_path=str(run_dir / "ruler"))
    return make_scorer(ruler, seed=config.seed, local=local)
