"""The agents and their market, one tick at a time.

In each tick the agents of the model are asked all at once, their actions are carried out in order,
the scripted traders act, and the market's clock moves on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

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
)
from rlforge.continuous.loop.answers import Ask, confidence_of
from rlforge.continuous.market.actions import CONFIDENCE, NO_OP
from rlforge.continuous.market.books import Receipt, Settled
from rlforge.continuous.market.traders import Crowd
from rlforge.continuous.market.trading import AgentPrompter, Question
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


@value
class AgentModel:
    """The model behind the agents. name: ``provider`` of its decisions. seed: seed of its draws."""

    prompter: AgentPrompter
    ask: Ask
    name: str
    seed: int


@value
class Labels:
    """Labels of decisions: the prefix of their ids, their time, and the window of a time."""

    prefix: str
    now: Callable[[SimulationState], float]
    window_of: Callable[[float], str]


FORMAT = 4
"""Format of the state on disk; raised with every change of its classes."""


class SimulationState:
    """All state of a simulation between two ticks: market, traders, open decisions."""

    def __init__(
        self, market: MarketConfig, agents: int, seed: int, control_agents: int = 0
    ) -> None:
        self.format = FORMAT
        self.world = World(market, seed)
        self.control = tuple(f"{CONTROL}-{number}" for number in range(1, control_agents + 1))
        learning = tuple(f"agent-{number}" for number in range(1, agents + 1))
        self.agents = learning + self.control
        for agent_id in self.agents:
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
    process, by id: their ticks are repeated without asking.
    """

    def __init__(
        self,
        state: SimulationState,
        model: AgentModel,
        labels: Labels,
        reward: Callable[[Settled], float],
        record: Callable[[Tick], Awaitable[None]],
        recorded: Mapping[str, Decision] | None = None,
    ) -> None:
        self.state = state
        self._model, self._labels = model, labels
        self._reward, self._record = reward, record
        self._recorded = dict(recorded or {})

    async def tick(self) -> None:
        state, now = self.state, self._labels.now(self.state)
        decisions = await self._decide(state.agents, now)
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

    async def _decide(self, agents: Sequence[str], now: float) -> list[Decision]:
        # All agents see the market as it was before the tick, so one batch of the engine answers.
        questions = [self._model.prompter.ask(self.state.states[agent_id]) for agent_id in agents]
        answers = await asyncio.gather(
            *(self._ask(agent, question) for agent, question in zip(agents, questions, strict=True))
        )
        # One agent may fail by a prompt that is too long; where all fail, later ticks would, too.
        if agents and all(isinstance(answer, EngineError) for answer in answers):
            raise RunError(f"none of the {len(agents)} agents got an answer: {answers[0]}")
        return [
            self._carry_out(agent_id, question, answer, now)
            for agent_id, question, answer in zip(agents, questions, answers, strict=True)
        ]

    async def _ask(self, agent_id: str, question: Question) -> Completion | EngineError:
        recorded = self._recorded.get(self._id(agent_id))
        if recorded is not None:
            return recorded.completion or EngineError(recorded.metadata.reasoning)
        try:
            grammar = grammar_of(question.schema)
            # Seeded by tick and agent, so that a repeated tick draws the same answer.
            seed = seed_of(f"{self._model.seed}/{self.state.world.ticks}/{agent_id}")
            return await self._model.ask(agent_id, question.token_ids, seed, grammar)
        except EngineDeadError as error:
            raise RunError(f"the engine is gone: {error}") from error
        except EngineError as error:
            log.warning("%s got no answer and does nothing: %s", agent_id, error)
            return error

    def _carry_out(
        self, agent_id: str, question: Question, answer: Completion | EngineError, now: float
    ) -> Decision:
        world = self.state.world
        provider = CONTROL if agent_id in self.state.control else self._model.name
        if isinstance(answer, EngineError):
            receipt = world.decide(agent_id, NO_OP)
            meta = Metadata(provider=provider, reasoning=str(answer), confidence=0.0)
            return self._decision(receipt, question.state, NO_OP, now, meta)
        reading = self._model.prompter.read(question, answer.text)
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
