"""Tests of a policy: whole episodes in markets that no policy is trained on, and probes."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.market import STARTING_BALANCE
from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.loop.conduct import Conduct, concerns, conduct
from rlforge.continuous.loop.performance import measured
from rlforge.continuous.loop.population import AgentModel, Labels, Population, SimulationState, Tick
from rlforge.continuous.market.books import Settled
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.serving.records import PROBE_TOKENS, PROBES, PairedOutcomes, Probe
from rlforge.engines.base import Generator
from rlforge.engines.grammars import grammar_of
from rlforge.games.encoding import encoder_of, text_ids
from rlforge.types import Completion, PolicyRef, SamplingParams

#: Added to the run's seed, so that the markets of training, comparison, holdout and probes differ.
_COMPARISON, _HOLDOUT, _PROBES = 104_729, 1_299_709, 15_485_863

#: Money at stake in a trade, as a share of the starting balance, where a version makes no trade.
_LEAST_STAKE = 0.01


class MarketTrials:
    """Runs policies through whole episodes, several markets at once, with the same random numbers.

    first: the version that the run begins with, to which new ones are compared besides.
    """

    def __init__(
        self,
        config: ContinuousConfig,
        engine: Generator,
        prompter: AgentPrompter,
        params: SamplingParams,
        reward: Callable[[Settled], float],
        first: PolicyRef,
    ) -> None:
        self._first = first
        self._of_first: tuple[Conduct, ...] | None = None
        self.prompter = prompter
        self._config, self._engine = config, engine
        self._params, self._reward = params, reward

    async def compare(self, policy: PolicyRef) -> dict[str, Any]:
        """``measured`` of ``policy`` and scripted traders in ``continuous.compare_episodes``."""
        seed = self._config.seed + _COMPARISON
        markets = await self._run(policy, self._config.continuous.compare_episodes, seed)
        return measured(markets)

    async def holdout(self, candidate: PolicyRef, current: PolicyRef) -> PairedOutcomes:
        """Mean rewards per agent and market, the same agent and market paired, and concerns."""
        new, old = await asyncio.gather(self._conduct(candidate), self._conduct(current))
        suspect: list[str] = []
        if self._config.deployment.check_conduct:
            suspect = self._concerns(new, old, current.uid)
            # A hack may creep in, by too little with each version to stand out.
            if not suspect and current.path_or_name != self._first.path_or_name:
                if self._of_first is None:
                    # The first version does not change, so it plays once.
                    self._of_first = await self._conduct(self._first)
                suspect = self._concerns(new, self._of_first, "the first version")
        return PairedOutcomes(
            candidate=tuple(one.reward for one in new),
            current=tuple(one.reward for one in old),
            concerns=tuple(suspect),
        )

    def _concerns(self, new: Sequence[Conduct], old: Sequence[Conduct], name: str) -> list[str]:
        return concerns(
            new,
            old,
            name,
            pnl_weight=self._config.decision_reward.pnl_weight,
            stake=_LEAST_STAKE * STARTING_BALANCE,
        )

    async def _conduct(self, policy: PolicyRef) -> tuple[Conduct, ...]:
        agents = self._config.continuous.agents
        # ``deployment.holdout_games`` counts each agent's episode, and a market has several.
        markets = math.ceil(self._config.deployment.holdout_games / agents)
        played = await self._run(policy, markets, self._config.seed + _HOLDOUT)
        return tuple(one for market in played for one in conduct(market))

    async def _run(self, policy: PolicyRef, markets: int, seed: int) -> list[list[Decision]]:
        return await asyncio.gather(
            *(self._episode(policy, seed + number) for number in range(markets))
        )

    async def _episode(self, policy: PolicyRef, seed: int) -> list[Decision]:
        market = self._config.market
        ticks: list[Tick] = []

        async def ask(
            agent_id: str, prompt: tuple[int, ...], draw: int, grammar: str | None = None
        ) -> Completion:
            params = dataclasses.replace(self._params, seed=draw, grammar=grammar)
            return await self._engine.generate(prompt, params, policy)

        async def record(tick: Tick) -> None:
            ticks.append(tick)

        population = Population(
            SimulationState(market, self._config.continuous.agents, seed),
            AgentModel(prompter=self.prompter, ask=ask, name=policy.uid, seed=seed),
            Labels(
                prefix="trial",
                now=lambda state: state.world.minute * 60,
                window_of=lambda moment: "trial",
            ),
            self._reward,
            record,
        )
        for _ in range(market.episode_ticks):
            await population.tick()
        # Decisions that the episode did not settle have no reward, and are left out.
        decisions = {decision.id: decision for tick in ticks for decision in tick.decisions}
        return [
            dataclasses.replace(
                decisions[outcome.decision_id],
                reward=outcome.reward,
                next_state=outcome.next_state,
                result=outcome.result,
            )
            for tick in ticks
            for outcome in tick.outcomes
        ]


def market_probes(
    config: ContinuousConfig, prompter: AgentPrompter, params: SamplingParams
) -> tuple[Probe, ...]:
    """Prompts of a moving market that every new version must answer, greedily."""
    greedy = _greedy(config, params)
    # Ticks lie in between, because prompts of one moment would be alike.
    draw = random.Random(config.seed + _PROBES)
    state = SimulationState(config.market, 1, config.seed + _PROBES)
    (agent,) = state.agents
    probes = []
    for _ in range(PROBES):
        for _ in range(draw.randrange(1, 6)):
            state.crowd.act()
            state.world.tick()
        question = prompter.ask(state.world.state(agent))
        probes.append(
            Probe(
                prompt_token_ids=question.token_ids,
                params=dataclasses.replace(greedy, grammar=grammar_of(question.schema)),
                extraction=prompter.extraction,
                legal_actions=question.legal,
            )
        )
    return tuple(probes)


def answer_probes(
    config: ContinuousConfig, tokenizer: Any, params: SamplingParams
) -> tuple[Probe, ...]:
    """The prompts of a run without a market; any text will do as an answer."""
    greedy = _greedy(config, params)
    probes = []
    for number in range(1, PROBES + 1):
        text = f"Count to {number}."
        asked = [{"role": "user", "content": text}]
        chat = tokenizer.chat_template
        tokens = encoder_of(tokenizer).chat(asked) if chat else text_ids(tokenizer, text)
        probes.append(Probe(prompt_token_ids=tokens, params=greedy, extraction="raw"))
    return tuple(probes)


def _greedy(config: ContinuousConfig, params: SamplingParams) -> SamplingParams:
    tokens = min(PROBE_TOKENS, params.max_tokens)
    return dataclasses.replace(params, temperature=0.0, max_tokens=tokens)
