"""Encodes prompts so that only their markup, and no text of games or players, is control tokens.

A control token is an added token of the tokenizer that is special (``<|im_end|>``, ``[SEP]``),
looks like markup (``<think>``, ``[INST]``), or is written by the chat template or the markup of the
prompt. A tokenizer makes one of its text wherever that stands, so an opponent that says
``<|im_end|>`` would end the turn of the player who reads it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlforge.errors import ConfigError
from rlforge.games.markup import Prompt, Tokenizer, by_chat_template, chat_text
from rlforge.system.values import writable

#: Conversations whose chat template's text shows which tokens it writes.
_TRIED = (("system", "user", "assistant"), ("user", "assistant", "user"), ("user", "tool"))

#: ``<think>``, ``[INST]``, ``[|user|]``; but not ``[4]``, as games write moves.
_LIKE_MARKUP = re.compile(r"<.*>|\[/?[A-Z][A-Z_]*\]|\[\|.*\|\]", re.DOTALL)


class Encoder:
    """Token ids of prompts.

    A prompt whose contents make no control token is encoded as one text. In any other the text of
    such tokens is divided among separately encoded parts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # What a fast tokenizer encodes with; its own method takes twice as long on short prompts.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            self._backend.no_truncation()  # which the file may ask for, and that method never does
            self._backend.no_padding()
        # Unknown characters become the unknown token, which many a tokenizer has as a special one.
        harmless = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
        added = tokenizer.added_tokens_decoder.items()
        self._added = {i: token for i, token in added if i not in harmless and _text_of(token)}
        self._template = str(tokenizer.chat_template or "")
        tried = []  # what the template writes for conversations without words, if it has any
        for roles in _TRIED:
            with contextlib.suppress(ConfigError):
                messages = [{"role": role, "content": "?"} for role in roles]
                tried.append(chat_text(messages, tokenizer))
        self._written = frozenset(self._ids("\n".join(tried)))
        self._control_of = lru_cache(maxsize=64)(self._find_control)
        self._added_in = lru_cache(maxsize=1024)(self._find_added)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's ids; their control tokens are those of its markup.

        Lone surrogates, which no tokenizer takes, are replaced.
        """
        prompt = prompt._replace(text=writable(prompt.text))
        control, texts = self._control_of(prompt.family)
        ids = self._ids(prompt.text)
        wanted = [
            token
            for piece in prompt.markup()
            for token in self._added_in(piece)
            if token in control
        ]
        if _among(control, ids) == wanted:
            return tuple(ids)
        ids = [token for part in _divided(prompt, texts) for token in self._ids(part)]
        if _among(control, ids) == wanted:
            return tuple(ids)
        # A normaliser has made one of other characters, or the tokenizer adds text to each part.
        ids, end = [], 0
        for _, start, stop in prompt.contents:
            ids += self._ids(prompt.text[end:start])
            ids += self._as_text(prompt.text[start:stop], control)
            end = stop
        return tuple(ids + self._ids(prompt.text[end:]))

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """The ids of a conversation in the tokenizer's chat template, as ``by_chat_template``."""
        return self.encode(by_chat_template(messages, "", self._tokenizer, tools))

    def _ids(self, text: str) -> list[int]:
        if not text:
            return []
        if self._backend is None:
            return self._tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _find_control(self, family: str) -> tuple[frozenset[int], str]:
        """The control tokens of prompts in a markup, and a pattern of their texts."""
        written = self._written.union(self._ids(family))
        control = {
            index: str(token.content)
            for index, token in self._added.items()
            if index in written or token.special or self._is_markup(_text_of(token))
        }
        # Longest first; a look-ahead, since they may overlap.
        texts = sorted(control.values(), key=len, reverse=True)
        return frozenset(control), f"(?=({'|'.join(map(re.escape, texts))}))"

    def _is_markup(self, text: str) -> bool:
        """Whether a text looks like markup, or is in the template and is no word."""
        in_template = not text.isalnum() and text in self._template
        return in_template or bool(_LIKE_MARKUP.fullmatch(text))

    def _find_added(self, piece: str) -> tuple[int, ...]:
        return tuple(token for token in self._ids(piece) if token in self._added)

    def _as_text(self, text: str, control: frozenset[int]) -> list[int]:
        """Ids of a text without any control token: halved until there is none."""
        ids = self._ids(text)
        if control.isdisjoint(ids):
            return ids
        if len(text) == 1:  # cannot be written as text
            return [token for token in ids if token not in control]
        middle = len(text) // 2
        return [*self._as_text(text[:middle], control), *self._as_text(text[middle:], control)]


def _among(control: frozenset[int], ids: Sequence[int]) -> list[int]:
    """The control tokens among ``ids``."""
    return [] if control.isdisjoint(ids) else [token for token in ids if token in control]


def _divided(prompt: Prompt, texts: str) -> Iterable[str]:
    """The text, cut inside each text of a control token that is not of the markup alone."""
    begin = 0
    for found in re.finditer(texts, prompt.text):
        first, last = found.span(1)
        for _, start, stop in prompt.contents:
            if first < stop and start < last:
                cut = max(first + 1, start) if first < start else first + 1
                yield prompt.text[begin:cut]
                begin = cut
                break
    yield prompt.text[begin:]


def _text_of(token: Any) -> str:
    """What a token writes; nothing for white space and single bytes (``<0x0A>``)."""
    text = str(token.content).strip("▁ \n\t")
    return "" if re.fullmatch("<0x[0-9A-F]{2}>", text) else text
