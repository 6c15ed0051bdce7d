"""A seat's conversation, in the chat templates of real model families."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rlforge.games.base import View
from rlforge.games.prompts import Prompter
from rlforge.rollout.conversation import Conversation, new_part
from rlforge.types import Completion

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = PLAIN.replace("m.content", "m.content | trim")
#: As Qwen3 and DeepSeek-R1 do: only answers after the last question keep their reasoning.
FORGETTING = PLAIN.replace("m.content", "m.content.split('</think>')[-1].lstrip('\\n')")
RULES = "You are player 0 in a game of words. Say one that was not said before."


def make_tokenizer(chat_template):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = f"{RULES} \\boxed{{go}} Board: x.o\n\nplayer user assistant system"
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=alphabet,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    made.train_from_iterator([text] * 3, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", chat_template=chat_template
    )


TOKENIZERS = {
    name: make_tokenizer(template)
    for name, template in {
        "plain": PLAIN,
        "trimming": TRIMMING,
        "forgetting": FORGETTING,
    }.items()
}


def view(*paragraphs):
    return View(player_id=0, observation="\n\n".join([RULES, *paragraphs]))


def answered(tokenizer, text, *, stop=True):
    """``text`` as an engine answers: tokens that need not be those of its own encoding."""
    draw = random.Random(text)
    pieces, rest = [], text
    while rest:
        n = draw.randint(1, 4)
        pieces += tokenizer.encode(rest[:n], add_special_tokens=False)
        rest = rest[n:]
    return Completion(
        text=text,
        token_ids=(*pieces, tokenizer.eos_token_id) if stop else tuple(pieces),
        finish_reason="stop" if stop else "length",
    )


def play(tokenizer, answers, *, template="chat", room=None, stop=True):
    """The questions of a game in which the board grows by a paragraph a turn."""
    chat = Conversation(Prompter(tokenizer), template, "boxed", room)
    questions, board = [], []
    for turn, text in enumerate(answers):
        board = [*board, f"Move {turn}: x to {turn}"]
        question = chat.ask(view(*board))
        chat.add(question, answered(tokenizer, text, stop=stop))
        questions.append(question)
    return questions


def begins(question, before, tokenizer, text, *, stop=True):
    said = answered(tokenizer, text, stop=stop)
    known = (*before.token_ids, *said.token_ids)
    return question.token_ids[: len(known)] == known


words = st.text(st.characters(codec="ascii", exclude_characters="<>"), max_size=30)


@given(st.lists(words, min_size=2, max_size=5), st.sampled_from(["plain", "trimming"]))
def test_each_prompt_begins_with_the_tokens_of_the_last_one_and_its_answer(answers, name):
    tokenizer = TOKENIZERS[name]
    questions = play(tokenizer, answers)
    for before, after, text in zip(questions, questions[1:], answers, strict=False):
        assert begins(after, before, tokenizer, text)
    if name == "plain":
        assert tokenizer.decode(questions[-1].token_ids) == questions[-1].prompt.text


@pytest.mark.parametrize("template", ["chat", "qwen3-zs", "default"])
def test_what_follows_an_answer_is_what_the_template_writes_there(template):
    tokenizer = TOKENIZERS["plain"]
    first, second = play(tokenizer, [r"\boxed{go}", "x"], template=template)
    opened, closed = first.prompt.text, second.prompt.text
    assert closed.startswith(opened + r"\boxed{go}")
    assert "Move 1: x to 1" in closed.removeprefix(opened)
    assert RULES not in closed.removeprefix(opened)
    new = second.token_ids[len(first.token_ids) :]
    eos = tokenizer.eos_token_id
    if template != "default":  # its text has no end of turn
        assert new.count(eos) == 2  # that of the answer once, and that of the new message
        assert tokenizer.decode(second.token_ids) == closed


def test_an_answer_that_is_cut_off_gets_its_end_of_turn():
    tokenizer = TOKENIZERS["plain"]
    first, second = play(tokenizer, ["I think", "x"], stop=False)
    said = answered(tokenizer, "I think", stop=False).token_ids
    place = len(first.token_ids) + len(said)
    assert begins(second, first, tokenizer, "I think", stop=False)
    assert second.token_ids[place] == tokenizer.eos_token_id


def test_a_template_that_forgets_reasoning_begins_a_new_sequence():
    tokenizer = TOKENIZERS["forgetting"]
    answers = ["<think>\nhm\n</think>\n\n[4]", "[5]", "x"]
    first, second, third = play(tokenizer, answers)
    assert not begins(second, first, tokenizer, answers[0])
    assert second.token_ids == tuple(tokenizer.encode(second.prompt.text, add_special_tokens=False))
    assert "hm" not in second.prompt.text
    assert "[4]" in second.prompt.text
    assert begins(third, second, tokenizer, answers[1])


def test_the_oldest_turns_are_dropped_where_there_is_no_room():
    tokenizer = TOKENIZERS["plain"]
    answers = [f"Move number {turn}, then." for turn in range(12)]
    whole = play(tokenizer, answers)
    room = len(whole[5].token_ids)

    questions = play(tokenizer, answers, room=room)

    assert [len(one.token_ids) for one in questions[:6]] == [
        len(one.token_ids) for one in whole[:6]
    ]
    assert all(len(one.token_ids) <= room for one in questions)
    last = questions[-1].prompt.text
    assert RULES in last
    assert "Move 11: x to 11" in last
    assert answers[10] in last
    assert answers[1] not in last
    continued = [
        begins(after, before, tokenizer, text)
        for before, after, text in zip(questions, questions[1:], answers, strict=False)
    ]
    # Half of the turns make room for several more: most prompts continue the one before.
    assert continued[:5] == [True] * 5
    assert 2 <= continued.count(False) <= 4


def test_messages_alone_need_no_tokenizer():
    chat = Conversation(Prompter(None), "chat", "boxed")
    first = chat.say(view("Move 0"))
    chat.add(first, Completion(text="go"))
    messages = chat.say(view("Move 0", "Move 1")).messages
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
    assert messages[3]["content"] == "Move 1"


def test_an_unchanged_observation_is_shown_again():
    chat = Conversation(Prompter(None), "chat", "boxed")
    chat.add(chat.say(view("Move 0")), Completion(text="go"))
    assert "Move 0" in chat.say(view("Move 0")).messages[-1]["content"]


@given(st.lists(st.text("ab\n", max_size=4), max_size=6), st.lists(st.text("ab\n"), max_size=3))
def test_the_new_part_ends_an_observation_and_is_all_that_a_history_adds(seen, added):
    before = "\n\n".join(seen)
    after = "\n\n".join([*seen, *added])
    assert after.endswith(new_part(after, before))
    if after.startswith(before):
        assert before + new_part(after, before) == after
