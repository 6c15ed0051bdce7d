"""Conversations in the markup of a family, or of the tokenizer's chat template."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from rlforge.errors import ConfigError
from rlforge.games.markup import CHATML, GEMMA, LLAMA, PLAIN, by_chat_template

SAID = [
    {"role": "system", "content": "You play."},
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "why not</think>[4]"},
    {"role": "user", "content": "Two."},
]
CHATS = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trims": "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>"
    "{% endfor %}<assistant>",
    "folds": "{% set s = messages[0].content %}{% for m in messages[1:] %}"
    "[{{ m.role }}]{% if loop.first %}{{ s }}\n{% endif %}{{ m.content }}{% endfor %}[assistant]",
    "forgets": "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}<assistant>",
    "compares": "{% for m in messages %}"
    "{% if m.content == 'stop' or m.content.startswith('<tool') %}"
    "<end>{% else %}<{{ m.role }}>{% endif %}{{ m.content }}{% endfor %}<assistant>",
    "escapes": "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"
    "<assistant>",
}


def speaking(chat):
    """A tokenizer with a template, given by its name in ``CHATS`` or as it is."""
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    made.chat_template = CHATS.get(chat, chat)
    return made


def contents(prompt):
    return [(index, prompt.text[start:end]) for index, start, end in prompt.contents]


@pytest.mark.parametrize("markup", [CHATML, GEMMA, LLAMA, PLAIN])
def test_later_turns_continue_the_text_of_the_first(markup):
    first = markup.render(SAID[:2], "<think>\n")
    later = markup.render(SAID, "<think>\n")
    assert later.text.startswith(f"{first.text}{SAID[2]['content']}")
    assert contents(later) == [(n, message["content"]) for n, message in enumerate(SAID)]
    assert "".join(later.markup()).count("<think>\n") == 2


def test_a_family_without_a_system_role_opens_the_users_message_with_it():
    prompt = GEMMA.render(SAID[:2], "")
    assert prompt.text == (
        "<bos><start_of_turn>user\nYou play.\n\nOne.<end_of_turn>\n<start_of_turn>model\n"
    )
    assert contents(prompt) == [(0, "You play."), (1, "One.")]


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_template_writes_what_it_would_write_alone(chat):
    tokenizer = speaking(chat)
    prompt = by_chat_template(SAID, "", tokenizer)
    alone = tokenizer.apply_chat_template(SAID, tokenize=False, add_generation_prompt=True)
    assert prompt.text == alone
    shown = [(n, m["content"]) for n, m in enumerate(SAID)]
    if chat == "forgets":
        shown[2] = (2, "[4]")
    assert contents(prompt) == shown


def test_contents_are_as_the_template_trims_them_and_the_opening_of_answers_is_markup():
    prompt = by_chat_template([{"role": "user", "content": " a \n"}], "<think>", speaking("trims"))
    assert prompt.text == "<user>a</user><assistant><think>"
    assert contents(prompt) == [(0, "a")]
    prompt = by_chat_template(SAID, "<think>\n", speaking("chatml"))
    assert prompt.text.count("<think>\n") == 2
    assert contents(prompt)[2] == (2, SAID[2]["content"])


@given(st.lists(st.text(max_size=12), min_size=4, max_size=4), st.sampled_from(sorted(CHATS)))
def test_the_contents_are_all_that_differs_from_the_markup(texts, chat):
    tokenizer = speaking(chat)
    said = [{**message, "content": text} for message, text in zip(SAID, texts, strict=True)]
    ours, plain = (by_chat_template(one, "", tokenizer) for one in (said, SAID))
    assert ours.markup() == plain.markup()
    for index, text in contents(ours):
        said = json.loads(f'"{text}"') if chat == "escapes" else text
        assert said.strip() in texts[index]


def test_a_content_that_a_template_compares_changes_no_markup():
    tokenizer = speaking("compares")
    for text in ("stop", "<tool_response>"):
        prompt = by_chat_template([{"role": "user", "content": text}], "", tokenizer)
        assert prompt.text == f"<user>{text}<assistant>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('No system role') }}", "No system role.*markup of the model's fam"),
        *(
            (f"{{{{ {wrong} }}}}", "refuses these messages")
            for wrong in ("1 / 0", "range(10 ** 9)")
        ),
        *(
            (blind, "does not show what the user says last")
            for blind in (" ", "Hello.", "{{ messages[0].role }}<assistant>")
        ),
    ],
)
def test_a_template_that_does_not_take_messages_is_named_with_the_mend(template, message):
    with pytest.raises(ConfigError, match=message):
        by_chat_template(SAID, "", speaking(template))


def test_a_template_that_shows_the_first_message_alone_gets_all_in_it():
    template = "{{ messages[0].role }}: {{ messages[0].content }}"
    prompt = by_chat_template(SAID[:2], "", speaking(template))
    assert prompt.text == "user: You play.\n\nOne."


#: As Gemma's: no system role, and users and assistants alternate.
ALTERNATING = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: Shows what users and assistants say, and nothing else.
IGNORING = ALTERNATING.replace("{% if messages[0].role == 'system' %}", "{% if false %}")
IGNORING = IGNORING.replace("in messages %}", "in messages if m.role != 'system' %}")


@pytest.mark.parametrize("template", [ALTERNATING, IGNORING])
def test_a_template_without_a_system_role_gets_its_text_in_front_of_the_users(template):
    tokenizer = speaking(template)
    first = by_chat_template(SAID[:2], "", tokenizer)
    assert first.text == "<user>You play.\n\nOne.</user><assistant>"
    assert contents(first) == [(1, "You play.\n\nOne.")]
    later = by_chat_template(SAID, "", tokenizer)
    assert later.text.startswith(f"{first.text}{SAID[2]['content']}</assistant><user>Two.")
    assert [number for number, _ in contents(later)] == [1, 2, 3]
    late = [*SAID[1:3], {"role": "system", "content": "Hurry."}, SAID[3]]
    assert contents(by_chat_template(late, "", tokenizer))[-1] == (3, "Hurry.\n\nTwo.")
    alone = by_chat_template(SAID[:1], "", tokenizer)
    assert alone.text == "<user>You play.</user><assistant>"


@pytest.mark.parametrize(
    "first",
    [
        "{{ m.content[0].text }}",
        "{% if m.content[0] is string %}?"
        "{% endif %}{% for part in m.content %}{{ part.text }}{% endfor %}",
    ],
)
def test_a_template_that_shows_only_parts_of_contents_gets_parts(first):
    tokenizer = speaking(CHATS["chatml"].replace("{{ m.content }}", first))
    prompt = by_chat_template(SAID, "", tokenizer)
    assert prompt == by_chat_template(SAID, "", speaking("chatml"))
    assert contents(prompt) == [(n, one["content"]) for n, one in enumerate(SAID)]


def test_a_template_whose_roles_alternate_gets_messages_of_one_role_as_one():
    tokenizer = speaking(ALTERNATING)
    said = [SAID[1], SAID[3], SAID[2], {"role": "assistant", "content": ""}, SAID[1]]
    prompt = by_chat_template(said, "", tokenizer)
    assert contents(prompt) == [(1, "One.\n\nTwo."), (3, SAID[2]["content"]), (4, "One.")]
    with pytest.raises(ConfigError, match="must alternate"):
        by_chat_template([SAID[2]], "", tokenizer)


def test_a_template_that_takes_messages_gets_them_as_they_are():
    said = [SAID[1], SAID[1], SAID[0], SAID[2]]
    prompt = by_chat_template(said, "", speaking("chatml"))
    assert contents(prompt) == [(n, one["content"]) for n, one in enumerate(said)]
