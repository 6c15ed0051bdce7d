"""Samples of supervised fine-tuning from a market: decisions of scripted traders.

They trade as the agents of a continuous run would, and a sample has the prompt that such an agent
gets. So a model that has learned them is ready for ``rlforge continuous``.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from rlforge.config.continuous import DecisionRewardConfig
from rlforge.config.market import MarketConfig
from rlforge.config.sft import SftConfig
from rlforge.games.trading import AgentPrompter
from rlforge.market.traders import Crowd, make_trader
from rlforge.market.world import World
from rlforge.rollout.datasets import AnswerEncoder, written
from rlforge.rollout.schedule import derive_seed
from rlforge.trajectories.reward import DecisionReward, result_of
from rlforge.types import OTHER_RUN, Sample

TRADERS = 8
"""How many of ``data.players`` trade in an episode, beside the market's own traders."""

KINDS = {f"{kind}_trader": kind for kind in ("noise", "momentum", "value")}
"""The traders that can be learned from, by the names of ``data.players``.

Insiders cannot: they know what an agent does not see.
"""


def trader_samples(
    config: SftConfig, market: MarketConfig, encoder: AnswerEncoder, left_out: Counter[str]
) -> Iterator[Sample]:
    """Decisions of ``data.players`` that ``data.imitate`` names, by their outcomes.

    left_out: counts decisions that are no samples, by reason.
    """
    prompter = AgentPrompter(config, market, encoder.tokenizer)
    for number in range(config.data.games):
        yield from _episode(config, market, encoder, prompter, number, left_out)


def _episode(
    config: SftConfig,
    market: MarketConfig,
    encoder: AnswerEncoder,
    prompter: AgentPrompter,
    number: int,
    left_out: Counter[str],
) -> Iterator[Sample]:
    data, seed = config.data, derive_seed(config.seed, "data-game", number)
    world = World(market, seed)
    names = list(itertools.islice(itertools.cycle(data.players), TRADERS))
    for place in range(TRADERS):
        world.join(f"agent-{place}")
    crowd = Crowd(world, seed)
    traders = [
        make_trader(KINDS[name], market, random.Random(f"{seed}/{place}"))
        for place, name in enumerate(names)
    ]
    open_samples: dict[int, Sample] = {}
    for turn in range(market.episode_ticks):
        # As in a continuous run, all of them see the market as it was before the tick.
        states = [world.state(f"agent-{place}") for place in range(TRADERS)]
        for place, (state, name, trader) in enumerate(zip(states, names, traders, strict=True)):
            action = trader.decide(state)
            receipt = world.decide(f"agent-{place}", action)
            if not receipt.accepted:
                left_out["refused by the market"] += 1
            elif name in (data.imitate or data.players):
                answer = written(data.answer, prompter.extraction, json.dumps(action))
                question = prompter.ask(state)
                tokens = encoder.answer(answer, after=question.text)
                if prompter.read(question, encoder.text(tokens)).action != action:
                    left_out["not read as their action"] += 1
                    continue
                open_samples[receipt.ticket] = Sample(
                    origin=f"data-{number:07d}",
                    env_id="market",
                    player_id=place,
                    turn_index=turn,
                    last_turn=False,
                    observation=question.text,
                    action=json.dumps(action),
                    prompt_token_ids=question.token_ids,
                    token_ids=tokens,
                    logprobs=(0.0,) * len(tokens),
                    policy_uid=name,
                    policy_version=OTHER_RUN,
                )
        for _ in crowd.act():
            pass
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
