"""Prompts for agents in a market: as long as the context allows, and answers in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlforge.config.compose import compose
from rlforge.config.continuous import ContinuousConfig
from rlforge.errors import ConfigError
from rlforge.games.trading import AgentPrompter
from rlforge.market.text import describe
from rlforge.market.traders import Crowd
from rlforge.market.world import World


def make(tokenizer: Any, *overrides: str) -> AgentPrompter:
    given = ["model.prompt_template=default", "model.action_extraction=json", *overrides]
    config = compose(given, root=ContinuousConfig).config
    return AgentPrompter(config, config.market, tokenizer)


@pytest.fixture(scope="module")
def state() -> Any:
    """What a noise trader sees after eight ticks: positions, news, posts."""
    world = World(ContinuousConfig().market, 0)
    crowd = Crowd(world, 0)
    for _ in range(8):
        for _ in crowd.act():
            pass
        world.tick()
    return world.state("noise-1")


@pytest.fixture(scope="module")
def tokenizer(state: Any) -> Any:
    """Byte-level, with a few hundred merges of the market's own words."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(
        [describe(state)],
        trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=core)


def test_a_prompt_shows_as_much_of_the_state_as_the_context_has_room_for(
    tokenizer: Any, state: Any
) -> None:
    whole = make(tokenizer, "engine.max_model_len=8192", "learner.max_train_len=null").ask(state)
    assert describe(state) in whole.text
    for share in (0.99, 0.7, 0.6):
        tokens = int(share * len(whole.token_ids))
        prompter = make(tokenizer, "engine.max_tokens=100", f"engine.max_model_len={tokens + 100}")
        cut = prompter.ask(state)
        assert len(cut.token_ids) <= tokens
        # Room for another line is left only where lines became brief and all of them fit.
        assert len(cut.token_ids) > tokens - 120 or "(Not shown: " not in cut.text
    assert "(Not shown: " in cut.text
    learned = make(tokenizer, "engine.max_tokens=100", f"learner.max_train_len={tokens}").ask(state)
    assert len(learned.token_ids) <= tokens - 100


def test_a_prompt_is_no_longer_than_the_market_wants(tokenizer: Any, state: Any) -> None:
    asked = make(tokenizer, "market.prompt_chars=500", "learner.max_train_len=null").ask(state)
    assert describe(state, 500) in asked.text


def test_a_context_without_room_for_a_state_is_refused_at_once(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"has \d+ tokens, and there is room for 500"):
        make(tokenizer, "engine.max_tokens=100", "engine.max_model_len=600")


@pytest.mark.parametrize("extraction", ["json", "boxed", "raw", "last_line"])
def test_what_the_prompt_asks_for_is_read_and_asked_for_once(
    tokenizer: Any, state: Any, extraction: str
) -> None:
    prompter = make(tokenizer, f"model.action_extraction={extraction}")
    question = prompter.ask(state)
    action = json.dumps({"type": "FOLLOW_USER", "userId": "wire"})
    said = rf"\boxed{{{action}}}" if extraction == "boxed" else action
    assert (r"\boxed" in question.text) == (extraction == "boxed")
    assert question.text.count("JSON object") == (2 if extraction == "json" else 1)
    assert prompter.read(question, f"They know more.\n{said}").action == json.loads(action)


def test_json_prose_and_words_are_all_read(tokenizer: Any, state: Any) -> None:
    prompter = make(tokenizer, "model.action_extraction=raw")
    question = prompter.ask(state)
    reading = prompter.read(question, 'I think so. {"type": "FOLLOW_USER", "userId": "wire"}')
    assert reading.action == {"type": "FOLLOW_USER", "userId": "wire"}
    assert prompter.read(question, "[hold]").action == {"type": "NO_OP"}
    assert "no JSON action" in prompter.read(question, "let me think about that").problem
