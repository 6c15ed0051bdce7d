"""The agents and their market, one tick at a time.

In each tick the agents of the model and traders that are other models are asked all at once, their
actions are carried out in order, the scripted traders act, and the market's clock moves on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.decisions.records import (
    CONTROL,
    PROBLEM,
    SCRIPTED,
    Decision,
    DecisionOutcome,
    Json,
    Metadata,
    Result,
    grouped,
)
from rlforge.continuous.loop.answers import Ask, NotAskedError, confidence_of
from rlforge.continuous.market.actions import CONFIDENCE, NO_OP
from rlforge.continuous.market.books import Receipt, Settled
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.trading import AgentPrompter, ChatPrompter, Question
from rlforge.continuous.market.world import World
from rlforge.engines.grammars import grammar_of
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.rollout.episode import seed_of
from rlforge.types import Completion, value

log = logging.getLogger(__name__)


@value
class Open:
    """A decision that is not settled yet. episode: number of the market's episode, from 0.

    policy: uid of the version that is judged by it, if any.
    """

    decision_id: str
    agent_id: str
    policy: str
    window_id: str
    episode: int


@value
class Tick:
    """The new decisions of a tick, its outcomes, and the open decisions that these settle."""

    decisions: tuple[Decision, ...]
    outcomes: tuple[DecisionOutcome, ...]
    closed: tuple[Open, ...]


Asked = Awaitable[Completion]


class Model(Protocol):
    """A model behind agents. name: ``provider`` of their decisions."""

    @property
    def name(self) -> str: ...

    @property
    def prompter(self) -> AgentPrompter | ChatPrompter: ...

    def answer(self, agent_id: str, question: Question, tick: int) -> Asked:
        """Answer ``question`` of an agent. Raises EngineError."""


@value
class AgentModel:
    """A model that answers prompts of token ids. seed: seed of its draws."""

    prompter: AgentPrompter
    ask: Ask
    name: str
    seed: int

    def answer(self, agent_id: str, question: Question, tick: int) -> Asked:
        # Seeded by tick and agent, so that a repeated tick draws the same answer.
        draw = seed_of(f"{self.seed}/{tick}/{agent_id}")
        return self.ask(agent_id, question.token_ids, draw, grammar_of(question.schema))


@value
class Labels:
    """Labels of decisions: the prefix of their ids, their time, and the window of a time."""

    prefix: str
    now: Callable[[SimulationState], float]
    window_of: Callable[[float], str]


FORMAT = 5
"""Format of the state on disk; raised with every change of its classes."""


class SimulationState:
    """All state of a simulation between two ticks: market, traders, open decisions."""

    def __init__(
        self,
        market: MarketConfig,
        agents: int,
        seed: int,
        control_agents: int = 0,
        models: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Open a market with ``agents`` and ``control_agents``. models: other traders, by name."""
        self.format = FORMAT
        self.world = World(market, seed)
        self.control = tuple(f"{CONTROL}-{number}" for number in range(1, control_agents + 1))
        learning = tuple(f"agent-{number}" for number in range(1, agents + 1))
        self.agents = learning + self.control
        # The names of the models behind further traders.
        self.traders = {
            f"{name}-{number}": name
            for name, count in models.items()
            for number in range(1, count + 1)
        }
        for agent_id in (*self.agents, *self.traders):
            self.world.join(agent_id)
        self.crowd = Crowd(self.world, seed)
        self.states: dict[str, Json] = {
            agent_id: self.world.state(agent_id) for agent_id in self.world.agent_ids
        }
        # The keys are the market's tickets, by which it settles decisions.
        self.open: dict[int, Open] = {}
        # What followed a decision is known before its outcome, for which it waits here, by id.
        self.next_states: dict[str, Json] = {}


class Population:
    """Runs the ticks of a ``SimulationState``.

    record: called with each tick, and writes it to disk. recorded: decisions of an earlier
    process, by id: their ticks are repeated without asking. traders: other models, by name.
    """

    def __init__(
        self,
        state: SimulationState,
        model: AgentModel,
        labels: Labels,
        reward: Callable[[Settled], float],
        record: Callable[[Tick], Awaitable[None]],
        recorded: Mapping[str, Decision] | None = None,
        traders: Mapping[str, Model] = MappingProxyType({}),
    ) -> None:
        self.state = state
        self._model, self._labels = model, labels
        self._asked: dict[str, Model] = dict.fromkeys(state.agents, model)
        self._asked |= {agent_id: traders[name] for agent_id, name in state.traders.items()}
        # Names of models that have answered: only later may they be silent for a while.
        self._heard: set[str] = set()
        self._reward, self._record = reward, record
        self._recorded = dict(recorded or {})

    async def tick(self) -> None:
        state, now = self.state, self._labels.now(self.state)
        decisions = await self._decide(now)
        for choice in state.crowd.act():
            meta = Metadata(provider=f"{SCRIPTED}{choice.kind}")
            made = self._decision(choice.receipt, choice.state, choice.action, now, meta)
            decisions.append(made)
        settled = state.world.tick()
        state.states = {agent_id: state.world.state(agent_id) for agent_id in state.world.agent_ids}
        state.next_states |= {d.id: state.states[d.agent_id] for d in decisions}
        closed = [state.open[one.ticket] for one in settled]
        await self._record(
            Tick(
                # A repeated tick's decisions are in the store already; its outcomes may not be.
                decisions=tuple(d for d in decisions if d.id not in self._recorded),
                outcomes=tuple(
                    DecisionOutcome(
                        decision_id=known.decision_id,
                        reward=self._reward(one),
                        next_state=state.next_states.pop(known.decision_id),
                        result=result_of(one),
                    )
                    for known, one in zip(closed, settled, strict=True)
                ),
                closed=tuple(closed),
            )
        )
        # Not before they are on record, else ``unsettled`` would leave out outcomes still to write.
        for one in settled:
            del state.open[one.ticket]

    @property
    def is_repeating(self) -> bool:
        """Whether the next tick is on record already."""
        return any(self._id(agent_id) in self._recorded for agent_id in self.state.world.agent_ids)

    def unsettled(self, window_id: str) -> int:
        """How many decisions of a window have no outcome on record yet."""
        return sum(known.window_id == window_id for known in self.state.open.values())

    # ------------------------------------------------------------ deciding

    async def _decide(self, now: float) -> list[Decision]:
        # All see the market as it was before the tick, so one batch of the engine answers, and no
        # one waits for the answers of APIs before its own prompt is on its way.
        questions = {
            agent_id: model.prompter.ask(self.state.states[agent_id])
            for agent_id, model in self._asked.items()
        }
        answers = await asyncio.gather(*map(self._answer, questions, questions.values()))
        self._check_heard(answers)
        return [
            self._carry_out(agent_id, question, answer, now)
            for (agent_id, question), answer in zip(questions.items(), answers, strict=True)
        ]

    def _check_heard(self, answers: Sequence[Completion | EngineError]) -> None:
        """Raise RunError for a model without an answer; that of traders may be silent later on."""
        asked = zip(self._asked.values(), answers, strict=True)
        for name, of_model in grouped(asked, lambda one: one[0].name).items():
            given = [answer for _, answer in of_model]
            # One agent may fail by a prompt that is too long; where all fail, later ticks would.
            if any(not isinstance(one, EngineError) or type(one) is NotAskedError for one in given):
                self._heard.add(name)
            elif name == self._model.name or name not in self._heard:
                who = "agents" if name == self._model.name else f"traders of {name}"
                raise RunError(f"none of the {len(given)} {who} got an answer: {given[0]}")

    async def _answer(self, agent_id: str, question: Question) -> Completion | EngineError:
        recorded = self._recorded.get(self._id(agent_id))
        if recorded is not None:
            return recorded.completion or EngineError(recorded.metadata.reasoning)
        try:
            tick = self.state.world.ticks
            return await self._asked[agent_id].answer(agent_id, question, tick)
        except EngineDeadError as error:
            raise RunError(f"the engine is gone: {error}") from error
        except EngineError as error:
            log.warning("%s got no answer and does nothing: %s", agent_id, error)
            return error

    def _carry_out(
        self, agent_id: str, question: Question, answer: Completion | EngineError, now: float
    ) -> Decision:
        world = self.state.world
        model = self._asked[agent_id]
        provider = CONTROL if agent_id in self.state.control else model.name
        if isinstance(answer, EngineError):
            receipt = world.decide(agent_id, NO_OP)
            meta = Metadata(provider=provider, reasoning=str(answer), confidence=0.0)
            return self._decision(receipt, question.state, NO_OP, now, meta)
        reading = model.prompter.read(question, answer.text)
        # An answer without an action is submitted as it is: the market counts it as invalid.
        receipt = world.decide(agent_id, reading.action or {"type": answer.text})
        action: Json = reading.action or NO_OP
        sure = action[CONFIDENCE] if receipt.accepted and CONFIDENCE in action else None
        meta = Metadata(
            provider=provider,
            reasoning=answer.text,
            confidence=confidence_of(answer) if sure is None else float(sure),
        )
        if not receipt.accepted:
            action = {**action, PROBLEM: reading.feedback or receipt.problem}
        return self._decision(receipt, question.state, action, now, meta, question.text, answer)

    def _decision(
        self,
        receipt: Receipt,
        state: Json,
        action: Json,
        now: float,
        metadata: Metadata,
        observation: str = "",
        completion: Completion | None = None,
    ) -> Decision:
        decision_id = self._id(receipt.agent_id)
        window_id = self._labels.window_of(now)
        self.state.open[receipt.ticket] = Open(
            decision_id=decision_id,
            agent_id=receipt.agent_id,
            # Control agents play the first version, so they judge no other.
            policy="" if completion is None or not metadata.learns else completion.policy_uid,
            window_id=window_id,
            episode=self.state.world.ticks // self.state.world.config.episode_ticks,
        )
        return Decision(
            id=decision_id,
            agent_id=receipt.agent_id,
            window_id=window_id,
            state=state,
            action=action,
            timestamp=now,
            metadata=metadata,
            observation=observation,
            completion=completion,
        )

    # ------------------------------------------------------------ names and draws

    def _id(self, agent_id: str) -> str:
        return f"{self._labels.prefix}-{self.state.world.ticks:08d}-{agent_id}"


def result_of(settled: Settled) -> Result:
    return Result(
        pnl=settled.pnl,
        investment=settled.investment,
        hold_time_minutes=settled.hold_time_minutes,
        win_rate=settled.win_rate,
    )
