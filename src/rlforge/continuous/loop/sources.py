"""Where the decisions of a continuous run come from: see ``continuous.source``."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from rlforge.continuous.config.continuous import ContinuousConfig, StoreConfig
from rlforge.continuous.decisions.dataset import export_dataset
from rlforge.continuous.decisions.records import CONTROL, Decision, WindowGrid, window_start
from rlforge.continuous.decisions.store import StoreReader, TrajectoryStore, store_folder
from rlforge.continuous.decisions.windows import Windows
from rlforge.continuous.loop.episodes import EpisodesDriver
from rlforge.continuous.loop.journal import Entry
from rlforge.continuous.loop.model_traders import ModelTraders
from rlforge.continuous.loop.policy_side import PolicySide, first_version, reward_of_settled
from rlforge.continuous.loop.population import AgentModel, Labels, Population, SimulationState, Tick
from rlforge.continuous.loop.requests import AnswerLog
from rlforge.continuous.loop.simulation import (
    Driver,
    SimulatedTimeDriver,
    WaitingDriver,
    WallClock,
    WallClockDriver,
    load_simulation_state,
    simulation_state_path,
)
from rlforge.engines.base import decoder
from rlforge.errors import RlforgeError, RunError, counted
from rlforge.record.files import read_json, write_json
from rlforge.run.lifecycle import RunContext
from rlforge.system.hub import push_folder
from rlforge.types import Completion, value

log = logging.getLogger(__name__)

NextWindow = Callable[[str | None], str | None]
"""The window after another, or the first one after None; None where there is none."""

_DAY = 24 * 3600.0


@value
class Source:
    """Decisions in windows, as the trainer sees them.

    store, push: None where decisions are only read. answers: makes decisions of answers over HTTP.
    """

    driver: Driver
    windows: Windows
    next_window: NextWindow
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
    config, folder = context.config, store_folder(context.config.store, context.run_dir)
    if config.continuous.source == "store":
        yield _recorded_source(config, policy, StoreReader(folder), stop)
        return
    async with contextlib.AsyncExitStack() as stack:
        store = stack.enter_context(TrajectoryStore(folder))
        windows = Windows(store, config.window)
        # Rewards outside of bounds that were changed since are left out.
        if config.continuous.source == "requests":
            bounds = config.serve.outcome_low, config.serve.outcome_high
            windows = Windows(store, config.window, bounds)
        make = {"market": _market, "episodes": _episodes, "requests": _requests}
        run = _Recording(
            context=context,
            policy=policy,
            store=store,
            windows=windows,
            last=last,
            stop=stop,
            stack=stack,
        )
        driver, next_window, answers = await make[config.continuous.source](run)
        stack.push_async_callback(driver.close)
        yield Source(
            driver=driver,
            windows=windows,
            next_window=next_window,
            store=store,
            push=DailyPush(config.store, store, context.run_dir),
            answers=answers,
        )


_Made = tuple[Driver, NextWindow, AnswerLog | None]


@value
class _Recording:
    """A run that records decisions in a store of its own.

    last: the newest window. stack: closes what a source opens.
    """

    context: RunContext[ContinuousConfig]
    policy: PolicySide
    store: TrajectoryStore
    windows: Windows
    last: Entry | None
    stop: asyncio.Event
    stack: contextlib.AsyncExitStack

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


# ---------------------------------------------------------------- a market


async def _market(run: _Recording) -> _Made:
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
    assert policy.trials is not None, "the run has a market"
    traders = ModelTraders(run.context, policy.engine)
    run.stack.push_async_callback(traders.close)

    async def record(tick: Tick) -> None:
        await run.record(tick)
        traders.account()

    population = Population(
        state,
        AgentModel(
            prompter=policy.trials.prompter, ask=run.ask, name=config.model.label, seed=config.seed
        ),
        Labels(prefix=f"{config.name}-{config.seed}", now=now, window_of=windows.grid.id_of),
        reward_of_settled(config),
        record,
        await asyncio.to_thread(_recorded, run.store, last),
        traders.models,
    )
    driver: Driver = (
        SimulatedTimeDriver(population, lambda: now(state), run.stop)
        if simulated
        else WallClockDriver(population, clock, config.market.tick_minutes * 60, run.stop)
    )

    def following(done: str | None) -> str | None:
        # Simulated time stands still while no process runs, so no window is skipped.
        if simulated and done is not None:
            return windows.grid.after(done)
        if simulated or done is not None:
            return next_by_clock(windows, now(state), done)
        first, skipped = first_window(config, windows.grid, now(state))
        if skipped:
            run.context.note(skipped)
        return first

    return driver, following, None


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


async def _episodes(run: _Recording) -> _Made:
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
    return driver, lambda done: start if done is None else windows.grid.after(done), None


# ---------------------------------------------------------------- requests


async def _requests(run: _Recording) -> _Made:
    clock = WallClock()
    answers = AnswerLog(
        run.context.run_dir / "answers.sqlite",
        run.store,
        run.config,
        run.policy.tokenizer,
        now=clock.now,
        on_decision=run.count,
    )
    run.stack.callback(answers.close)
    # A former process may have died before it moved a rewarded answer.
    await asyncio.to_thread(answers.finish)
    driver = WaitingDriver(clock, run.stop)
    return driver, lambda done: next_by_clock(run.windows, clock.now(), done), answers


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

    return Source(driver=Driver(stop), windows=windows, next_window=following)


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


# ---------------------------------------------------------------- the hub


class DailyPush:
    """Replaces the dataset ``store.push``, if any, once a day from ``store.push_hour`` on."""

    def __init__(
        self,
        config: StoreConfig,
        reader: StoreReader,
        run_dir: Path,
        push: Callable[..., None] = push_folder,
    ) -> None:
        self._config, self._reader, self._run_dir, self._push = config, reader, run_dir, push
        self._file = run_dir / "pushed.json"
        self._until: float | None = (read_json(self._file) or {}).get("until")

    async def after_window(self, begin: float, end: float) -> None:
        """Push where the hour came since the last push, or else since ``begin``."""
        if self._until is None:
            self._until = begin
        if self._config.push is None or self._days(end) == self._days(self._until):
            return
        try:
            rows = await asyncio.to_thread(self._replace, self._config.push)
        # A failure of the hub must not end a run.
        except (RlforgeError, OSError) as error:
            log.warning("%s; it is tried again after the next window", error)
            return
        self._until = end
        write_json(self._file, {"until": end, "decisions": rows})

    def _days(self, moment: float) -> int:
        # The number of pushes that were due by then.
        return int((moment - self._config.push_hour * 3600) // _DAY)

    def _replace(self, repo: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            dataset = Path(folder) / "dataset"
            rows = export_dataset(self._reader, dataset, run_dir=self._run_dir)
            self._push(
                dataset,
                repo,
                counted(rows, "decision"),
                # Private, until its owner makes it public on the hub.
                public=False,
                say=log.info,
                kind="dataset",
                kept=False,
            )
        return rows
