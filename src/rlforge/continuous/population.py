"""The agents and the market they live in, one tick at a time.

In each tick the agents of the model look at the market and are asked all at once, so that the
engine answers them in one batch. What they want is done in order; then the scripted traders act,
and time passes. Every decision is in the ledger before the tick is over, and is completed there
once the market has settled it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from rlforge.config.market import MarketConfig
from rlforge.continuous.performance import PROBLEM
from rlforge.continuous.prompting import AgentPrompter, Question
from rlforge.errors import EngineDeadError, EngineError, RunError
from rlforge.market.actions import NO_OP
from rlforge.market.books import Receipt, Settled
from rlforge.market.traders import Choice, Crowd
from rlforge.market.world import World
from rlforge.trajectories.records import Decision, Json, Metadata, Outcome, Result
from rlforge.types import Completion, value

log = logging.getLogger(__name__)

Answer = Callable[[str, tuple[int, ...], int], Awaitable[Completion]]
"""Asks a policy: agent, prompt and seed of the draw."""

Heard = Callable[[str, str, float], Awaitable[None]]
"""Hears what came of a model's decision: version that took it, decision, reward."""


class Ledger(Protocol):
    """Where decisions are kept."""

    async def append(self, decisions: Sequence[Decision]) -> None:
        """Keep new decisions; they are safe when this returns."""
        ...

    async def complete(self, outcomes: Sequence[Outcome]) -> None:
        """Add what came of decisions that were kept before."""
        ...


@value
class Open:
    """A decision that is not settled yet. policy: uid of the version that took it; empty: none."""

    decision_id: str
    policy: str


class SimulationState:
    """All of a population that goes on: the market, its traders, and decisions not yet settled.

    states: what each agent sees now. open: by the market's ticket. next_states: by id of a
    decision, the state that followed it.
    """

    def __init__(self, market: MarketConfig, agents: int, seed: int) -> None:
        self.world = World(market, seed)
        self.agents = tuple(f"agent-{number}" for number in range(1, agents + 1))
        for agent_id in self.agents:
            self.world.join(agent_id)
        self.crowd = Crowd(self.world, seed)
        self.states: dict[str, Json] = {
            agent_id: self.world.state(agent_id) for agent_id in self.world.agent_ids
        }
        self.open: dict[int, Open] = {}
        self.next_states: dict[str, Json] = {}


class Population:
    """Makes a ``SimulationState`` go on.

    seed: of the draws. name: what decisions' ids begin with. now, window_of: the clock, and the
    window of a time. reward: of a settled decision. recorded: decisions that an earlier process
    wrote in ticks that are lived again: they are taken as they are, and nobody is asked.
    """

    def __init__(
        self,
        life: SimulationState,
        *,
        name: str,
        seed: int,
        speech: AgentPrompter,
        answer: Answer,
        provider: str,
        ledger: Ledger,
        now: Callable[[SimulationState], float],
        window_of: Callable[[float], str],
        reward: Callable[[Settled], float],
        heard: Heard | None = None,
        recorded: Mapping[str, Decision] | None = None,
    ) -> None:
        self.life = life
        self.failed_answers = 0
        self._name, self._seed = name, seed
        self._speech, self._answer, self._provider = speech, answer, provider
        self._ledger, self._now, self._window_of = ledger, now, window_of
        self._reward, self._heard = reward, heard
        self._recorded = dict(recorded or {})

    async def step(self) -> None:
        """Live through one tick."""
        life, now = self.life, self._now(self.life)
        decisions = [await self._decide(life.agents, now), self._crowd(now)]
        fresh = [d for some in decisions for d in some if d.id not in self._recorded]
        if fresh:
            await self._ledger.append(fresh)
        settled = life.world.tick()
        life.states = {agent_id: life.world.state(agent_id) for agent_id in life.world.agent_ids}
        for some in decisions:
            for decision in some:
                life.next_states[decision.id] = life.states[decision.agent_id]
        await self._settle(settled)

    @property
    def is_repeating(self) -> bool:
        """Whether the next tick was lived before, and is on record."""
        return any(self._id(agent_id) in self._recorded for agent_id in self.life.world.agent_ids)

    async def _settle(self, settled: Sequence[Settled]) -> None:
        """Complete decisions, and pass on what came of those of the model."""
        if not settled:
            return
        closed = [self.life.open.pop(one.ticket) for one in settled]
        outcomes = [
            self._outcome(known.decision_id, one)
            for known, one in zip(closed, settled, strict=True)
        ]
        await self._ledger.complete(outcomes)
        for known, outcome in zip(closed, outcomes, strict=True):
            if self._heard is not None and known.policy:
                await self._heard(known.policy, known.decision_id, outcome.reward)

    # ------------------------------------------------------------ deciding

    async def _decide(self, agents: Sequence[str], now: float) -> list[Decision]:
        """What the model's agents do, each having seen the market as it was before all of them."""
        questions = [self._speech.ask(self.life.states[agent_id]) for agent_id in agents]
        answers = await asyncio.gather(
            *(self._ask(agent, question) for agent, question in zip(agents, questions, strict=True))
        )
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
            completion: Completion = await self._answer(
                agent_id, question.token_ids, self._draw(agent_id)
            )
        except EngineDeadError as error:
            raise RunError(f"the engine is gone: {error}") from error
        except EngineError as error:
            self.failed_answers += 1
            log.warning("%s got no answer and does nothing: %s", agent_id, error)
            return error
        return completion

    def _carry_out(
        self, agent_id: str, question: Question, answer: Completion | EngineError, now: float
    ) -> Decision:
        life = self.life
        if isinstance(answer, EngineError):
            receipt = life.world.decide(agent_id, NO_OP)
            meta = Metadata(provider=self._provider, reasoning=str(answer), confidence=0.0)
            return self._decision(receipt, question.state, NO_OP, now, meta)
        reading = self._speech.read(question, answer.text)
        # An answer that is no action is handed in as it is: the market counts it as invalid.
        receipt = life.world.decide(agent_id, reading.action or {"type": answer.text})
        meta = Metadata(
            provider=self._provider, reasoning=answer.text, confidence=_confidence(answer)
        )
        action: Json = reading.action or NO_OP
        if not receipt.accepted:
            action = {**action, PROBLEM: reading.problem or receipt.problem}
        return self._decision(
            receipt,
            question.state,
            action,
            now,
            meta,
            observation=question.text,
            completion=answer,
        )

    def _crowd(self, now: float) -> list[Decision]:
        return [self._scripted(choice, now) for choice in self.life.crowd.act()]

    def _scripted(self, choice: Choice, now: float) -> Decision:
        meta = Metadata(provider=f"scripted:{choice.kind}")
        return self._decision(choice.receipt, choice.state, choice.action, now, meta)

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
        policy = "" if completion is None else completion.policy_uid
        self.life.open[receipt.ticket] = Open(decision_id=decision_id, policy=policy)
        return Decision(
            id=decision_id,
            agent_id=receipt.agent_id,
            window_id=self._window_of(now),
            state=state,
            action=action,
            timestamp=now,
            metadata=metadata,
            observation=observation,
            completion=completion,
        )

    def _outcome(self, decision_id: str, settled: Settled) -> Outcome:
        return Outcome(
            decision_id=decision_id,
            reward=self._reward(settled),
            next_state=self.life.next_states.pop(decision_id),
            result=Result(
                pnl=settled.pnl,
                investment=settled.investment,
                hold_time_minutes=settled.hold_time_minutes,
                win_rate=settled.win_rate,
            ),
        )

    # ------------------------------------------------------------ names and draws

    def _id(self, agent_id: str) -> str:
        return f"{self._name}-{self.life.world.ticks:08d}-{agent_id}"

    def _draw(self, agent_id: str) -> int:
        """Seed of an answer's draw, from 0 to 2⁶³ − 1: the same in a tick that is lived again."""
        text = f"{self._seed}/{self.life.world.ticks}/{agent_id}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _confidence(completion: Completion) -> float:
    """Geometric mean of the probabilities of its tokens; 1 where they are not seen."""
    if not completion.logprobs:
        return 1.0
    return min(1.0, math.exp(math.fsum(completion.logprobs) / len(completion.logprobs)))
