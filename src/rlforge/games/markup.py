"""Messages of a conversation as one text, and where their contents are in it."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from rlforge.errors import ConfigError, first_line
from rlforge.types import value

#: ``role`` (system, user or assistant) and ``content``.
Message = dict[str, str]


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts need."""

    chat_template: Any
    unk_token_id: int | None
    bos_token_id: int | None
    eos_token_id: int | None

    def __hash__(self) -> int:
        """By identity."""

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Added tokens by their ids."""

    def get_vocab(self) -> Mapping[str, int]:
        """All tokens, with their ids."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text; text of added tokens in it becomes those tokens."""

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool, **options: Any
    ) -> Any:
        """The conversation in the model's own turn markup."""


class Prompt(NamedTuple):
    """A conversation as text.

    contents: index of a message (-1: of none), start and end of each content; all else is markup.
    family: the texts of all roles in this markup.

    Example:
        >>> prompt = Prompt(text="<user>Your move.<end>", contents=((0, 6, 16),))
        >>> prompt.text[6:16]
        'Your move.'
    """

    text: str
    contents: tuple[tuple[int, int, int], ...]
    family: str = ""

    def part(self, begin: int, end: int) -> Prompt:
        """The text from ``begin`` to ``end``."""
        inside = [one for one in self.contents if begin <= one[1] and one[2] <= end]
        return self._replace(
            text=self.text[begin:end],
            contents=tuple((index, start - begin, stop - begin) for index, start, stop in inside),
        )

    def markup(self) -> list[str]:
        edges = [0, *(edge for _, *span in self.contents for edge in span), len(self.text)]
        # Every second stretch is markup: the ones between are the contents.
        return [self.text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]


@value
class Markup:
    """How a model family writes the messages of each role: a text around ``{content}``.

    The text of ``assistant`` up to ``{content}`` opens the answer. begin: in front of all.

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
        """``messages``, and the opening of the next answer."""
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
            # Where a markup has no system role, the system message opens the first user message.
            pending = "" if around else "\n\n"
            if around:
                text += after
        before = self.assistant.partition("{content}")[0]
        family = f"{self.begin}{self.system or ''}{self.user}{self.assistant}"
        return Prompt(f"{text}{before}{opening}", tuple(contents), family)


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


#: A stand-in for a text, and what needs none: plain words, as types and the names of most tools.
_STAND_IN = re.compile(r"Qz7text(\d+)Qz7", re.IGNORECASE)
_WORDS = re.compile(r"(?!.*qz7)[\w -]*", re.ASCII | re.IGNORECASE)

#: Texts in which no tokenizer finds a control token.
_HARMLESS = re.compile(r"(?!.*qz7)[\w\s.,:;!?'\"()/*+=-]*", re.ASCII | re.IGNORECASE | re.DOTALL)

_MEND = "in games use a prompt template with the markup of the model's family"

_REASONING, _END = "reasoning_content", "</think>"

#: What templates do to the white space around an answer after its reasoning.
_TRIMMED: tuple[Callable[[str], str], ...] = (str, lambda said: said.lstrip("\n"), str.strip)


def by_chat_template(
    messages: Sequence[Mapping[str, Any]],
    opening: str,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Prompt:
    """The prompt in the tokenizer's chat template, and where the contents are in it.

    Contents are those of messages, and texts in ``tools``, calls of tools and ``arguments`` but for
    plain words.

    messages: written in the first of ``message_forms`` that the template takes; ConfigError where
    it does not show what the user says last. opening: opens each answer. tools: in OpenAI's form.
    arguments: override those of ``model.chat_template_args``.
    """
    refusal: ConfigError | None = None
    ignoring: Prompt | None = None
    given = {**template_args(tokenizer), **(arguments or {})}
    for said, numbers in message_forms(messages):
        chat = _Chat(
            messages=said, tools=tools, opening=opening, tokenizer=tokenizer, arguments=given
        )
        try:
            text = chat.text()
        except ConfigError as error:
            refusal = refusal or error
            continue
        chat = chat.with_reasoning_apart(text)
        prompt = chat.prompt(text)
        shown = {index for index, *_ in prompt.contents}
        asked = said[-1].get("role") == "user" and isinstance(said[-1].get("content"), str)
        if asked and len(said) - 1 not in shown:
            refusal = refusal or ConfigError(
                f"the tokenizer's chat template does not show what the user says last; {_MEND}"
            )
            continue
        if prompt.text != text:
            # A stand-in hides settings that a template reads from a system message, as
            # ``/no_think``.
            other = chat.prompt(text, system_is_markup=True)
            prompt = other if other.text == text else prompt
        contents = tuple((numbers[index], start, end) for index, start, end in prompt.contents)
        prompt = prompt._replace(text=f"{prompt.text}{opening}", contents=contents)
        system = {index for index, one in enumerate(said) if one.get("role") == "system"}
        if system <= shown:
            return prompt
        ignoring = ignoring or prompt
    if ignoring is None:
        assert refusal is not None
        raise refusal
    return ignoring


def template_args(tokenizer: Tokenizer) -> Mapping[str, Any]:
    """Arguments that ``model.chat_template_args`` gave the tokenizer."""
    return getattr(tokenizer, "chat_template_args", None) or {}


def message_forms(
    messages: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[list[Mapping[str, Any]], list[int]]]:
    """The messages in the forms that templates take, each with the numbers of its messages.

    First as they are, then with messages of one role that follow each other as one, then with
    system messages as parts of the user's. The last number is -1, for texts of the arguments.
    """
    last: list[Mapping[str, Any]] = []
    for joined, system in ((False, "system"), (True, "system"), (True, "user")):
        said: list[Mapping[str, Any]] = []
        numbers: list[int] = []
        for number, message in enumerate(messages):
            role = message.get("role")
            one = {**message, "role": system if role == "system" else role}
            if joined and said and _joins(said[-1], one):
                texts = (each["content"] for each in (said[-1], one) if each["content"])
                said[-1], numbers[-1] = {**one, "content": "\n\n".join(texts)}, number
            else:
                said, numbers = [*said, one], [*numbers, number]
        if said != last:
            yield said, [*numbers, -1]
        last = said


def _joins(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return before["role"] == after["role"] in ("user", "assistant", "system") and all(
        isinstance(one.get("content"), str) and "tool_calls" not in one for one in (before, after)
    )


def chat_text(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] = (),
    arguments: Mapping[str, Any] | None = None,
) -> str:
    """The text that the tokenizer's chat template writes of these messages; not for a model.

    Raises ConfigError without a template, and where it refuses the messages. arguments: all of the
    template's; None: ``model.chat_template_args``.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            "this prompt template needs a chat template, which the tokenizer does not have; use "
            "'default' or the template of the model's family"
        )
    options = dict(template_args(tokenizer) if arguments is None else arguments)
    options |= {"tools": list(tools)} if tools else {}
    if _takes_parts(tokenizer, str(tokenizer.chat_template)):
        messages = [
            {**one, "content": _in_parts(one["content"])}
            if isinstance(one.get("content"), str)
            else one
            for one in messages
        ]
    return _applied(messages, tokenizer, options)


@lru_cache(maxsize=8)
def _takes_parts(tokenizer: Tokenizer, chat_template: str) -> bool:
    # Templates of models that see images drop a text that is no part of a content.
    word, shown = "Qz7word", []
    for content in (word, _in_parts(word)):
        try:
            text = _applied([{"role": "user", "content": content}], tokenizer, {})
        except ConfigError:
            text = ""
        shown.append(word in text)
    return shown == [False, True]


def _in_parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _applied(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, options: Mapping[str, Any]
) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
        )
    except Exception as error:
        # A template is a program and may fail in any way.
        raise ConfigError(
            f"the tokenizer's chat template refuses these messages ({first_line(error)}); {_MEND}"
        ) from error


_Change = Callable[[int, str], str]


@value
class _Chat:
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    opening: str
    tokenizer: Tokenizer
    arguments: Mapping[str, Any]

    def text(self, change: _Change = lambda index, text: text) -> str:
        """The template's text. change: replaces a text of the message ``index``."""
        said = []
        for index, message in enumerate(self.messages):
            role, content = message.get("role"), message.get("content")
            written = {
                key: part if key == "role" else self._changed(index, part, change)
                for key, part in message.items()
            }
            if isinstance(content, str) and (content or "tool_calls" not in message):
                opened = role == "assistant" and _REASONING not in message
                written["content"] = f"{self.opening * opened}{change(index, content)}"
            said.append(written)
        tools, arguments = (
            self._changed(-1, given, change) for given in (self.tools, self.arguments)
        )
        return chat_text(said, self.tokenizer, tools, arguments)

    def with_reasoning_apart(self, text: str) -> _Chat:
        """The chat with reasoning outside of contents, if that writes ``text``, too; else self."""
        if any(map(_reasons, self.messages)):
            # A template cuts a content at ``</think>``, which its stand-in lacks, so reasoning gets
            # a field of its own, or is left out, if that writes the same.
            for kept, trim in itertools.product((True, False), _TRIMMED):
                said = [_apart(one, trim, kept) if _reasons(one) else one for one in self.messages]
                apart = replace(self, messages=said)
                # Without its reasoning an answer may be empty, which a template may refuse.
                with contextlib.suppress(ConfigError):
                    if apart.text() == text:
                        return apart
        return self

    def prompt(self, text: str, *, system_is_markup: bool = False) -> Prompt:
        """``text`` and its contents. system_is_markup: a harmless system message is no content."""
        known: dict[tuple[int, str], int] = {}

        def stand_in(index: int, content: str) -> str:
            system = index >= 0 and self.messages[index].get("role") == "system"
            if system and system_is_markup and self._is_plain(content, _HARMLESS):
                return content
            return f"Qz7text{known.setdefault((index, content), len(known))}Qz7"

        pieces = _STAND_IN.split(self.text(stand_in))
        texts, around = list(known), pieces[::2]
        written, contents = around[0], []
        for number, after in zip(pieces[1::2], around[1:], strict=True):
            index, content = texts[int(number)]
            # A template may trim a content or write it as JSON, so all these forms count.
            trimmed = (content, content.strip(), content.lstrip(), content.rstrip())
            in_json = (
                json.dumps(form, ensure_ascii=ascii_only)[1:-1]
                for form in trimmed[:2]
                for ascii_only in (False, True)
            )
            forms = itertools.chain(trimmed, in_json)
            found = (one for one in forms if text.startswith(f"{one}{after}", len(written)))
            # A content that is changed in another way stands there unchanged: the markup around it
            # is the same for all.
            form = next(found, content)
            contents.append((index, len(written), len(written) + len(form)))
            written += f"{form}{after}"
        return Prompt(text=written, contents=tuple(contents))

    def _changed(self, index: int, given: Any, change: _Change) -> Any:
        """``given``, with ``change`` made to each text in it that is more than plain words."""
        if isinstance(given, str):
            return given if self._is_plain(given, _WORDS) else change(index, given)
        if isinstance(given, Mapping):
            parts = [(self._changed(index, key, change), part) for key, part in given.items()]
            return {key: self._changed(index, part, change) for key, part in parts}
        if isinstance(given, list | tuple):
            return [self._changed(index, part, change) for part in given]
        return given

    def _is_plain(self, text: str, form: re.Pattern[str]) -> bool:
        return bool(form.fullmatch(text)) and not _harmless_tokens(self.tokenizer).search(text)


@lru_cache(maxsize=8)
def _harmless_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    added = (str(token.content).strip() for token in tokenizer.added_tokens_decoder.values())
    texts = [re.escape(text) for text in added if text and _HARMLESS.fullmatch(text)]
    return re.compile("|".join(texts) or "(?!)")


def _reasons(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return message.get("role") == "assistant" and isinstance(content, str) and _END in content


def _apart(message: Mapping[str, Any], trim: Callable[[str], str], kept: bool) -> dict[str, Any]:
    reasoning, *_, answer = message["content"].split(_END)
    said = reasoning.rpartition("<think>")[2].strip("\n") if kept else None
    return {**message, _REASONING: said, "content": trim(answer)}
