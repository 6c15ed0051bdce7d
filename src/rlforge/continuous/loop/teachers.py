"""Scripted traders, from whose decisions a supervised run learns in the prompts of agents."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlforge.config.complaints import InvalidValuesError
from rlforge.config.compose import Composed
from rlforge.config.rules import validated
from rlforge.config.sft import SftConfig
from rlforge.continuous.config.continuous import ContinuousConfig, DecisionRewardConfig
from rlforge.continuous.config.market import MarketConfig
from rlforge.continuous.decisions.reward import DecisionReward
from rlforge.continuous.loop.population import result_of
from rlforge.continuous.market import text
from rlforge.continuous.market.actions import NO_OP
from rlforge.continuous.market.traders import Crowd, make_trader
from rlforge.continuous.market.trading import AgentPrompter, asked_form
from rlforge.continuous.market.world import World
from rlforge.continuous.preflight.continuous import agent_problems, check_answers
from rlforge.kinds import Say
from rlforge.preflight.policy import Problems
from rlforge.rollout.datasets import AnswerEncoder, given_sample, written
from rlforge.rollout.demonstrations import SAY_EVERY_S
from rlforge.rollout.schedule import derive_seed
from rlforge.run.supervised import Players
from rlforge.samples import Sample
from rlforge.types import PolicyRef

AGENTS = 8
"""How many of ``data.players`` trade in an episode, beside the market's own traders."""

KINDS = {f"{kind}_trader": kind for kind in ("noise", "momentum", "value")}
"""The traders that can be learned from, by the names of ``data.players``.

Insiders cannot: they know what an agent does not see.
"""


class Traders(Players):
    """``AGENTS`` traders in each of ``data.games`` episodes of a market."""

    command = ContinuousConfig.command

    def problems(self, composed: Composed[SftConfig], *, keys: bool) -> Problems:
        """Find players that do not trade, and actions that are not read as written."""
        data = composed.config.data
        try:
            market = market_of(composed.config)
        except InvalidValuesError as error:
            for one in error.wrong:
                yield composed.refusal(dataclasses.replace(one, key=f"market.{one.key}"))
            return
        yield from agent_problems(composed, market, AGENTS)
        for name in data.players:
            if name not in KINDS:
                reason = f"{name} does not trade in markets; there are {', '.join(KINDS)}"
                yield composed.error("data.players", reason)
        if data.last_turns is not None:
            yield composed.error("data.last_turns", "is for games; a market has no last turns")
        said = written(data.answer, asked_form(composed.config.model), json.dumps(NO_OP))
        if text.read(said).action != NO_OP:
            reason = f"the action in {said!r} is not the one that is read"
            yield composed.error("data.answer", reason)

    def check_prompts(self, config: SftConfig) -> None:
        check_answers(config, market_of(config))

    def opponents(self, config: SftConfig) -> Mapping[str, Sequence[PolicyRef]]:
        return {}

    def answers(
        self, config: SftConfig, run_dir: Path, encoder: AnswerEncoder, out: Counter[str], say: Say
    ) -> list[Sample]:
        found, data, reported = list[Sample](), config.data, time.monotonic()
        say(f"{', '.join(data.players)} trade for {data.games:,} episodes")
        for sample in trader_samples(config, market_of(config), encoder, out):
            found.append(sample)
            if time.monotonic() - reported >= SAY_EVERY_S:
                reported = time.monotonic()
                say(f"{len(found):,} decisions of {sample.origin} and the episodes before it")
        return found


TRADERS = Traders()


def market_of(config: SftConfig) -> MarketConfig:
    return validated(MarketConfig, config.market)


def trader_samples(
    config: SftConfig, market: MarketConfig, encoder: AnswerEncoder, left_out: Counter[str]
) -> Iterator[Sample]:
    """Decisions of ``data.players`` that ``data.imitate`` names, by their outcomes."""
    prompter = AgentPrompter(config, market, encoder.tokenizer)
    data = config.data
    for number in range(data.games):
        seed = derive_seed(config.seed, "data-game", number)
        world = World(market, seed)
        names = list(itertools.islice(itertools.cycle(data.players), AGENTS))
        for place in range(AGENTS):
            world.join(f"agent-{place}")
        crowd = Crowd(world, seed)
        traders = [
            make_trader(KINDS[name], market, random.Random(f"{seed}/{place}"))
            for place, name in enumerate(names)
        ]
        open_samples: dict[int, Sample] = {}
        for turn in range(market.episode_ticks):
            # As in a continuous run, all traders see the market as it was before the tick.
            states = [world.state(f"agent-{place}") for place in range(AGENTS)]
            for place, (state, name, trader) in enumerate(zip(states, names, traders, strict=True)):
                action = trader.decide(state)
                receipt = world.decide(f"agent-{place}", action)
                if not receipt.accepted:
                    left_out["refused by the market"] += 1
                elif name in (data.imitate or data.players):
                    answer = written(data.answer, prompter.extraction, json.dumps(action))
                    question = prompter.ask(state)
                    tokens = encoder.answer(answer, after=question.text)
                    # A tokenizer may change a text, from which another action would be read.
                    if prompter.read(question, encoder.text(tokens)).action != action:
                        left_out["not read as their action"] += 1
                        continue
                    open_samples[receipt.ticket] = given_sample(
                        question.token_ids,
                        tokens,
                        origin=f"data-{number:07d}",
                        env_id="market",
                        player_id=place,
                        turn_index=turn,
                        last_turn=False,
                        observation=question.text,
                        action=json.dumps(action),
                        policy_uid=name,
                    )
            crowd.act()
            for settled in world.tick():
                sample = open_samples.pop(settled.ticket, None)
                if sample is None:
                    continue
                reward = _REWARD(result_of(settled)).reward
                pnl = settled.pnl
                if data.counts("draw" if pnl == 0 else "win" if pnl > 0 else "loss", reward):
                    yield replace(sample, raw_reward=reward, reward=reward)
                else:
                    left_out["by outcome"] += 1


_REWARD = DecisionReward(DecisionRewardConfig())
