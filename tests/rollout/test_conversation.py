"""A seat's conversation, in the chat templates of real model families."""

import copy
import random
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.factories import CHATML, byte_tokenizer
from tests.harness.control_tokens import TOKENIZERS, with_chat

from rlforge.config.prompts import PromptConfig
from rlforge.games.base import View
from rlforge.games.observations import new_part
from rlforge.games.prompts import Prompter
from rlforge.games.registry import make_game
from rlforge.rollout.conversation import Conversation
from rlforge.types import Completion, EnvSpec, Form

TRIMMING = CHATML.replace("m.content", "m.content | trim")
#: As Qwen3 and DeepSeek-R1 do: only answers after the last question keep their reasoning.
FORGETTING = CHATML.replace("m.content", "m.content.split('</think>')[-1].lstrip('\\n')")
#: Takes reasoning in a field of its own, too, and keeps it.
REMEMBERING = CHATML.replace(
    "{{ m.content }}",
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}",
)
CHAT = Form(template="chat")
RULES = "You are player 0 in a game of words. Say one that was not said before."


#: Opens an answer without reasoning by an empty block, which history does not have.
SILENT = FORGETTING.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>"
    "\n\n{% endif %}{% endif %}",
)
TEMPLATES = {
    "silent": SILENT,
    "plain": CHATML,
    "trimming": TRIMMING,
    "forgetting": FORGETTING,
    "remembering": REMEMBERING,
}


@cache
def tokenizer_with(template):
    marks = ["<|im_start|>", "<|im_end|>"]
    words = f"{RULES} \\boxed{{go}} Board: x.o\n\nplayer user assistant system"
    return byte_tokenizer(words, marks, eos_token=marks[1], chat_template=TEMPLATES[template])


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
    chat = Conversation(Prompter(tokenizer), Form(template=template), room)
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
    tokenizer = tokenizer_with(name)
    questions = play(tokenizer, answers)
    for before, after, text in zip(questions, questions[1:], answers, strict=False):
        assert begins(after, before, tokenizer, text)
    if name == "plain":
        assert tokenizer.decode(questions[-1].token_ids) == questions[-1].prompt.text


@pytest.mark.parametrize("template", ["chat", "qwen3-zs", "default"])
def test_what_follows_an_answer_is_what_the_template_writes_there(template):
    tokenizer = tokenizer_with("plain")
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
    tokenizer = tokenizer_with("plain")
    first, second = play(tokenizer, ["I think", "x"], stop=False)
    said = answered(tokenizer, "I think", stop=False).token_ids
    place = len(first.token_ids) + len(said)
    assert begins(second, first, tokenizer, "I think", stop=False)
    assert second.token_ids[place] == tokenizer.eos_token_id


def test_a_template_that_forgets_reasoning_begins_a_new_sequence_and_one_that_keeps_it_does_not():
    tokenizer = tokenizer_with("forgetting")
    answers = ["<think>\nhm\n</think>\n\n[4]", "[5]", "x"]
    first, second, third = play(tokenizer, answers)
    assert not begins(second, first, tokenizer, answers[0])
    assert second.token_ids == tuple(tokenizer.encode(second.prompt.text, add_special_tokens=False))
    assert "hm" not in second.prompt.text
    assert "[4]" in second.prompt.text
    assert begins(third, second, tokenizer, answers[1])
    tokenizer = tokenizer_with("remembering")
    answers = ["<think>\nIs it (4)?\n</think>\n\n[4]", "<think>\nNo!\n</think>\n\n[5]", "x"]
    first, second, third = play(tokenizer, answers)
    assert begins(second, first, tokenizer, answers[0])
    assert begins(third, second, tokenizer, answers[1])


def test_the_oldest_turns_are_dropped_where_there_is_no_room():
    tokenizer = tokenizer_with("plain")
    answers = [f"Move number {turn}, then." for turn in range(12)]
    whole = play(tokenizer, answers)
    room = len(whole[7].token_ids)

    questions = play(tokenizer, answers, room=room)

    assert [len(one.token_ids) for one in questions[:8]] == [
        len(one.token_ids) for one in whole[:8]
    ]
    assert all(len(one.token_ids) <= room for one in questions)
    last = questions[-1].prompt.text
    assert RULES in last
    assert "Move 11: x to 11" in last
    assert answers[10] in last
    assert answers[1] not in last
    assert all(f"Move {turn}: x to {turn}" in last for turn in range(12))
    continued = [
        begins(after, before, tokenizer, text)
        for before, after, text in zip(questions, questions[1:], answers, strict=False)
    ]
    # Half of the turns make room for several more: most prompts continue the one before.
    assert continued[:7] == [True] * 7
    assert 1 <= continued.count(False) <= 3


lines = st.lists(st.text("ab", max_size=2), max_size=5).map("\n".join)
texts = st.lists(lines, max_size=4).map("\n\n".join)


@given(texts, texts)
def test_what_the_new_part_leaves_out_begins_the_text_seen_before_in_whole_lines(seen, text):
    new = new_part(text, seen)
    left_out = text.rstrip().removesuffix(new)
    assert left_out + new == text.rstrip()
    assert not left_out or left_out.endswith("\n")
    assert f"{seen.rstrip()}\n\n".startswith(left_out)


@given(texts, texts)
def test_of_a_history_that_grows_the_new_part_is_what_was_added(seen, added):
    seen, added = f"a{seen}".rstrip(), f"b{added}".rstrip()
    for gap in ("\n", "\n\n"):
        assert new_part(f"{seen}{gap}{added}", seen) == added
        board = "\n\n. x\n. ."
        assert new_part(f"{seen}{gap}{added}{board}", f"{seen}\n\n. .\n. .") == f"{added}{board}"


@pytest.mark.parametrize(
    ("text", "seen", "new"),
    [
        ("Score: 12", "Score: 1", "Score: 12"),
        ("R\n\n. .\nx .", "R\n\n. .\n. .", ". .\nx ."),
        ("R\n\nA says 1", "R\n\nA says 1", "A says 1"),
        ("R\n\nA: 1\nA: 1", "R\n\nA: 1", "A: 1"),
        ("R\n\nB\n\nNot accepted.", "R\n\nB", "Not accepted."),
        ("R\n\nH\nI\n\nB", "R\n\nH\n\nB\n\nNot accepted.", "I\n\nB"),
    ],
)
def test_the_new_part_is_whole_lines_of_whole_boards(text, seen, new):
    assert new_part(text, seen) == new


def holds(messages, observation):
    """Whether the lines of an observation are, in their order, in the messages of the user."""
    said = (m["content"] for m in messages if m["role"] == "user")
    told = iter([line.strip() for content in said for line in content.splitlines()])
    return all(line.strip() in told for line in observation.splitlines() if line.strip())


event = st.sampled_from(["x to 1", "o to 2", "A: hello", "A: two\nlines", "B: two\n\nparagraphs"])
rounds = st.lists(
    st.tuples(st.lists(event, max_size=2), st.sampled_from("JQK"), st.integers(0, 3)),
    min_size=2,
    max_size=8,
)


@given(rounds, st.sampled_from(["\n", "\n\n"]), st.booleans())
def test_all_of_an_observation_is_in_the_conversation(played, gap, dropped):
    """Of games with a history, a hidden card that changes, and a board; also without old turns."""
    tokenizer = tokenizer_with("plain")
    chat = Conversation(Prompter(tokenizer), CHAT, room=700 if dropped else None)
    history: list[str] = []
    for events, card, board in played:
        history += events
        shown = [RULES, gap.join(history), f"Your card: {card}", f"Board:\n{'x' * board}.\n..."]
        asked = View(player_id=0, observation="\n\n".join(shown))
        question = chat.ask(asked)
        assert holds(question.messages, asked.observation)
        assert f"Board:\n{'x' * board}.\n..." in question.messages[-1]["content"]
        chat.add(question, answered(tokenizer, "I have looked at it all, and I go on. " * 4))


def test_a_message_that_does_not_fit_with_all_that_is_new_since_the_first_turn_is_as_before():
    tokenizer = tokenizer_with("plain")
    questions = play(tokenizer, ["x"] * 40, room=300)
    assert all(len(one.token_ids) <= 300 for one in questions)
    last = questions[-1]
    assert "Move 39: x to 39" in last.prompt.text
    assert "Move 1: x to 1\n" not in last.prompt.text


def test_an_answer_that_is_kept_follows_its_question():
    tokenizer = tokenizer_with("plain")
    answers = [f"Answer {turn}." for turn in range(12)]
    whole = play(tokenizer, answers)
    questions = play(tokenizer, answers, room=len(whole[6].token_ids))
    roles = [one["role"] for one in questions[-1].messages]
    assert roles == ["system"] + ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"]
    assert len(questions[-1].messages) < len(whole[-1].messages)
    for question in questions:
        messages = question.messages
        for asked, said in zip(messages[1::2], messages[2::2], strict=False):
            turn = said["content"].removeprefix("Answer ").removesuffix(".")
            assert f"Move {turn}: x to {turn}" in asked["content"]


THINKING = {"thinking": PromptConfig(user="{observation}", markup="chatml", assistant="Think: ")}


@pytest.mark.parametrize("room", [None, 150])
def test_answers_keep_their_tokens_where_older_turns_are_dropped(room):
    """The token that ends an answer also stands inside: encoded again it would be plain text."""
    tokenizer = tokenizer_with("plain")
    chat = Conversation(Prompter(tokenizer, THINKING), Form(template="thinking"), room)
    kept = []
    for turn in range(8):
        question = chat.ask(View(player_id=0, observation=f"Board {turn}: x . o"))
        said = answered(tokenizer, f"so {turn}<|im_start|> go")
        inner = tokenizer.convert_tokens_to_ids("<|im_start|>")
        said = Completion(
            text=said.text, token_ids=(5, inner, *said.token_ids), finish_reason="stop"
        )
        text = ",".join(map(str, question.token_ids))
        tokens = [",".join(map(str, one.token_ids)) for one in question.answers]
        assert all(one in text for one in tokens)
        # One of each message's markup, and one in each answer.
        assert question.token_ids.count(inner) == len(question.messages) + 1 + len(tokens)
        kept.append(len(tokens))
        chat.add(question, said)
    assert (max(kept) == 7) == (room is None)


def test_a_game_that_tells_its_news_is_believed():
    chat = Conversation(Prompter(None), Form(template="chat", extraction="raw"))
    for text in ("Say.\n\nMove 1", "A: hello\n\nMove 2", "A: hello\n\nMove 3"):
        question = chat.say(View(player_id=0, observation=text, news=text))
        chat.add(question, Completion(text="go"))
        assert question.messages[-1]["content"].endswith(text)


# ---------------------------------------------------------------- whole games


REAL = {
    # game: tokens of a conversation to those of its turns alone, at most
    EnvSpec(id="ConnectFour-v0-train"): 0.30,
    EnvSpec(id="KuhnPoker-v0-long-train"): 0.15,
    EnvSpec(id="SimpleTak-v0-train"): 0.48,
    EnvSpec(id="LiarsDice-v0-train"): 0.20,
    EnvSpec(id="connect_four", source="openspiel"): 0.42,
    EnvSpec(id="goofspiel", source="openspiel"): 0.46,
    EnvSpec(id="phantom_ttt", source="openspiel"): 0.42,
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("env", REAL, ids=lambda env: env.id)
def test_the_cost_of_a_conversation_grows_with_the_length_of_a_real_game(env):
    tokenizer = tokenizer_with("plain")
    prompter = Prompter(tokenizer)
    together = alone = 0
    halves = [0, 0]
    for seed in range(4):
        game, draw = make_game(env, seed), random.Random(seed)
        chats = [Conversation(prompter, CHAT) for _ in range(2)]
        added: list[list[int]] = [[], []]
        length = [0, 0]
        while not game.done:
            view = game.view()
            player = view.player_id
            question = chats[player].ask(view)
            assert holds(question.messages, view.observation)
            action = draw.choice(view.legal_actions)
            said = answered(tokenizer, rf"I play \boxed{{{action}}}")
            chats[player].add(question, said)
            added[player].append(len(question.token_ids) - length[player])
            length[player] = len(question.token_ids) + len(said.token_ids)
            alone += len(prompter.encode(CHAT, view)[1]) + len(said.token_ids)
            game.step(action)
        together += sum(length)
        for new in added:
            later = new[1:]
            half = len(later) // 2
            halves[0] += sum(later[:half])
            halves[1] += sum(later[len(later) - half :])
    assert together / alone < REAL[env]
    assert halves[1] < 1.25 * halves[0]


@pytest.mark.parametrize("chat", [None, "writes", "trims"])
@pytest.mark.parametrize("name", ["llama2", "tiktoken"])
def test_only_the_beginning_of_a_conversation_is_a_bos(name, chat):
    tokenizer = TOKENIZERS[name] if chat is None else with_chat(name, chat)
    bos = tokenizer.encode("a", add_special_tokens=True)[0]
    template = "default" if chat is None else "chat"
    chat = Conversation(Prompter(tokenizer), Form(template=template, extraction="raw"))
    before = ()
    for turn in range(3):
        question = chat.ask(view(f"Move {turn}"))
        assert question.token_ids[0] == bos
        assert question.token_ids.count(bos) == 1
        assert question.token_ids[: len(before)] == before
        said = tokenizer.encode("hello", add_special_tokens=False)
        chat.add(question, Completion(text="hello", token_ids=tuple(said)))
        before = (*question.token_ids, *said)


def test_a_conversation_without_thinking_goes_on_from_what_the_engine_saw():
    tokenizer = copy.deepcopy(tokenizer_with("silent"))
    tokenizer.chat_template_args = {"enable_thinking": False}
    answers = ["[1]", "so be it [2]", "[3]"]
    questions = play(tokenizer, answers)
    for question in questions:
        assert question.prompt.text.endswith("<think>\n\n</think>\n\n")
    for before, said, question in zip(questions, answers, questions[1:], strict=False):
        assert begins(question, before, tokenizer, said)
    shown = tokenizer.decode(questions[-1].token_ids)
    assert shown.count("<think>\n\n</think>\n\n") == 3
