import dataclasses
import re

import pytest
from tests.factories import CHATML, byte_tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from rlforge.config.plugins import EXTRACTIONS, PROMPTS
from rlforge.config.prompts import PromptConfig
from rlforge.errors import ConfigError
from rlforge.games.base import View
from rlforge.games.prompts import Prompter, Template
from rlforge.games.registry import make_game
from rlforge.types import EnvSpec, Form

BOARD = Form(template="board")
MARKUP = [
    *("<bos>", "<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<start_of_turn>"),
    *("<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
]


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level BPE tokenizer that puts ``<bos>`` in front unless disabled."""
    named = {"bos_token": "<bos>", "chat_template": CHATML}
    made = byte_tokenizer("tak go a____ You play a game" * 3, MARKUP, **named)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", made.bos_token_id)]
    )
    return made


@pytest.fixture
def view():
    return make_game(EnvSpec(id="SimpleTak-v0-train"), 0).view()


@pytest.mark.parametrize("template", PROMPTS.names())
def test_ids_are_those_of_the_text_behind_one_bos(tokenizer, view, template):
    text, ids = Prompter(tokenizer).encode(Form(template=template), view)
    begins = text if text.startswith("<bos>") else f"<bos>{text}"
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == begins
    assert list(ids) == tokenizer.encode(begins, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert Prompter(tokenizer).encode(Form(template=template), view) == (text, ids)


@pytest.mark.parametrize(
    ("template", "first", "last"),
    [
        ("qwen3-zs", "<|im_start|>", "<|im_start|>assistant\n"),
        ("qwen3-sp", "<|im_start|>", "<|im_start|>assistant\n"),
        ("qwen3-reasoning", "<|im_start|>", "<|im_start|>assistant\n<think>\n"),
        ("gemma3-zs", "<bos>", "<start_of_turn>model\n"),
        ("llama-instruct-zs", "<|begin_of_text|>", "assistant<|end_header_id|>\n\n"),
        ("chat", "<|im_start|>system\n", "<|im_start|>assistant\n"),
        ("chat-actions", "<|im_start|>system\n", "<|im_start|>assistant\n"),
        ("default", "You are a player", "Answer:"),
    ],
)
def test_a_family_gets_its_own_turn_markup_around_the_observation(
    tokenizer, view, template, first, last
):
    text, ids = Prompter(tokenizer).encode(Form(template=template), view)
    assert text.startswith(first)
    assert text.endswith(last)
    assert text.count(view.observation.strip()) == 1
    assert r"\boxed{}" in text
    in_text = [mark for mark in MARKUP if mark in text]
    for mark in in_text:
        assert ids.count(tokenizer.convert_tokens_to_ids(mark)) == text.count(mark)


def test_zero_sum_and_single_player_templates_say_which_kind_of_game_it_is(tokenizer, view):
    prompter = Prompter(tokenizer)
    for template in ("qwen3-zs", "qwen3-reasoning", "gemma3-zs", "llama-instruct-zs"):
        assert "two-player zero-sum game" in prompter.encode(Form(template=template), view)[0]
    assert "on your own" in prompter.encode(Form(template="qwen3-sp"), view)[0]


@pytest.mark.parametrize("template", [t for t in PROMPTS.names() if t != "board"])
def test_the_answer_is_asked_for_in_the_way_it_is_read(tokenizer, view, template):
    asked = {
        name: Prompter(tokenizer).encode(Form(template=template, extraction=name), view)[0]
        for name in EXTRACTIONS.names()
    }
    assert len(set(asked.values())) == len(asked)
    assert [name for name, text in asked.items() if r"\boxed{}" in text] == ["boxed"]
    assert "square brackets" in asked["bracket"]
    assert "last line" in asked["last_line"]
    assert "number" in asked["number"]


def test_remembered_prompts_give_the_same_ids_without_asking_again(view):
    class Counting:
        chat_template = unk_token_id = bos_token_id = eos_token_id = None
        added_tokens_decoder = {}  # noqa: RUF012
        calls = 0

        def encode(self, text, *, add_special_tokens):
            self.calls += 1
            return [len(text)]

    counting = Counting()
    prompter = Prompter(counting)
    first, calls = prompter.encode(BOARD, view), counting.calls
    assert prompter.encode(BOARD, view) == first
    assert counting.calls == calls
    prompter.encode(Form(), view)
    calls = counting.calls
    prompter.encode(Form(), view)
    assert counting.calls == calls + 1  # long prompts do not recur


def test_messages_are_an_instruction_and_the_observation(view):
    system, user = Prompter(None).messages(Form(template="chat", extraction="bracket"), view)
    assert (system["role"], user["role"]) == ("system", "user")
    assert "square brackets" in system["content"]
    assert user["content"] == view.observation.strip()
    [user] = Prompter(None).messages(Form(template="qwen3-zs", extraction="bracket"), view)
    assert "zero-sum" in user["content"]
    assert "square brackets" in user["content"]
    assert Prompter(None).messages(BOARD, view) == [{"role": "user", "content": view.board}]


def test_placeholders_are_filled_and_other_braces_stay():
    asked = Template(user="{observation}\n\nYour actions: {legal_actions}.\n\n{request}")
    view = View(player_id=0, observation="Your move.\n", legal_actions=("[a]", "[b]"))
    [user] = asked.messages(view, "Answer.")
    assert user["content"] == "Your move.\n\nYour actions: [a], [b].\n\nAnswer."
    [user] = asked.messages(dataclasses.replace(view, legal_actions=None), "Answer.")
    assert user["content"] == "Your move.\n\nAnswer."
    asked = Template(user=r'{{observation}} {"a": 1} \boxed{} {observation}')
    [user] = asked.messages(View(player_id=0, observation="{request} {board}"), "Answer.")
    assert user["content"] == r'{observation} {"a": 1} \boxed{} {request} {board}'


@pytest.mark.parametrize("template", [t for t in PROMPTS.names() if t != "board"])
def test_a_later_turn_is_asked_about_what_is_new(template):
    view = View(player_id=0, observation="Rules. Board 1. Board 2.", legal_actions=("[a]",))
    whole = Prompter(None).reply(Form(template=template), view)["content"]
    assert "Rules. Board 1. Board 2." in whole
    assert "two-player" not in whole  # said once
    new = Prompter(None).reply(Form(template=template), dataclasses.replace(view, news="Board 2."))
    assert new["role"] == "user"
    assert "Board 2." in new["content"]
    assert "Rules" not in new["content"]


def test_a_template_of_the_configuration_is_found_by_its_name(tokenizer, view):
    own = {"terse": PromptConfig(system="Short.", user="{board}", assistant="<x>", markup="chatml")}
    text, _ = Prompter(tokenizer, own).encode(Form(template="terse"), view)
    assert text == (
        "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\n"
        f"{view.board}<|im_end|>\n<|im_start|>assistant\n<x>"
    )
    roles = {"begin": "<bos>", "user": "U: {content}\n", "assistant": "A: {content}\n"}
    own = {"plain": PromptConfig(user="{observation}", roles=roles)}
    text, ids = Prompter(tokenizer, own).encode(Form(template="plain"), view)
    assert text == f"<bos>U: {view.observation.strip()}\nA: "
    assert ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize("name", ["TicTacToe", "SimpleTak", "ConnectFour"])
def test_a_grid_shows_the_squares_from_the_side_of_the_player_to_move(name):
    game = make_game(EnvSpec(id=f"{name}-v0-train"), 1)
    first = game.view()
    game.step(first.legal_actions[0])
    view = game.view()
    form = Template(user="{grid}")
    before, after = (
        re.split(r"[|\n]", form.messages(each, "")[0]["content"]) for each in (first, view)
    )
    assert before == [str(number) for number in range(view.grid.rows * view.grid.cols)]
    [played] = [cell for cell, mark in enumerate(after) if mark != str(cell)]
    assert after[played] == "O"
    if name != "ConnectFour":
        assert first.legal_actions[0] == f"[{played}]"


def test_what_a_template_cannot_do_is_said(tokenizer, view):
    prompter = Prompter(tokenizer)
    with pytest.raises(ConfigError, match="did you mean qwen3-zs"):
        PROMPTS.find("qwen3_zs")
    with pytest.raises(ConfigError, match="did you mean board"):
        prompter.encode(Form(template="bord"), view)
    with pytest.raises(ConfigError, match="did you mean boxed"):
        prompter.encode(Form(extraction="boxd"), view)
    with pytest.raises(ConfigError, match="needs a game with a compact board"):
        prompter.encode(BOARD, View(player_id=0, observation="Say something."))
    squares = Prompter(tokenizer, {"squares": PromptConfig(user="{grid}")})
    with pytest.raises(ConfigError, match="needs a game on a grid of squares"):
        squares.encode(
            Form(template="squares"), View(player_id=0, observation="Say something.", board="a b")
        )
    without = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(ConfigError, match="needs a chat template"):
        Prompter(without).encode(Form(template="chat"), view)
