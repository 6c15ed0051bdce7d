"""The tiny trader: the market's vocabulary, lessons from random play, the trained model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlforge.config.model import ModelConfig
from rlforge.continuous.loop.tiny_market import (
    ANSWERS,
    PROMPT_WORDS,
    RECIPE,
    TINY_MARKET,
    TINY_SOCIAL,
    SocialMarket,
    WarmupMarket,
)
from rlforge.continuous.market.compact import compact_vocabulary
from rlforge.continuous.market.game import env_ids
from rlforge.games.registry import make_game
from rlforge.models import made as kinds
from rlforge.models.catalog import describe_models, locate
from rlforge.models.load import resolve_model
from rlforge.models.tiny.corpus import corpus
from rlforge.models.tiny.create import create_tiny
from rlforge.models.tiny.recipe import TINY, TinyRecipe
from rlforge.models.tiny.vocabulary import spaced_words, token_id
from rlforge.types import EnvSpec


def _small(steps: int = 90) -> TinyRecipe:
    games = (
        WarmupMarket(accounts=3, games=3, batch_size=64),
        WarmupMarket(accounts=1, games=1, batch_size=16),
    )
    return dataclasses.replace(RECIPE, games=games, steps=steps, hidden=48, ffn=64)


@pytest.fixture(scope="module")
def taught():
    return corpus(_small())


@pytest.fixture(scope="module")
def states():
    return WarmupMarket(accounts=2, games=3, batch_size=1).play(0.5, seed=7)


def test_every_word_and_answer_of_every_market_is_one_token(taught):
    tokenizer, _ = taught
    for market_id in env_ids():
        game = make_game(EnvSpec(id=market_id, source="market", num_players=2), seed=3)
        for turn in range(12):
            view = game.view()
            assert view.board is not None
            assert view.legal_actions is not None
            ids = tokenizer.encode(view.board, add_special_tokens=False)
            assert ids == [token_id(tokenizer, word) for word in spaced_words(view.board)]
            assert all(token_id(tokenizer, f" {action}") for action in view.legal_actions)
            game.step(view.legal_actions[turn % len(view.legal_actions)])


def test_answers_that_no_warm_up_state_allowed_are_one_token_too(taught):
    tokenizer, _ = taught
    words = {*PROMPT_WORDS, *ANSWERS}
    assert "e_down" in words
    assert len({token_id(tokenizer, f" {word}") for word in words}) == len(words)


def test_random_markets_offer_every_answer(states):
    offered = {action for state in states for action in state.view.legal_actions or ()}
    assert offered == set(ANSWERS)
    assert {state.view.player_id for state in states} == set(range(12))


@pytest.mark.parametrize("social", [False, True])
def test_facts_name_the_words_of_the_prompt(states, social):
    words, answers = compact_vocabulary(social=social)
    if social:
        states = SocialMarket(accounts=2, games=3, batch_size=1).play(0.5, seed=7)
    for state in states:
        assert state.view.board is not None
        held = {word for word, there in zip(words, state.facts[1:], strict=True) if there}
        assert held == set(state.view.board.split())
        assert {*state.view.legal_actions} <= {*answers}


def test_facts_tell_how_the_market_in_focus_ends():
    """An account is right with probability 0.5 to 0.95, so where two agree, most are right."""
    many = WarmupMarket(accounts=2, games=12, batch_size=1, players=6).play(0.9, seed=1)
    for yes, no in (("yes", "no"), ("up", "down")):
        good, bad = (
            [s.facts[0] for s in many if f" a_{view} b_{view} " in f"{s.view.board} "]
            for view in (yes, no)
        )
        assert np.mean(good) > 0.6
        assert np.mean(bad) < 0.4


def test_outcomes_are_discounted_by_own_turns(states):
    assert max(abs(state.outcome) for state in states) == 1
    one = [state.outcome for state in states[: 24 * 12] if state.view.player_id == 4]
    assert len(one) == 24
    assert one == pytest.approx([one[-1] * 0.5**ahead for ahead in reversed(range(24))])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny_market")
    create_tiny(directory, _small(), lambda text: None)
    return directory


def test_a_little_training_teaches_which_answers_are_legal(made):
    summary = json.loads((made / "warmup.json").read_text())
    assert set(summary["states"]) == {"market-3", "market-1"}
    for measured in summary["states"].values():
        assert measured["illegal"] < 0.2  # an untrained model puts 0.95 on other tokens
        assert -1e-6 < measured["kl_uniform"] < 0.5


def test_the_tiny_trader_answers_one_word_in_brackets(made):
    model = AutoModelForCausalLM.from_pretrained(made)
    tokenizer = AutoTokenizer.from_pretrained(made)
    text = "market bet p6 move_up left2 a_yes b_none c_no mine_none gain_flat cash3 go"
    prompt = tokenizer(text, return_tensors="pt")
    generated = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(generated[0, -1]).strip() in ANSWERS
    assert generated.shape[1] == prompt["input_ids"].shape[1] + 1


def test_the_two_tiny_models_have_separate_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path))
    # Recorded studies used exactly this model.
    assert kinds.TINY.cache_name == "tiny-0f17f27402"
    assert TINY_MARKET.cache_name == "tiny_market-d7b8fa9d13"
    assert TINY_SOCIAL.cache_name.startswith("tiny_social-")
    folder = tmp_path / TINY_MARKET.cache_name
    assert TINY.digest() not in folder.name
    config = ModelConfig(kind="tiny_market")
    assert locate(config).place == "made on first use"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve_model(config) == str(folder)
    assert locate(config).place == str(folder)
    options = Path(__file__).parents[2] / "conf" / "model"
    ready = {row.option: row.state for row in describe_models(options)}
    assert ready["tiny_market"] == f"ready: {folder}"
    assert ready["tiny"] == "made on first use"


@pytest.mark.slow
def test_the_tiny_trader_starts_with_random_play():
    directory = Path(resolve_model(ModelConfig(kind="tiny_market")))
    summary = json.loads((directory / "warmup.json").read_text())
    for measured in summary["states"].values():
        # Not 0: the prompt shows neither the accounts followed nor cash to the cent.
        assert measured["illegal"] < 0.04
        assert measured["kl_uniform"] < 0.06
