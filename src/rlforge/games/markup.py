"""How messages of a conversation are written as one text, and where their contents are in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from rlforge.errors import ConfigError
from rlforge.types import value

Message = dict[str, str]
"""``role`` (system, user or assistant) and ``content``."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts need."""

    chat_template: Any
    unk_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | None

    def __hash__(self) -> int:
        """By identity."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens (``tokenizers.AddedToken``) by their ids."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; text of added tokens in it becomes those tokens."""
        ...

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """The conversation in the model's own turn markup."""
        ...


class Prompt(NamedTuple):
    """A conversation as text. contents: where contents of messages are in it.

    Each entry of ``contents`` is the index of a message and the start and end of its content, in
    the order of the text; all else in the text is markup.

    Example:
        >>> prompt = Prompt(text="<user>Your move.<end>", contents=((0, 6, 16),))
        >>> prompt.text[6:16]
        'Your move.'
    """

    text: str
    contents: tuple[tuple[int, int, int], ...]

    def after(self, place: int) -> Prompt:
        """What follows the first ``place`` characters, at which a content ends."""
        later = [one for one in self.contents if one[1] >= place]
        return Prompt(
            text=self.text[place:],
            contents=tuple((index, start - place, stop - place) for index, start, stop in later),
        )

    def markup(self) -> list[str]:
        """The text before, between and after the contents."""
        edges = [0, *(edge for _, *span in self.contents for edge in span), len(self.text)]
        return [self.text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]


@value
class Markup:
    """How a model family writes the messages of each role: a text around ``{content}``.

    The text of ``assistant`` up to ``{content}`` opens the answer. begin: in front of all. system
    None: a system message opens the first user message.

    Example:
        >>> markup = Markup(user="Q: {content}\\n", assistant="A: {content}\\n")
        >>> markup.render([{"role": "user", "content": "2 + 2?"}], "").text
        'Q: 2 + 2?\\nA: '
    """

    user: str
    assistant: str
    system: str | None = None
    begin: str = ""

    def render(self, messages: Sequence[Message], opening: str) -> Prompt:
        """``messages`` and the opening of the next answer; each answer begins with ``opening``."""
        text, contents, pending = self.begin, [], ""
        for index, message in enumerate(messages):
            role, content = message["role"], message["content"]
            around = self.system if role == "system" else getattr(self, role)
            before, _, after = (around or self.user).partition("{content}")
            text += pending or before
            if role == "assistant":
                text += opening
            contents.append((index, len(text), len(text) + len(content)))
            text += content
            pending = "" if around else "\n\n"
            if around:
                text += after
        before = self.assistant.partition("{content}")[0]
        return Prompt(f"{text}{before}{opening}", tuple(contents))


PLAIN = Markup(user="{content}", assistant="{content}\n\n")
CHATML = Markup(
    system="<|im_start|>system\n{content}<|im_end|>\n",
    user="<|im_start|>user\n{content}<|im_end|>\n",
    assistant="<|im_start|>assistant\n{content}<|im_end|>\n",
)
GEMMA = Markup(
    begin="<bos>",
    user="<start_of_turn>user\n{content}<end_of_turn>\n",
    assistant="<start_of_turn>model\n{content}<end_of_turn>\n",
)
LLAMA = Markup(
    begin="<|begin_of_text|>",
    system="<|start_header_id|>system<|end_header_id|>\n\n{content}<|eot_id|>",
    user="<|start_header_id|>user<|end_header_id|>\n\n{content}<|eot_id|>",
    assistant="<|start_header_id|>assistant<|end_header_id|>\n\n{content}<|eot_id|>",
)
MARKUPS = {"chat": None, "chatml": CHATML, "gemma": GEMMA, "llama": LLAMA, "none": PLAIN}


_STAND_IN = re.compile(r"Qz7content(\d+)Qz7")


def by_chat_template(messages: Sequence[Message], opening: str, tokenizer: Tokenizer) -> Prompt:
    """The prompt in the tokenizer's chat template, and where the contents are in it.

    Chat templates may trim contents and cut reasoning from earlier answers. What one does to a
    content in any other way is not done: the content then stands in it as it is.
    """
    said = [
        {**message, "content": f"{opening}{message['content']}"}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]
    text = _applied(said, tokenizer)
    roles = tuple(message["role"] for message in said)
    around, order = chat_markup(tokenizer, str(tokenizer.chat_template), roles)
    contents, position = [], len(around[0])
    for index, after in zip(order, around[1:], strict=True):
        forms = _forms(said[index]["content"])
        form = next((one for one in forms if text.startswith(one + after, position)), None)
        if form is None:
            break
        answer = said[index]["role"] == "assistant" and form.startswith(opening)
        skipped = len(opening) if answer else 0
        contents.append((index, position + skipped, position + len(form)))
        position += len(form) + len(after)
    if len(contents) < len(order) or position != len(text) or not text.startswith(around[0]):
        return _assembled(around, order, said, opening)
    return Prompt(text=f"{text}{opening}", contents=tuple(contents))


def _assembled(
    around: Sequence[str], order: Sequence[int], messages: Sequence[Message], opening: str
) -> Prompt:
    text, contents = around[0], []
    for index, after in zip(order, around[1:], strict=True):
        content = messages[index]["content"]
        contents.append((index, len(text), len(text) + len(content)))
        text += f"{content}{after}"
    return Prompt(text=f"{text}{opening}", contents=tuple(contents))


def _forms(content: str) -> Iterator[str]:
    """What a chat template may make of a content: trimmed, or without its reasoning."""
    yield content
    yield content.strip()
    yield content.lstrip()
    yield content.rstrip()
    if "</think>" in content:
        yield from _forms(content.rpartition("</think>")[2])


@lru_cache(maxsize=256)
def chat_markup(
    tokenizer: Tokenizer, chat_template: str, roles: tuple[str, ...]
) -> tuple[list[str], list[int]]:
    """A chat template's text around the contents of messages of these ``roles``.

    chat_template: the tokenizer's, whose changes make earlier results void. Returns the text
    before, between and after contents, and which message's content is at each place.
    """
    stand_ins = [
        {"role": role, "content": f"Qz7content{index}Qz7"} for index, role in enumerate(roles)
    ]
    pieces = _STAND_IN.split(_applied(stand_ins, tokenizer))
    return pieces[::2], [int(index) for index in pieces[1::2]]


def _applied(messages: list[Message], tokenizer: Tokenizer) -> str:
    from jinja2 import TemplateError

    if not tokenizer.chat_template:
        raise ConfigError(
            "this prompt template needs a chat template, which the tokenizer does not have; use "
            "'default' or the template of the model's family"
        )
    try:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )
    except TemplateError as error:
        raise ConfigError(
            f"the tokenizer's chat template refuses these roles ({error}); use a prompt template "
            "without a system message, or with the markup of the model's family"
        ) from error
