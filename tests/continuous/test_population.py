"""Agents in the real market: every decision is kept, settled once, and can be lived again."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.population import Population, SimulationState
from rlforge.continuous.prompting import AgentPrompter
from rlforge.continuous.simulation import SimulatedTimeDriver, Stopped, WallClockDriver
from rlforge.continuous.snapshot import load_simulation_state, save_life
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.models.load import load_tokenizer
from rlforge.trajectories.grid import WallClock
from rlforge.trajectories.records import Decision, Outcome
from rlforge.types import Completion

Make = Callable[..., ContinuousConfig]


class Notes:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}
        self.outcomes: dict[str, Outcome] = {}

    async def append(self, decisions: Sequence[Decision]) -> None:
        assert not self.decisions.keys() & {decision.id for decision in decisions}
        self.decisions.update({decision.id: decision for decision in decisions})

    async def complete(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes.update({outcome.decision_id: outcome for outcome in outcomes})

    def whole(self) -> dict[str, Decision]:
        return {
            key: dataclasses.replace(
                decision,
                reward=self.outcomes[key].reward,
                next_state=self.outcomes[key].next_state,
            )
            if key in self.outcomes
            else decision
            for key, decision in self.decisions.items()
        }


async def hold_or_buy(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
    """A model that answers by the seed of its draw alone."""
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
def inhabited(make_config: Make) -> Callable[..., Population]:
    config = make_config()
    tokenizer = load_tokenizer(config.model)
    speech = AgentPrompter(config.market, tokenizer, template="board", extraction="bracket")

    def make(notes: Notes, life: SimulationState | None = None, **changes: Any) -> Population:
        settings: dict[str, Any] = {
            "name": "test",
            "seed": 0,
            "speech": speech,
            "answer": hold_or_buy,
            "provider": "model",
            "ledger": notes,
            "now": lambda life: life.world.minute * 60,
            "window_of": lambda moment: "2024-11-13-10:00",
            "reward": lambda settled: -1.0 if settled.invalid else settled.pnl,
        }
        made = life or SimulationState(config.market, config.continuous.agents, 0)
        return Population(made, **{**settings, **changes})

    return make


async def test_an_episode_settles_every_decision(inhabited: Callable[..., Population]) -> None:
    notes = Notes()
    population = inhabited(notes)
    for _ in range(6):
        await population.step()
    agents = len(population.life.world.agent_ids)
    assert len(notes.decisions) == 6 * agents
    assert notes.outcomes.keys() == notes.decisions.keys()
    assert not population.life.open
    assert not population.life.next_states
    mine = [decision for decision in notes.decisions.values() if decision.completion]
    assert len(mine) == 6 * 4
    for decision in mine:
        assert decision.observation.startswith("market ")
        assert decision.metadata.provider == "model"
        assert decision.metadata.confidence == pytest.approx(0.4966, abs=1e-4)
    invalid = [d.id for d in mine if d.metadata.reasoning == "nonsense"]
    assert invalid
    assert all(notes.outcomes[key].reward == -1.0 for key in invalid)
    refused = [notes.decisions[key].action for key in invalid]
    assert all(action["type"] == "NO_OP" and "no action" in action["problem"] for action in refused)


async def test_the_next_state_is_what_the_agent_sees_next(
    inhabited: Callable[..., Population],
) -> None:
    notes = Notes()
    population = inhabited(notes)
    for _ in range(6):
        await population.step()
    by_agent: dict[str, list[Decision]] = {}
    for decision in notes.decisions.values():
        if decision.completion:
            by_agent.setdefault(decision.agent_id, []).append(decision)
    for own in by_agent.values():
        for before, after in itertools.pairwise(own):
            assert notes.outcomes[before.id].next_state == after.state


async def test_outcomes_of_the_model_are_heard_with_their_version(
    inhabited: Callable[..., Population],
) -> None:
    heard = []

    async def hear(uid: str, decision_id: str, reward: float) -> None:
        heard.append((uid, decision_id, reward))

    notes = Notes()
    population = inhabited(notes, heard=hear)
    for _ in range(6):
        await population.step()
    assert {uid for uid, _, _ in heard} == {"deploy-3"}
    mine = {decision.id for decision in notes.decisions.values() if decision.completion}
    assert {decision_id for _, decision_id, _ in heard} == mine
    assert all(reward == notes.outcomes[key].reward for _, key, reward in heard)


async def test_ticks_on_record_are_lived_again_without_asking(
    inhabited: Callable[..., Population], tmp_path: Path
) -> None:
    """Killed after four ticks and taken up from the snapshot at the second."""
    straight, notes = Notes(), Notes()
    other = inhabited(straight)
    for _ in range(6):
        await other.step()

    first = inhabited(notes)
    for _ in range(2):
        await first.step()
    save_life(first.life, tmp_path / "life.pkl")
    for _ in range(2):
        await first.step()

    asked = []

    async def ask(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        asked.append(agent_id)
        return await hold_or_buy(agent_id, prompt, draw)

    again = inhabited(
        notes, load_simulation_state(tmp_path / "life.pkl"), answer=ask, recorded=notes.whole()
    )
    for _ in range(2):
        assert again.is_repeating
        await again.step()
    assert not asked
    assert not again.is_repeating
    for _ in range(2):
        await again.step()
    assert len(asked) == 2 * 4
    assert notes.decisions == straight.decisions
    assert notes.outcomes == straight.outcomes


async def test_an_agent_without_an_answer_does_nothing(
    inhabited: Callable[..., Population],
) -> None:
    async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        if agent_id == "agent-2":
            raise EngineError("too long")
        return await hold_or_buy(agent_id, prompt, draw)

    notes = Notes()
    population = inhabited(notes, answer=answer)
    await population.step()
    (idle,) = [d for d in notes.decisions.values() if d.agent_id == "agent-2"]
    assert idle.completion is None
    assert (idle.action, idle.metadata.reasoning) == ({"type": "NO_OP"}, "too long")
    assert population.failed_answers == 1


@pytest.mark.parametrize("error", [EngineError("too long"), EngineDeadError("stuck")])
async def test_a_run_without_any_answer_ends(
    inhabited: Callable[..., Population], error: EngineError
) -> None:
    async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        raise error

    with pytest.raises(RunError, match=str(error)):
        await inhabited(Notes(), answer=answer).step()


async def test_simulated_time_passes_by_being_lived(
    inhabited: Callable[..., Population],
) -> None:
    stop = asyncio.Event()
    population = inhabited(Notes())
    habitat = SimulatedTimeDriver(population, lambda: population.life.world.minute * 60, stop)
    await habitat.live_until(1800.0)
    assert population.life.world.ticks == 6
    stop.set()
    with pytest.raises(Stopped):
        await habitat.live_until(3600.0)
    assert population.life.world.ticks == 6


async def test_beside_the_wall_clock_life_goes_on_while_nobody_waits(
    inhabited: Callable[..., Population], tmp_path: Path
) -> None:
    population, clock, stop = inhabited(Notes()), WallClock(), asyncio.Event()
    habitat = WallClockDriver(population, clock, 0.01, stop)
    await habitat.live_until(clock.now() + 0.05)
    ticks = population.life.world.ticks
    assert ticks >= 1
    async with asyncio.timeout(60):
        for _ in range(100):
            await asyncio.sleep(0.02)
            if population.life.world.ticks >= ticks + 2:
                break
    await habitat.save(tmp_path / "life.pkl")
    assert load_simulation_state(tmp_path / "life.pkl").world.ticks >= ticks + 2
    stop.set()
    with pytest.raises(Stopped):
        await habitat.live_until(clock.now() + 3600)
    await habitat.close()


async def test_what_ends_a_life_beside_the_clock_is_heard(
    inhabited: Callable[..., Population],
) -> None:
    async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
        raise EngineDeadError("stuck")

    clock = WallClock()
    habitat = WallClockDriver(inhabited(Notes(), answer=answer), clock, 0.01, asyncio.Event())
    with pytest.raises(RunError, match="the engine is gone: stuck"):
        await habitat.live_until(clock.now() + 60)
    await habitat.close()


def test_a_snapshot_runs_nothing_that_is_no_market(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.getenv, ("HOME",))

    path = tmp_path / "life.pkl"
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


def test_prose_is_understood_where_it_is_asked_for(make_config: Make) -> None:
    config = make_config()
    life = SimulationState(config.market, 1, 0)
    speech = AgentPrompter(
        config.market, load_tokenizer(config.model), template="default", extraction="raw"
    )
    question = speech.ask(life.states["agent-1"])
    assert "You trade on a market" in question.text
    reading = speech.read(question, 'I think so. {"type": "FOLLOW_USER", "userId": "wire"}')
    assert reading.action == {"type": "FOLLOW_USER", "userId": "wire"}
    assert speech.read(question, "[hold]").action == {"type": "NO_OP"}
    assert "no JSON action" in speech.read(question, "let me think about that").problem
