"""Samples from a market: the prompts of a run's agents, and actions that are read again."""

import json
from collections import Counter
from pathlib import Path

import pytest

from rlforge.config.roots import compose_run
from rlforge.config.sft import SftConfig
from rlforge.games.trading import AgentPrompter
from rlforge.market.world import World
from rlforge.models.load import load_tokenizer
from rlforge.rollout.datasets import AnswerEncoder
from rlforge.rollout.demonstrations import make_samples
from rlforge.rollout.traders import TRADERS, trader_samples


def config_of(model: Path, *overrides: str) -> SftConfig:
    given = [
        *("+experiment=smollm2_market", "data=value_trader", "data.games=2", "market=small"),
        *("model.kind=hf", f"model.name={model}", "model.prompt_template=default"),
        # The small model's tokenizer writes prose in single letters.
        *("engine.max_tokens=400", "engine.max_model_len=4096", *overrides),
    ]
    return compose_run(given, None, SftConfig).config


def samples_of(config):
    left_out = Counter()
    encoder = AnswerEncoder(config.model, load_tokenizer(config.model))
    return list(trader_samples(config, config.market, encoder, left_out)), left_out


@pytest.fixture(scope="module")
def every(small_model):
    """All samples of two episodes."""
    return samples_of(config_of(small_model))


def test_traders_leave_prompts_and_actions_of_every_decision(small_model, every):
    config = config_of(small_model)
    samples, left_out = every
    assert len(samples) == 2 * TRADERS * config.market.episode_ticks
    assert not +left_out
    tokenizer = load_tokenizer(config.model)
    prompter = AgentPrompter(config, config.market, tokenizer)
    world = World(config.market)
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


@pytest.mark.parametrize(
    ("override", "low"), [("data.keep=wins", 1e-9), ("data.min_reward=0.4", 0.4)]
)
def test_decisions_count_by_their_own_outcome(small_model, every, override, low):
    kept, left_out = samples_of(config_of(small_model, override))
    assert 0 < len(kept) < len(every[0])
    assert left_out["by outcome"] == len(every[0]) - len(kept)
    if low == 0.4:
        assert all(sample.reward >= low for sample in kept)
    else:
        traded = {"BUY_SHARES", "SELL_SHARES", "OPEN_POSITION", "CLOSE_POSITION"}
        assert {json.loads(one.action)["type"] for one in kept} <= traded


async def test_only_imitated_traders_are_learned_from(small_model, tmp_path):
    config = config_of(
        small_model,
        "data.players=[value_trader,noise_trader]",
        "data.imitate=[value_trader]",
        "data.validation=0.5",
    )
    said: list[str] = []
    made = await make_samples(config, tmp_path, said.append)
    assert len(made.train) == len(made.validation) == TRADERS // 2 * config.market.episode_ticks
    assert {sample.policy_uid for sample in made.train} == {"value_trader"}
    assert "value_trader, noise_trader trade for 2 episodes" in said
