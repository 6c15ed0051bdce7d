"""Where the decisions of a continuous run come from: see ``continuous.source``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.decisions.records import CONTROL, Decision, WindowGrid, window_start
from rlforge.continuous.decisions.store import StoreReader, TrajectoryStore, store_folder
from rlforge.continuous.decisions.windows import Windows
from rlforge.continuous.loop.episodes import EpisodesDriver
from rlforge.continuous.loop.journal import Entry
from rlforge.continuous.loop.model_traders import ModelTraders
from rlforge.continuous.loop.policy_side import PolicySide, first_version, reward_of_settled
from rlforge.continuous.loop.population import AgentModel, Labels, Population, SimulationState, Tick
from rlforge.continuous.loop.publishing import DailyPush
from rlforge.continuous.loop.requests import AnswerLog
from rlforge.continuous.loop.simulation import (
    Driver,
    RecordedDriver,
    SimulatedTimeDriver,
    WaitingDriver,
    WallClock,
    WallClockDriver,
    load_simulation_state,
    simulation_state_path,
)
from rlforge.engines.base import decoder
from rlforge.errors import RunError
from rlforge.run.lifecycle import RunContext
from rlforge.types import Completion, value


@value
class Source:
    """Decisions in windows, as the trainer sees them.

    next_window: the one after another, or the first after None; None where there is none. store,
    push: None where decisions are only read. answers: makes decisions of answers over HTTP.
    """

    driver: Driver
    windows: Windows
    next_window: Callable[[str | None], str | None]
    store: TrajectoryStore | None = None
    push: DailyPush | None = None
    answers: AnswerLog | None = None


@contextlib.asynccontextmanager
async def source_of(
    context: RunContext[ContinuousConfig],
    policy: PolicySide,
    last: Entry | None,
    stop: asyncio.Event,
) -> AsyncIterator[Source]:
    """The source that ``continuous.source`` names, in the state after window ``last``."""
    config = context.config
    if config.continuous.source == "store":
        reader = StoreReader(store_folder(config.store, context.run_dir))
        yield _recorded_source(config, policy, reader, stop)
        return
    with TrajectoryStore(store_folder(config.store, context.run_dir)) as store:
        made = {"market": _market, "episodes": _episodes, "requests": _requests}
        windows = Windows(store, config.window)
        # Rewards outside of bounds that were changed since are left out.
        if config.continuous.source == "requests":
            bounds = config.serve.outcome_low, config.serve.outcome_high
            windows = Windows(store, config.window, bounds)
        run = _Recording(
            context=context, policy=policy, store=store, windows=windows, last=last, stop=stop
        )
        async with made[config.continuous.source](run) as source:
            yield source


@value
class _Recording:
    """A run that records decisions in a store of its own. last: the newest window."""

    context: RunContext[ContinuousConfig]
    policy: PolicySide
    store: TrajectoryStore
    windows: Windows
    last: Entry | None
    stop: asyncio.Event

    @property
    def config(self) -> ContinuousConfig:
        return self.context.config

    async def append(self, decisions: Sequence[Decision]) -> None:
        await asyncio.to_thread(self.store.append, decisions)
        for window_id, count in Counter(one.window_id for one in decisions).items():
            self.count(window_id, count)

    def count(self, window_id: str, decisions: int = 1) -> None:
        self.context.actors.tracker.log_decisions.remote(window_id, decisions)

    async def ask(
        self, agent_id: str, prompt: tuple[int, ...], draw: int, grammar: str | None = None
    ) -> Completion:
        """Ask the deployment that serves an agent, and for control agents the first version."""
        seeded = dataclasses.replace(self.policy.params, seed=draw, grammar=grammar)
        if agent_id.startswith(f"{CONTROL}-"):
            first = first_version(self.config, self.context.run_dir)
            return await self.policy.engine.generate(prompt, seeded, first)
        return await self.policy.service.generate(prompt, seeded, user=agent_id)

    async def record(self, tick: Tick) -> None:
        """Write a tick to the store, and count outcomes of the model in a trial of versions."""
        if tick.decisions:
            await self.append(tick.decisions)
        if tick.outcomes:
            await asyncio.to_thread(self.store.complete, tick.outcomes)
        for known, outcome in zip(tick.closed, tick.outcomes, strict=True):
            if known.policy:
                await self.policy.service.record_outcome(
                    outcome.reward,
                    uid=known.policy,
                    key=known.decision_id,
                    cluster=f"{known.agent_id}/{known.episode}",
                    # The level of rewards differs by episode, so versions are compared within one.
                    stage=str(known.episode),
                )

    def source(
        self,
        driver: Driver,
        next_window: Callable[[str | None], str | None],
        answers: AnswerLog | None = None,
    ) -> Source:
        return Source(
            driver=driver,
            windows=self.windows,
            next_window=next_window,
            store=self.store,
            push=DailyPush(self.config.store, self.store, self.context.run_dir),
            answers=answers,
        )


# ---------------------------------------------------------------- a market


@contextlib.asynccontextmanager
async def _market(run: _Recording) -> AsyncIterator[Source]:
    """The market in the state that window ``last`` starts from, or a new one."""
    config, policy, windows, last = run.config, run.policy, run.windows, run.last
    simulated, clock = config.window.clock == "simulated", WallClock()
    begin = window_start(config.continuous.start)

    def now(state: SimulationState) -> float:
        return begin + state.world.minute * 60 if simulated else clock.now()

    if last is None:
        settings = config.continuous
        state = SimulationState(
            config.market,
            settings.agents,
            config.seed,
            settings.control_agents,
            config.model_traders,
        )
    else:
        state = load_simulation_state(simulation_state_path(run.context.run_dir, last.number))
    assert policy.prompter is not None, "a market has prompts"
    traders = ModelTraders(run.context, policy.engine)

    async def record(tick: Tick) -> None:
        await run.record(tick)
        traders.account()

    population = Population(
        state,
        AgentModel(
            prompter=policy.prompter, ask=run.ask, name=config.model.label, seed=config.seed
        ),
        Labels(prefix=f"{config.name}-{config.seed}", now=now, window_of=windows.grid.id_of),
        reward_of_settled(config),
        record,
        await asyncio.to_thread(_recorded, run.store, last),
        traders.models,
    )
    driver: Driver
    if simulated:
        driver = SimulatedTimeDriver(population, lambda: now(state), run.stop)
    else:
        driver = WallClockDriver(population, clock, config.market.tick_minutes * 60, run.stop)

    def following(done: str | None) -> str | None:
        # Simulated time stands still while no process runs, so no window is skipped.
        if simulated and done is not None:
            return windows.grid.after(done)
        if simulated or done is not None:
            return next_by_clock(windows, driver.now(), done)
        first, skipped = first_window(config, windows.grid, driver.now())
        if skipped:
            run.context.note(skipped)
        return first

    try:
        yield run.source(driver, following)
    finally:
        await driver.close()
        await traders.close()


def first_window(config: ContinuousConfig, grid: WindowGrid, now: float) -> tuple[str, str]:
    """The first window that a market can fill by the wall clock; why that of ``now`` is left out.

    An agent decides once in a tick, so that a run that starts late in a window cannot fill it.
    """
    here, tick = grid.id_of(now), config.market.tick_minutes * 60
    # A tick is at each multiple of its length.
    since = (math.floor(now / tick) + 1) * tick
    # The tolerance is for rounding: seconds since 1970 leave six digits below 1.
    left = math.ceil((grid.span(here)[1] - since) / tick - 1e-3)
    needed = config.window.min_trajectories_per_agent
    if config.window.mode == "rolling" or left >= needed:
        return here, ""
    first = grid.after(here)
    return first, (
        f"window {here} is left out: an agent needs {needed} decisions in it, and {left} of its "
        f"ticks are left; the first window is {first}"
    )


def next_by_clock(windows: Windows, now: float, done: str | None) -> str:
    """The window of ``now``, or the one that follows ``done``."""
    if done is None:
        return windows.grid.id_of(now)
    following = windows.grid.after(done)
    if windows.due_at(following) > now:
        return following
    # Windows that passed empty while no process ran are skipped. Ids are in order of time.
    filled = [one for one in windows.ids() if windows.due_at(one) >= windows.due_at(following)]
    return filled[0] if filled else max(following, windows.grid.id_of(now), key=windows.due_at)


def _recorded(store: TrajectoryStore, last: Entry | None) -> dict[str, Decision]:
    if last is None:
        return {}
    # Before the first window there may be ticks of one that is left out.
    begin = -math.inf if last.number == 1 else window_start(last.window_id)
    windows = [one for one in store.window_ids() if window_start(one) >= begin]
    return {d.id: d for one in windows for d in store.decisions(window_id=one)}


# ---------------------------------------------------------------- episodes


@contextlib.asynccontextmanager
async def _episodes(run: _Recording) -> AsyncIterator[Source]:
    """Episodes of the user's function, those of window ``last`` that are missing first."""
    last, windows = run.last, run.windows
    start = run.config.continuous.start if last is None else last.window_id
    begin, end = windows.grid.span(start)
    driver = EpisodesDriver(
        run.config,
        run.store,
        run.policy.tokenizer,
        run.ask,
        end if last is not None and last.phase == "done" else begin,
        run.stop,
        run.append,
    )
    yield run.source(driver, lambda done: start if done is None else windows.grid.after(done))


# ---------------------------------------------------------------- requests


@contextlib.asynccontextmanager
async def _requests(run: _Recording) -> AsyncIterator[Source]:
    clock = WallClock()
    driver = WaitingDriver(clock, run.stop)
    answers = AnswerLog(
        run.context.run_dir / "answers.sqlite",
        run.store,
        run.config,
        run.policy.tokenizer,
        now=clock.now,
        on_decision=run.count,
    )
    with contextlib.closing(answers):
        # A former process may have died before it moved a rewarded answer.
        await asyncio.to_thread(answers.finish)
        yield run.source(
            driver, lambda done: next_by_clock(run.windows, driver.now(), done), answers
        )


# ---------------------------------------------------------------- a store


def _recorded_source(
    config: ContinuousConfig, policy: PolicySide, reader: StoreReader, stop: asyncio.Event
) -> Source:
    windows = Windows(reader, config.window)
    ids = windows.ids()
    if not ids:
        raise RunError(f"{reader.root} holds no decisions to learn from")
    _check_tokens(reader, ids[-1], policy)

    def following(done: str | None) -> str | None:
        return next((one for one in windows.ids() if done is None or one > done), None)

    return Source(driver=RecordedDriver(stop), windows=windows, next_window=following)


def _check_tokens(reader: StoreReader, window_id: str, policy: PolicySide) -> None:
    decode, count = decoder(policy.tokenizer), len(policy.tokenizer)
    for decision in reader.decisions(window_id=window_id):
        answer = decision.completion
        if answer is None or not answer.token_ids:
            continue
        known = max(*answer.token_ids, *answer.prompt_token_ids) < count
        # Another tokenizer's ids would be learned as other words.
        if not known or decode(answer.token_ids) != answer.text:
            raise RunError(
                f"{reader.root}: the tokens of {decision.id} are not its answer "
                f"{answer.text!r} in this model's tokenizer; take the model that gave the answers "
                "(model=…)"
            )
