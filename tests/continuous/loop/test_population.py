"""Agents in the real market: every decision is recorded, settled once, and can be repeated."""

import asyncio
import dataclasses
import itertools
import os
import pickle

import pytest

from rlforge.continuous.loop.population import AgentModel, Labels, Population, SimulationState
from rlforge.continuous.loop.simulation import (
    SimulatedTimeDriver,
    Stopped,
    WallClock,
    WallClockDriver,
    load_simulation_state,
    save_simulation_state,
)
from rlforge.continuous.market.text import describe
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.models.load import load_tokenizer
from rlforge.types import Completion


class Records:
    def __init__(self):
        self.decisions = {}
        self.outcomes = {}
        self.policies = {}

    async def add(self, tick):
        assert not self.decisions.keys() & {decision.id for decision in tick.decisions}
        self.decisions.update({decision.id: decision for decision in tick.decisions})
        for outcome, closed in zip(tick.outcomes, tick.closed, strict=True):
            self.outcomes[outcome.decision_id] = outcome
            self.policies[outcome.decision_id] = closed.policy

    def completed(self):
        return {
            key: dataclasses.replace(
                decision, reward=self.outcomes[key].reward, next_state=self.outcomes[key].next_state
            )
            if key in self.outcomes
            else decision
            for key, decision in self.decisions.items()
        }


async def hold_or_buy(agent_id, prompt, draw, grammar=None):
    text = ("[hold]", "[yes1]", "[long2]", "[sell]", "nonsense")[draw % 5]
    return Completion(
        text=text,
        prompt_token_ids=prompt,
        token_ids=(draw % 50,),
        logprobs=(-0.7,),
        policy_uid="deploy-3",
        policy_version=3,
    )


@pytest.fixture
def populate(make_config):
    def make(
        records,
        state=None,
        *overrides,
        answer=hold_or_buy,
        recorded=None,
        now=lambda state: state.world.minute * 60,
        window_of=lambda moment: "2024-11-13-10:00",
    ):
        config = make_config(*overrides)
        prompter = AgentPrompter(config, config.market, load_tokenizer(config.model))
        return Population(
            state or SimulationState(config.market, config.continuous.agents, 0),
            AgentModel(prompter=prompter, ask=answer, name="model", seed=0),
            Labels(prefix="test", now=now, window_of=window_of),
            lambda settled: -1.0 if settled.invalid else settled.pnl,
            records.add,
            recorded,
        )

    return make


async def test_an_episode_settles_every_decision_with_its_next_state_and_version(populate):
    records = Records()
    population = populate(records)
    for _ in range(6):
        await population.tick()
    agents = len(population.state.world.agent_ids)
    assert len(records.decisions) == 6 * agents
    assert records.outcomes.keys() == records.decisions.keys()
    assert not population.state.open
    assert not population.state.next_states
    mine = [decision for decision in records.decisions.values() if decision.completion]
    assert len(mine) == 6 * 4
    assert {records.policies[decision.id] for decision in mine} == {"deploy-3"}
    scripted = records.decisions.keys() - {decision.id for decision in mine}
    assert {records.policies[key] for key in scripted} == {""}
    for agent in {decision.agent_id for decision in mine}:
        own = [decision for decision in mine if decision.agent_id == agent]
        for before, after in itertools.pairwise(own):
            assert records.outcomes[before.id].next_state == after.state
    for decision in mine:
        assert decision.observation.startswith("market ")
        assert decision.metadata.provider == "model"
        assert decision.metadata.confidence == pytest.approx(0.4966, abs=1e-4)
    invalid = [d.id for d in mine if d.metadata.reasoning == "nonsense"]
    assert invalid
    assert all(records.outcomes[key].reward == -1.0 for key in invalid)
    refused = [records.decisions[key].action for key in invalid]
    assert all(action["type"] == "NO_OP" and "no action" in action["problem"] for action in refused)


async def test_what_an_agent_notes_it_remembers_and_its_stated_confidence_is_recorded(populate):
    async def answer(agent_id, prompt, draw, grammar=None):
        said = {
            "agent-1": '{"type": "NO_OP", "confidence": 0.25, "note": "wire was\\nwrong"}',
            "agent-2": '{"type": "NO_OP", "confidence": 7}',
        }
        given = await hold_or_buy(agent_id, prompt, draw)
        return dataclasses.replace(given, text=said.get(agent_id, '{"type": "NO_OP"}'))

    records = Records()
    population = populate(records, None, "model.action_extraction=json", answer=answer)
    await population.tick()
    first, second, third = (
        next(d for d in records.decisions.values() if d.agent_id == f"agent-{number}")
        for number in (1, 2, 3)
    )
    assert first.metadata.confidence == 0.25
    assert first.action["note"] == "wire was\nwrong"
    assert "a number from 0 to 1, not 7" in second.action["problem"]
    assert (
        second.metadata.confidence == third.metadata.confidence == pytest.approx(0.4966, abs=1e-4)
    )
    [note] = population.state.states["agent-1"]["agent"]["memory"]
    assert note == {"kind": "own", "text": "wire was\nwrong", "minute": 0.0}
    assert population.state.states["agent-2"]["agent"]["memory"] == []
    assert "Your memory:\n- wire was wrong" in describe(population.state.states["agent-1"])


async def test_recorded_ticks_are_repeated_without_asking_the_policy(populate, tmp_path):
    straight, records = Records(), Records()
    other = populate(straight)
    for _ in range(6):
        await other.tick()

    first = populate(records)
    for _ in range(2):
        await first.tick()
    save_simulation_state(first.state, tmp_path / "state.pkl")
    for _ in range(2):
        await first.tick()

    asked = []

    async def ask(agent_id, prompt, draw, grammar=None):
        asked.append(agent_id)
        return await hold_or_buy(agent_id, prompt, draw)

    again = populate(
        records,
        load_simulation_state(tmp_path / "state.pkl"),
        answer=ask,
        recorded=records.completed(),
    )
    for _ in range(2):
        assert again.is_repeating
        await again.tick()
    assert not asked
    assert not again.is_repeating
    for _ in range(2):
        await again.tick()
    assert len(asked) == 2 * 4
    assert records.decisions == straight.decisions
    assert records.outcomes == straight.outcomes


async def test_an_agent_without_an_answer_does_nothing(populate):
    async def answer(agent_id, prompt, draw, grammar=None):
        if agent_id == "agent-2":
            raise EngineError("too long")
        return await hold_or_buy(agent_id, prompt, draw)

    records = Records()
    population = populate(records, answer=answer)
    await population.tick()
    (idle,) = [d for d in records.decisions.values() if d.agent_id == "agent-2"]
    assert idle.completion is None
    assert (idle.action, idle.metadata.reasoning) == ({"type": "NO_OP"}, "too long")


@pytest.mark.parametrize("error", [EngineError("too long"), EngineDeadError("stuck")])
async def test_a_tick_without_any_answer_ends_the_run(populate, error):
    async def answer(agent_id, prompt, draw, grammar=None):
        raise error

    with pytest.raises(RunError, match=str(error)):
        await populate(Records(), answer=answer).tick()


async def test_simulated_time_advances_and_a_window_is_settled_by_ticks(populate):
    population, window, stop = populate(Records()), "2024-11-13-10:00", asyncio.Event()
    world = population.state.world
    driver = SimulatedTimeDriver(population, lambda: world.minute * 60, stop)
    await driver.advance_to(600.0)
    assert world.ticks == 2
    still_open = population.unsettled(window)
    assert still_open > 0
    assert population.unsettled("2024-11-13-11:00") == 0
    await driver.settle(window, still_open)
    assert world.ticks == 2
    await driver.settle(window, 0)
    assert population.unsettled(window) == 0
    assert 2 < world.ticks <= 6  # an episode
    await driver.advance_to(world.minute * 60 + 300)
    stop.set()
    ticks = world.ticks
    for waiting in (driver.settle(window, 0), driver.advance_to(world.minute * 60 + 1800)):
        with pytest.raises(Stopped):
            await waiting
    assert world.ticks == ticks


async def test_ticks_by_the_wall_clock_begin_at_multiples_of_their_length(populate, monkeypatch):
    """So a window of whole ticks holds equally many of them, whenever the run began."""
    now, begun, sleep = 1000.0, [], asyncio.sleep

    async def pass_time(seconds):
        nonlocal now
        now += min(seconds, 0.25)  # of each of those who wait
        await sleep(0)

    async def slow_answer(agent_id, prompt, draw, grammar=None):
        nonlocal now
        begun.append(now)
        now += 0.5
        return await hold_or_buy(agent_id, prompt, draw)

    monkeypatch.setattr(asyncio, "sleep", pass_time)
    driver = WallClockDriver(
        populate(Records(), answer=slow_answer), WallClock(lambda: now), 30.0, asyncio.Event()
    )
    await driver.advance_to(1250.0)
    await driver.close()
    assert {moment // 30 * 30 for moment in begun} == set(range(1020, 1250, 30))
    assert all(moment % 30 < 5 for moment in begun)


async def test_by_the_wall_clock_ticks_go_on_between_waits(populate, tmp_path):
    population, clock, stop = populate(Records()), WallClock(), asyncio.Event()
    driver = WallClockDriver(population, clock, 0.01, stop)
    await driver.advance_to(clock.now() + 0.05)
    ticks = population.state.world.ticks
    assert ticks >= 1
    async with asyncio.timeout(60):
        for _ in range(100):
            await asyncio.sleep(0.02)
            if population.state.world.ticks >= ticks + 2:
                break
    await driver.save(tmp_path / "state.pkl")
    assert load_simulation_state(tmp_path / "state.pkl").world.ticks >= ticks + 2
    stop.set()
    with pytest.raises(Stopped):
        await driver.advance_to(clock.now() + 3600)
    await driver.close()


async def test_by_the_wall_clock_a_window_is_settled_once_its_outcomes_are_on_record(populate):
    """A store that takes longer than a tick: what it has not written yet is not settled."""

    class SlowRecords(Records):
        async def add(self, tick):
            await asyncio.sleep(0.05)
            await super().add(tick)

    records, clock = SlowRecords(), WallClock()
    population = populate(
        records,
        now=lambda state: clock.now(),
        window_of=lambda moment: "first" if moment < end else "later",
    )
    end = clock.now() + 0.3
    driver = WallClockDriver(population, clock, 0.01, asyncio.Event())

    def first():
        return {key for key, one in records.decisions.items() if one.window_id == "first"}

    await driver.advance_to(end)
    collected = first()
    assert collected
    await driver.settle("first", 0)
    assert collected <= records.outcomes.keys()
    assert first() == collected
    await driver.close()


async def test_an_error_in_a_tick_by_the_wall_clock_reaches_the_waiting_caller(populate):
    async def answer(agent_id, prompt, draw, grammar=None):
        raise EngineDeadError("stuck")

    clock = WallClock()
    driver = WallClockDriver(populate(Records(), answer=answer), clock, 0.01, asyncio.Event())
    with pytest.raises(RunError, match="the engine is gone: stuck"):
        await driver.advance_to(clock.now() + 60)
    await driver.close()


def test_loading_a_state_refuses_foreign_classes_and_other_releases(populate, tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.getenv, ("HOME",))

    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(RunError, match=r"os\.getenv is no part of a market"):
        load_simulation_state(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(RunError, match="cannot be read"):
        load_simulation_state(path)
    with pytest.raises(RunError, match="is missing"):
        load_simulation_state(tmp_path / "nowhere.pkl")
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(RunError, match="holds a dict"):
        load_simulation_state(path)
    state = populate(Records()).state
    state.format += 1
    save_simulation_state(state, path)
    with pytest.raises(RunError, match="another release of rlforge"):
        load_simulation_state(path)
