"""The tiny model: its vocabulary, its lessons from real games, and the effect of training."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlforge.config.model import ModelConfig
from rlforge.continuous.loop.tiny_market import WarmupMarket
from rlforge.errors import RlforgeError
from rlforge.games.board import grid_board
from rlforge.games.grids import Grid, placements, winning_cells
from rlforge.games.registry import make_game
from rlforge.models.load import load_tokenizer, load_value_head, resolve_model, stop_token_ids
from rlforge.models.tiny.corpus import corpus, lessons
from rlforge.models.tiny.create import create_tiny, lr_factor
from rlforge.models.tiny.recipe import TINY, TinyRecipe, WarmupGame
from rlforge.models.tiny.vocabulary import build_tokenizer, closing_ids, spaced_words, token_id
from rlforge.types import EnvSpec

SIMPLETAK, TICTACTOE, KUHN = (g.env for g in TINY.games if isinstance(g, WarmupGame))


def _small(steps: int = 60) -> TinyRecipe:
    games = tuple(dataclasses.replace(game, games=60, batch_size=32) for game in TINY.games)
    return dataclasses.replace(TINY, games=games, steps=steps, hidden=64, heads=2, ffn=64)


@pytest.fixture(scope="module")
def taught():
    return corpus(_small())


# ---------------------------------------------------------------- words


def test_every_board_word_and_action_is_one_token(taught):
    tokenizer, _ = taught
    for env in (SIMPLETAK, TICTACTOE, KUHN):
        for seed in range(20):
            game = make_game(env, seed + 1000)
            while not game.done:
                view = game.view()
                assert view.board is not None
                assert view.legal_actions is not None
                words = spaced_words(view.board)
                ids = tokenizer.encode(view.board, add_special_tokens=False)
                assert ids == [token_id(tokenizer, word) for word in words]
                game.step(view.legal_actions[seed % len(view.legal_actions)])


@pytest.mark.parametrize("text", ["Ünïcode ♟ 你好\n\ttabs", "<|im_start|>user\nPlay [12]!", ""])
def test_any_text_survives_the_tokenizer(taught, text):
    tokenizer, _ = taught
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_conversations_are_rendered_by_the_chat_template(taught):
    tokenizer, _ = taught
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": "[1]?"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "Play.\n\n[1]?\n\n"


def test_all_tokens_with_a_closing_bracket_end_an_action(taught):
    tokenizer, _ = taught
    closing = closing_ids(tokenizer)
    assert token_id(tokenizer, " [12]") in closing
    assert token_id(tokenizer, " [check]") in closing
    assert token_id(tokenizer, "]") in closing
    assert all("]" in tokenizer.decode([index]) for index in closing)


def test_a_word_that_the_pre_split_divides_is_refused():
    with pytest.raises(RlforgeError, match="tokens for 'a b'"):
        build_tokenizer(["a b"])


# ---------------------------------------------------------------- lessons


def test_outcomes_are_discounted_by_own_turns_and_at_most_one():
    states = WarmupGame(env=KUHN, games=50, batch_size=1).play(0.5, seed=3)
    # Kuhn pays 1 or 2 chips, scaled to at most 1; a later turn of the player halves it.
    assert {abs(state.outcome) for state in states} == {0.25, 0.5, 1.0}
    one = WarmupGame(env=TICTACTOE, games=1, batch_size=1).play(0.5, seed=8)
    last = {state.view.player_id: i for i, state in enumerate(one)}
    for i, state in enumerate(one):
        own_later = [s for s in one[i + 1 :] if s.view.player_id == state.view.player_id]
        final = one[last[state.view.player_id]].outcome
        assert state.outcome == pytest.approx(final * 0.5 ** len(own_later))


@pytest.mark.parametrize(
    "game",
    [
        WarmupGame(env=SIMPLETAK, games=2, batch_size=1),
        WarmupMarket(accounts=3, games=1, batch_size=1, players=2),
    ],
)
def test_random_play_repeats_from_its_seed(game):
    first, again, other = (game.play(0.9, seed) for seed in (1, 1, 50))
    assert first == again
    assert first != other


@pytest.mark.parametrize("env", [SIMPLETAK, TICTACTOE])
def test_lessons_describe_their_boards_correctly(env, taught):
    """Each row, in each orientation, is decoded back into a board and checked with the rules."""
    tokenizer, _ = taught
    states = WarmupGame(env=env, games=3, batch_size=1).play(0.9, seed=11)
    taken = lessons(states, tokenizer)
    assert len(taken) == 8 * len(states)
    actions = [tokenizer.decode([i]).strip() for i in taken.action_ids]
    seen = set()
    for row in range(len(taken)):
        text = tokenizer.decode(taken.prompt_ids[row], clean_up_tokenization_spaces=False)
        rows = [word[1:] for word in text.split(" ")[1:-1]]
        cells = "".join(rows)
        grid = Grid(
            game="simpletak" if env is SIMPLETAK else "tictactoe",
            rows=len(rows),
            cols=len(rows[0]),
            me=sum(1 << i for i, cell in enumerate(cells) if cell == "m"),
            op=sum(1 << i for i, cell in enumerate(cells) if cell == "o"),
        )
        assert text == grid_board(grid)
        legal = placements(grid)
        assert [action in legal for action in actions] == taken.legal[row].tolist()
        for stones, marked in ((grid.me, taken.wins), (grid.op, taken.blocks)):
            completing = winning_cells(grid, stones)
            expected = [
                action in legal and bool(completing >> legal[action] & 1) for action in actions
            ]
            assert marked[row].tolist() == expected
        assert taken.outcome[row] == pytest.approx(states[row % len(states)].outcome)
        seen.add(text)
    assert len(seen) > 3 * len({state.view.board for state in states})


def test_lessons_of_games_without_a_grid(taught):
    tokenizer, _ = taught
    states = WarmupGame(env=KUHN, games=20, batch_size=1).play(0.9, seed=5)
    taken = lessons(states, tokenizer)
    assert taken.wins is None
    assert taken.blocks is None
    for row, state in enumerate(states):
        assert tokenizer.decode(taken.prompt_ids[row]) == state.view.board
        shown = {tokenizer.decode([i]).strip() for i in taken.action_ids[taken.legal[row]]}
        assert shown == set(state.view.legal_actions or ())


def test_games_without_a_board_are_refused():
    game = WarmupGame(env=EnvSpec(id="Nim-v0-train"), games=1, batch_size=1)
    with pytest.raises(RlforgeError, match="Nim-v0-train has no compact board"):
        game.play(0.9, seed=0)


# ---------------------------------------------------------------- training


def test_the_learning_rate_rises_stays_and_falls():
    factors = [lr_factor(step, TINY) for step in range(TINY.steps)]
    assert factors[0] == pytest.approx(1 / 30)
    assert set(factors[30:270]) == {1.0}
    assert factors[-1] == pytest.approx(0.02, abs=0.001)
    assert all(later < earlier for earlier, later in itertools.pairwise(factors[271:]))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny")
    create_tiny(directory, _small(), lambda text: None)
    return directory


def test_a_little_training_teaches_which_moves_are_legal(made):
    summary = json.loads((made / "warmup.json").read_text())
    for states in summary["states"].values():
        assert states["illegal"] < 0.6  # an untrained model puts 0.98 on other tokens
        assert states["kl_uniform"] > -1e-6
    assert summary["states"]["kuhn_poker"]["illegal"] < 0.25
    assert summary["recipe"]["steps"] == 60


def test_the_saved_model_is_an_ordinary_one(made):
    model = AutoModelForCausalLM.from_pretrained(made)
    tokenizer = AutoTokenizer.from_pretrained(made)
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"
    expected = sorted([tokenizer.eos_token_id, *closing_ids(tokenizer)])
    assert sorted(model.generation_config.eos_token_id) == expected
    assert stop_token_ids(ModelConfig(kind="hf", name=str(made)), tokenizer) == tuple(expected)
    prompt = tokenizer("ttt amo_ b_m_ c___ go", return_tensors="pt")
    generated = model.generate(**prompt, max_new_tokens=20, do_sample=False)
    assert tokenizer.decode(generated[0]).count("]") == 1


def test_the_value_head_predicts_outcomes(made):
    head = load_value_head(ModelConfig(kind="hf", name=str(made)))
    assert head is not None
    assert {name: tuple(t.shape) for name, t in head.items()} == {"weight": (1, 64), "bias": (1,)}
    summary = json.loads((made / "warmup.json").read_text())
    assert summary["states"]["kuhn_poker"]["value_r2"] > 0.1


def test_the_recipe_decides_the_weights(tmp_path):
    torch.rand(1)
    threads = torch.get_num_threads()
    state = torch.random.get_rng_state()
    games = tuple(dataclasses.replace(game, games=4) for game in TINY.games)
    weights, lines = [], []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        create_tiny(tmp_path / name, dataclasses.replace(_small(18), games=games), lines.append)
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    assert lines[0] == lines[10] == "playing 12 random games"
    assert lines[-1].startswith("warming up: step 18 of 18, loss ")
    assert len(lines) == 20
    first, again = weights
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_digest_follows_every_part_of_the_recipe():
    changed = [
        dataclasses.replace(TINY, seed=1),
        dataclasses.replace(TINY, steps=901),
        dataclasses.replace(TINY, games=TINY.games[:2]),
        dataclasses.replace(
            TINY, games=(dataclasses.replace(TINY.games[0], games=1), *TINY.games[1:])
        ),
    ]
    assert len({recipe.digest() for recipe in [TINY, TinyRecipe(), *changed]}) == 5


@pytest.mark.slow
def test_the_tiny_model_plays_like_random_legal():
    directory = Path(resolve_model(ModelConfig(kind="tiny")))
    summary = json.loads((directory / "warmup.json").read_text())
    for states in summary["states"].values():
        assert states["illegal"] < 0.02
        assert states["kl_uniform"] < 0.05
        assert states["value_r2"] > 0.02
    tokenizer = load_tokenizer(ModelConfig(kind="tiny"))
    assert np.prod([len(tokenizer.encode(f" [{i}]")) for i in range(16)]) == 1
