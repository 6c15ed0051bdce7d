"""The policy side of a continuous run: the engine, and the deployments that it serves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.records import CONTROL
from rlforge.continuous.decisions.reward import HIGH, LOW, DecisionReward
from rlforge.continuous.loop.population import result_of
from rlforge.continuous.loop.trials import MarketTrials, answer_probes, market_probes
from rlforge.continuous.market.books import Settled
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.serving.client import STATE_DIR
from rlforge.continuous.serving.metrics import Metrics
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.server import Checks
from rlforge.continuous.serving.service import DeploymentService
from rlforge.engines.base import Engine
from rlforge.models.load import load_tokenizer, stop_token_ids
from rlforge.run.actors.engine_client import REPORT_POLL_S, EngineState, RemoteEngine
from rlforge.run.lifecycle import RunContext
from rlforge.system.checkpoint import step_name
from rlforge.types import Checkpoint, PolicyRef, SamplingParams, value


@value
class Deployed:
    """The result of a deployment; ``success`` is None without one, and during a trial."""

    success: bool | None
    reason: str = ""


def _step(deployment: Deployment) -> str | None:
    """The checkpoint of this run that was deployed; None for an adapter from elsewhere."""
    if deployment.number == 0:
        return step_name(0)
    folder, _, name = deployment.source.rpartition("/")
    return name if folder == "checkpoints" else None


@value
class PolicySide:
    """The engine that answers, and the deployments that it serves.

    Learning knows deployments by the names of their checkpoints, ``step-N``; the base model is
    ``step-0``. Adapters from elsewhere have no such name: learning neither continues from them nor
    learns from their decisions.
    """

    engine: Engine
    service: DeploymentService
    metrics: Metrics
    # None without a market.
    trials: MarketTrials | None
    params: SamplingParams
    tokenizer: Any

    def serving(self) -> str:
        """The run's own version that serves, or served last; in a trial the current one."""
        return next(step for step in map(_step, self.service.stack()) if step is not None)

    def foreign(self) -> Mapping[str, str]:
        """The sources of deployments from elsewhere, by ``Deployment.uid``."""
        return {d.uid: d.source for d in self.service.history() if _step(d) is None}

    def needed(self) -> Collection[str]:
        """Versions from which learning may have to continue."""
        served = map(_step, self.service.served())
        return {self.serving(), *(step for step in served if step is not None)}

    async def deploy(self, checkpoint: Checkpoint) -> Deployed:
        """Deploy ``checkpoint``, unless it serves already."""
        # Deployment 0 is the base model, though step-0 may be ``learner.initial_adapter``.
        if any(d.number and _step(d) == checkpoint.uid for d in self.service.served()):
            return Deployed(success=True)
        deployment = await self.service.deploy(checkpoint)
        if deployment.phase == "trial":
            return Deployed(success=None, reason=f"{deployment.uid} is on trial")
        return Deployed(success=deployment.succeeded, reason=deployment.reason)


@contextlib.asynccontextmanager
async def policy_side(context: RunContext[ContinuousConfig]) -> AsyncIterator[PolicySide]:
    config = context.config
    tokenizer = load_tokenizer(config.model)
    params = config.engine.sampling(stop_token_ids(config.model, tokenizer))
    engine = RemoteEngine(
        context.actors.engines,
        client="continuous",
        timeout_s=config.engine.request_timeout_s,
        poll_s=REPORT_POLL_S,
        elastic=config.hardware.elastic,
        on_change=partial(follow_engine, context),
    )
    metrics = Metrics()
    checks, trials = _tests(config, context.run_dir, engine, tokenizer, params)
    async with contextlib.AsyncExitStack() as stack:
        # The engine is closed after the service, whose changes may still use it.
        stack.push_async_callback(engine.close)
        service = await DeploymentService.open(
            context.run_dir / STATE_DIR,
            engine,
            config.deployment,
            config.model,
            checks.probes,
            holdout=checks.holdout,
            on_phase=metrics.on_phase,
            rewards=reward_bounds(config),
        )
        stack.push_async_callback(service.close)
        yield PolicySide(
            engine=engine,
            service=service,
            metrics=metrics,
            trials=trials,
            params=params,
            tokenizer=tokenizer,
        )


def follow_engine(context: RunContext[ContinuousConfig], name: str, state: EngineState) -> None:
    """Keep the absent actors of the run, and note what becomes of an engine."""
    absent = context.actors.absent
    if state == "here":
        # An engine that is there from the start was never absent.
        if name in absent and context.hardware.elastic:
            context.note(f"{name} has joined")
        absent.discard(name)
        return
    absent.add(name)
    context.note(
        f"{name} died and is restarted"
        if state == "away"
        else f"{name} is gone for good: see logs/{name}.log"
    )


def checks_of_run(
    run_dir: Path, config: ContinuousConfig, engine: Engine, tokenizer: Any
) -> Checks:
    """Checks of a run's versions, for a service with this configuration."""
    params = config.engine.sampling(stop_token_ids(config.model, tokenizer))
    return _tests(config, run_dir, engine, tokenizer, params)[0]


def _tests(
    config: ContinuousConfig, run_dir: Path, engine: Engine, tokenizer: Any, params: SamplingParams
) -> tuple[Checks, MarketTrials | None]:
    if not config.has_market:
        return Checks(probes=answer_probes(config, tokenizer, params), holdout=None), None
    constrained = config.continuous.constrained
    prompter = AgentPrompter(config, config.market, tokenizer, constrained=constrained)
    first, reward = first_version(config, run_dir), reward_of_settled(config)
    trials = MarketTrials(config, engine, prompter, params, reward, first)
    checks = Checks(
        probes=market_probes(config, prompter, params),
        holdout=trials.holdout if config.deployment.holdout_games else None,
    )
    return checks, trials


def first_version(config: ContinuousConfig, run_dir: Path) -> PolicyRef:
    """The version that the run begins with: the base model, or ``learner.initial_adapter``."""
    if config.learner.initial_adapter is None:
        return PolicyRef(uid="base", kind="checkpoint")
    # The run's own copy, because the user may move or delete the adapter.
    path = str(run_dir / "checkpoints" / step_name(0))
    return PolicyRef(uid=CONTROL, kind="checkpoint", path_or_name=path)


def reward_bounds(config: ContinuousConfig) -> tuple[float, float]:
    """The least and the largest outcome of an answer, of a market or reported by a client."""
    serve, invalid = config.serve, config.continuous.invalid_reward
    bounds = [LOW, HIGH, serve.outcome_low, serve.outcome_high]
    if invalid is not None:
        bounds.append(invalid)
    return min(bounds), max(bounds)


def reward_of_settled(config: ContinuousConfig) -> Callable[[Settled], float]:
    """The reward of a settled decision; ``continuous.invalid_reward`` of a refused action."""
    invalid, reward = config.continuous.invalid_reward, DecisionReward(config.decision_reward)

    def reward_of(settled: Settled) -> float:
        if settled.invalid and invalid is not None:
            return invalid
        return reward(result_of(settled)).reward

    return reward_of
