"""Where the decisions of a continuous run come from: see ``continuous.source``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.episodes import EpisodesDriver
from rlforge.continuous.journal import Entry
from rlforge.continuous.policy_side import PolicySide, continuous_config, reward_of_settled
from rlforge.continuous.population import AgentModel, Labels, Population, SimulationState, Tick
from rlforge.continuous.publishing import DailyPush
from rlforge.continuous.requests import AnswerLog
from rlforge.continuous.session import Ask
from rlforge.continuous.simulation import (
    Driver,
    RecordedDriver,
    SimulatedTimeDriver,
    WaitingDriver,
    WallClockDriver,
    load_simulation_state,
    simulation_state_path,
)
from rlforge.engines.base import decoder
from rlforge.errors import RunError
from rlforge.serving.service import DeploymentService
from rlforge.system.checkpoint import step_name
from rlforge.training.lifecycle import RunContext
from rlforge.trajectories.grid import WallClock, WindowGrid, window_start
from rlforge.trajectories.reader import StoreReader
from rlforge.trajectories.records import CONTROL, Decision
from rlforge.trajectories.store import TrajectoryStore, store_folder
from rlforge.trajectories.windows import Windows
from rlforge.types import Completion, PolicyRef, value


@value
class Source:
    """Decisions in windows, as the trainer sees them.

    driver: lets time pass. next_window: the window to work on after another one, or first, after
    None; None where there is none. store, push: the run's own store, and its upload; None where
    decisions are only read. answers: makes decisions of answers over HTTP.
    """

    driver: Driver
    windows: Windows
    next_window: Callable[[str | None], str | None]
    store: TrajectoryStore | None = None
    push: DailyPush | None = None
    answers: AnswerLog | None = None


@contextlib.asynccontextmanager
async def source_of(
    context: RunContext, policy: PolicySide, last: Entry | None, stop: asyncio.Event
) -> AsyncIterator[Source]:
    """The source that ``continuous.source`` names, in the state after window ``last``."""
    config = continuous_config(context)
    if config.continuous.source == "store":
        with contextlib.closing(StoreReader(store_folder(config.store, context.run_dir))) as reader:
            yield _recorded_source(config, policy, reader, stop)
        return
    store = TrajectoryStore(store_folder(config.store, context.run_dir), config.store)
    with contextlib.closing(store):
        made = {"market": _market, "episodes": _episodes, "requests": _requests}
        async with made[config.continuous.source](context, policy, store, last, stop) as source:
            yield source


# ---------------------------------------------------------------- a market


@contextlib.asynccontextmanager
async def _market(
    context: RunContext,
    policy: PolicySide,
    store: TrajectoryStore,
    last: Entry | None,
    stop: asyncio.Event,
) -> AsyncIterator[Source]:
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
    assert policy.prompter is not None, "a market has prompts"
    population = Population(
        state,
        AgentModel(
            prompter=policy.prompter,
            answer=_answers(config, policy, context.run_dir),
            name=config.model.name or config.model.kind,
            seed=config.seed,
        ),
        Labels(
            prefix=f"{config.name}-{config.seed}",
            now=now,
            window_of=WindowGrid(config.window.minutes).id_of,
        ),
        reward_of_settled(config),
        _recorder(store, policy.service, context.actors.tracker),
        await asyncio.to_thread(_recorded, store, last),
    )
    windows = Windows(store, config.window)
    driver: Driver
    if simulated:
        driver = SimulatedTimeDriver(population, lambda: now(state), stop)
    else:
        driver = WallClockDriver(population, clock, config.market.tick_minutes * 60, stop)

    def following(done: str | None) -> str | None:
        if simulated and done is not None:
            return windows.grid.after(done)
        return next_by_clock(windows, driver.now(), done)

    push = DailyPush(config.store, store, context.run_dir)
    try:
        yield Source(driver=driver, windows=windows, next_window=following, store=store, push=push)
    finally:
        await driver.close()


def next_by_clock(windows: Windows, now: float, done: str | None) -> str:
    """The window of ``now`` first, then the one after ``done``.

    Windows may have passed while no process ran; of these, those without decisions are skipped.
    """
    if done is None:
        return windows.grid.id_of(now)
    following = windows.grid.after(done)
    if windows.due_at(following) > now:
        return following
    # Ids are in order of time.
    filled = [one for one in windows.ids() if windows.due_at(one) >= windows.due_at(following)]
    return filled[0] if filled else max(following, windows.grid.id_of(now), key=windows.due_at)


def _answers(config: ContinuousConfig, policy: PolicySide, run_dir: Path) -> Ask:
    """Asks the deployment that serves an agent.

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

    return answer


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


# ---------------------------------------------------------------- episodes


@contextlib.asynccontextmanager
async def _episodes(
    context: RunContext,
    policy: PolicySide,
    store: TrajectoryStore,
    last: Entry | None,
    stop: asyncio.Event,
) -> AsyncIterator[Source]:
    """Episodes of the user's function, those of window ``last`` that are not on record first."""
    config = continuous_config(context)
    windows = Windows(store, config.window)
    start = config.continuous.start if last is None else last.window_id
    begin, end = windows.grid.span(start)

    async def record(decisions: Sequence[Decision]) -> None:
        await asyncio.to_thread(store.append, decisions)
        for window_id, count in Counter(one.window_id for one in decisions).items():
            context.actors.tracker.log_decisions.remote(window_id, count)

    driver = EpisodesDriver(
        config,
        store,
        policy.tokenizer,
        _answers(config, policy, context.run_dir),
        end if last is not None and last.phase == "done" else begin,
        stop,
        record,
    )
    yield Source(
        driver=driver,
        windows=windows,
        next_window=lambda done: start if done is None else windows.grid.after(done),
        store=store,
        push=DailyPush(config.store, store, context.run_dir),
    )


# ---------------------------------------------------------------- requests


@contextlib.asynccontextmanager
async def _requests(
    context: RunContext,
    policy: PolicySide,
    store: TrajectoryStore,
    last: Entry | None,
    stop: asyncio.Event,
) -> AsyncIterator[Source]:
    """Answers to HTTP requests, in the windows of their outcomes."""
    config, clock = continuous_config(context), WallClock()
    windows = Windows(store, config.window)
    driver = WaitingDriver(clock, stop)
    answers = AnswerLog(
        context.run_dir / "answers.sqlite",
        store,
        config,
        policy.tokenizer,
        now=clock.now,
        on_decision=lambda window_id: context.actors.tracker.log_decisions.remote(window_id, 1),
    )
    with contextlib.closing(answers):
        await asyncio.to_thread(answers.finish)
        yield Source(
            driver=driver,
            windows=windows,
            next_window=lambda done: next_by_clock(windows, driver.now(), done),
            store=store,
            push=DailyPush(config.store, store, context.run_dir),
            answers=answers,
        )


# ---------------------------------------------------------------- a store


def _recorded_source(
    config: ContinuousConfig, policy: PolicySide, reader: StoreReader, stop: asyncio.Event
) -> Source:
    """The windows of a store, which is not written to."""
    windows = Windows(reader, config.window)
    ids = windows.ids()
    if not ids:
        raise RunError(f"{reader.layout.root} holds no decisions to learn from")
    _check_tokens(reader, ids[-1], policy)

    def following(done: str | None) -> str | None:
        return next((one for one in windows.ids() if done is None or one > done), None)

    return Source(driver=RecordedDriver(stop), windows=windows, next_window=following)


def _check_tokens(reader: StoreReader, window_id: str, policy: PolicySide) -> None:
    """Refuse decisions whose tokens are not those of the model's tokenizer."""
    decode, count = decoder(policy.tokenizer), len(policy.tokenizer)
    for decision in reader.decisions(window_id=window_id):
        answer = decision.completion
        if answer is None or not answer.token_ids:
            continue
        known = max(*answer.token_ids, *answer.prompt_token_ids) < count
        if not known or decode(answer.token_ids) != answer.text:
            raise RunError(
                f"{reader.layout.root}: the tokens of {decision.id} are not its answer "
                f"{answer.text!r} in this model's tokenizer; take the model that gave the answers "
                "(model=…)"
            )
