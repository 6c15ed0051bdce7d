"""A policy in markets of its own: to be compared with others that live in the very same ones."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from rlforge.config.continuous import ContinuousConfig
from rlforge.continuous.performance import Performance, by_player, is_ours
from rlforge.continuous.population import Population, SimulationState
from rlforge.continuous.prompting import AgentPrompter
from rlforge.engines.base import Generator
from rlforge.market.books import Settled
from rlforge.serving.records import PairedOutcomes
from rlforge.trajectories.records import Decision, Outcome
from rlforge.types import Completion, PolicyRef, SamplingParams

#: Added to the run's seed: the markets of trials are none that anybody learns in.
_COMPARISON, _HOLDOUT = 104_729, 1_299_709


class MarketTrials:
    """Lets policies live through whole episodes, several markets at once.

    Chance is the same for all policies: the markets' seeds, the traders' and those of the draws.
    """

    def __init__(
        self,
        config: ContinuousConfig,
        engine: Generator,
        speech: AgentPrompter,
        params: SamplingParams,
        reward: Callable[[Settled], float],
    ) -> None:
        self._config, self._engine, self._speech = config, engine, speech
        self._params, self._reward = params, reward

    async def compare(self, policy: PolicyRef) -> Mapping[str, Performance]:
        """How ``policy``, and the traders beside it, do in ``continuous.compare_episodes``."""
        lives = await self._live(
            policy, self._config.continuous.compare_episodes, self._config.seed + _COMPARISON
        )
        return by_player([decision for life in lives for decision in life])

    async def holdout(self, candidate: PolicyRef, current: PolicyRef) -> PairedOutcomes:
        """Mean rewards of the agents, each paired with itself in the same market.

        ``deployment.holdout_games`` counts the episodes of single agents.
        """
        agents = self._config.continuous.agents
        markets = math.ceil(self._config.deployment.holdout_games / agents)
        seed = self._config.seed + _HOLDOUT
        new, old = await asyncio.gather(
            self._live(candidate, markets, seed), self._live(current, markets, seed)
        )
        return PairedOutcomes(candidate=_agent_means(new), current=_agent_means(old))

    async def _live(self, policy: PolicyRef, markets: int, seed: int) -> list[list[Decision]]:
        return await asyncio.gather(
            *(self._episode(policy, seed + number) for number in range(markets))
        )

    async def _episode(self, policy: PolicyRef, seed: int) -> list[Decision]:
        market = self._config.market
        memory = _Memory()

        async def answer(agent_id: str, prompt: tuple[int, ...], draw: int) -> Completion:
            params = dataclasses.replace(self._params, seed=draw)
            return await self._engine.generate(prompt, params, policy)

        population = Population(
            SimulationState(market, self._config.continuous.agents, seed),
            name="trial",
            seed=seed,
            speech=self._speech,
            answer=answer,
            provider=policy.uid,
            ledger=memory,
            now=lambda life: life.world.minute * 60,
            window_of=lambda moment: "trial",
            reward=self._reward,
        )
        for _ in range(market.episode_ticks):
            await population.step()
        return memory.decisions()


class _Memory:
    """A ledger for as long as a trial lasts."""

    def __init__(self) -> None:
        self._decisions: dict[str, Decision] = {}
        self._outcomes: dict[str, Outcome] = {}

    async def append(self, decisions: Sequence[Decision]) -> None:
        self._decisions.update({decision.id: decision for decision in decisions})

    async def complete(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes.update({outcome.decision_id: outcome for outcome in outcomes})

    def decisions(self) -> list[Decision]:
        """Those whose outcome is known; at the end of an episode, all."""
        return [
            dataclasses.replace(
                self._decisions[decision_id],
                reward=outcome.reward,
                next_state=outcome.next_state,
                result=outcome.result,
            )
            for decision_id, outcome in self._outcomes.items()
        ]


def _agent_means(lives: Sequence[Sequence[Decision]]) -> tuple[float, ...]:
    """The mean reward of every agent of the model, market after market."""
    means = []
    for life in lives:
        rewards: dict[str, list[float]] = {}
        for decision in life:
            if is_ours(decision) and decision.reward is not None:
                rewards.setdefault(decision.agent_id, []).append(decision.reward)
        means += [math.fsum(own) / len(own) for _, own in sorted(rewards.items())]
    return tuple(means)
