"""Samples from a market: the prompts of a run's agents, and actions that are read again."""

import dataclasses
import json
from collections import Counter

import pytest

from rlforge.config.roots import compose_run
from rlforge.config.sft import SftConfig
from rlforge.continuous.loop.teachers import AGENTS, market_of, trader_samples
from rlforge.continuous.market.trading import AgentPrompter
from rlforge.continuous.market.world import World
from rlforge.models.load import load_tokenizer
from rlforge.rollout.datasets import AnswerEncoder
from rlforge.rollout.demonstrations import make_samples


@pytest.fixture(scope="module")
def config(small_model):
    given = [
        *("+experiment=smollm2_market", "data=value_trader", "data.games=1", "market=small"),
        *("model.kind=hf", f"model.name={small_model}", "model.prompt_template=default"),
        # The small model's tokenizer writes prose in single letters.
        *("engine.max_tokens=400", "engine.max_model_len=4096"),
    ]
    return compose_run(given, None, SftConfig).config


def with_data(config, **changes):
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))


def samples_of(config):
    left_out = Counter()
    encoder = AnswerEncoder(config.model, load_tokenizer(config.model))
    return list(trader_samples(config, market_of(config), encoder, left_out)), left_out


@pytest.fixture(scope="module")
def every(config):
    return samples_of(config)


def test_traders_leave_prompts_and_actions_of_every_decision(config, every):
    samples, left_out = every
    assert len(samples) == AGENTS * market_of(config).episode_ticks
    assert not +left_out
    tokenizer = load_tokenizer(config.model)
    prompter = AgentPrompter(config, market_of(config), tokenizer)
    world = World(market_of(config))
    world.join("agent")
    any_question = prompter.ask(world.state("agent"))
    kinds = set()
    for sample in samples:
        assert "You trade on a market" in sample.observation
        action = json.loads(sample.action)
        text = tokenizer.decode(sample.token_ids, skip_special_tokens=True)
        assert prompter.read(any_question, text).action == action
        assert -1 <= sample.reward <= 1
        kinds.add(action["type"])
    assert {"BUY_SHARES", "NO_OP"} <= kinds
    assert samples == samples_of(config)[0]


def test_decisions_count_by_their_own_outcome(config, every):
    wins, high = (
        samples_of(with_data(config, **changes))
        for changes in ({"keep": "wins"}, {"min_reward": 0.4})
    )
    for kept, left_out in (wins, high):
        assert 0 < len(kept) < len(every[0])
        assert left_out["by outcome"] == len(every[0]) - len(kept)
    traded = {"BUY_SHARES", "SELL_SHARES", "OPEN_POSITION", "CLOSE_POSITION"}
    assert {json.loads(one.action)["type"] for one in wins[0]} <= traded
    assert all(sample.reward >= 0.4 for sample in high[0])


def test_only_imitated_traders_are_learned_from(config, tmp_path):
    players = {"players": ["value_trader", "noise_trader"], "imitate": ["value_trader"]}
    config = with_data(config, games=2, validation=0.5, **players)
    said: list[str] = []
    made = make_samples(config, tmp_path, said.append)
    assert len(made.train) == len(made.validation) == AGENTS // 2 * market_of(config).episode_ticks
    assert {sample.policy_uid for sample in made.train} == {"value_trader"}
    assert "value_trader, noise_trader trade for 2 episodes" in said
