"""Encodes prompts, so that only their markup, and no text of games or players, is control tokens.

A control token is an added token that is special (``<|im_end|>``), looks like markup (``<think>``),
or is written by the chat template or the markup.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlforge.errors import ConfigError
from rlforge.games.markup import Prompt, Tokenizer, by_chat_template, chat_text
from rlforge.system.values import writable

#: Conversations whose chat template's text shows which tokens it writes.
_TRIED = (("system", "user", "assistant"), ("user", "assistant", "user"), ("user", "tool"))

#: ``<think>``, ``[INST]``, ``[|user|]``; but not ``[4]``, as games write moves.
# A tokenizer makes a control token of its text wherever that stands, so an opponent who says
# ``<|im_end|>`` would end the turn of the player who reads it.
_LIKE_MARKUP = re.compile(r"<.*>|\[/?[A-Z][A-Z_]*\]|\[\|.*\|\]", re.DOTALL)

#: Stands for an unknown character until a prompt is complete; its token may also be written.
_UNKNOWN = -1


class Encoder:
    """Token ids of prompts, with what the tokenizer puts in front of a text, a BOS as a rule."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # A fast tokenizer's backend takes half the time of its own method on short prompts.
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            # The tokenizer's file may ask for truncation or padding, which would change prompts.
            self._backend.no_truncation()
            self._backend.no_padding()
        self._added = {i: t for i, t in tokenizer.added_tokens_decoder.items() if _text_of(t)}
        unknown = [token for i, token in self._added.items() if i == tokenizer.unk_token_id]
        name = "".join(_folded(_text_of(token)) for token in unknown)
        # Only a token with ``unk`` in its name may stand for unknown characters: others, as the end
        # of the text, would tell the model something else.
        self._unknown = tokenizer.unk_token_id if "unk" in name else None
        self._unknown_name = name
        self._template = str(tokenizer.chat_template or "")
        # With no words as contents, all control tokens are those that the template writes.
        tried = []
        for roles in _TRIED:
            with contextlib.suppress(ConfigError):
                messages = [{"role": role, "content": "?"} for role in roles]
                tried.append(chat_text(messages, tokenizer))
        self._written = frozenset(self._ids("\n".join(tried)))
        self._begin = _put_in_front(tokenizer)
        # Neighbours decide whether a ``single_word`` token is found: a part may have it, the whole
        # not.
        self._fickle = any(getattr(token, "single_word", False) for token in self._added.values())
        self._control_of = lru_cache(maxsize=64)(self._find_control)
        self._added_in = lru_cache(maxsize=1024)(
            lambda piece: tuple(token for token in self._ids(piece) if token in self._added)
        )

    def encode(self, prompt: Prompt, *, begins: bool = True) -> tuple[int, ...]:
        """The prompt's ids; their control tokens are those of its markup.

        begins: whether the text stands at the beginning, where a BOS belongs.
        """
        # A lone surrogate would make the tokenizer fail.
        ids = self._encoded(prompt._replace(text=writable(prompt.text)))
        if (unknown := self._unknown) is not None and _UNKNOWN in ids:
            ids = [unknown if token == _UNKNOWN else token for token in ids]
        begin = self._begin if begins else []
        return tuple(ids if ids[: len(begin)] == begin else [*begin, *ids])

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """The ids of a conversation in the tokenizer's chat template, as ``by_chat_template``."""
        return self.encode(by_chat_template(messages, "", self._tokenizer, tools, arguments))

    def _encoded(self, prompt: Prompt) -> list[int]:
        control, texts = self._control_of(prompt.family)
        wanted = [
            token
            for piece in prompt.markup()
            for token in self._added_in(piece)
            if token in control
        ]
        # The model was trained on whole texts, so this stays one if that makes no other control
        # token. Else names of control tokens in contents are cut in two.
        said = [prompt.text[start:stop] for _, start, stop in prompt.contents]
        if not self._fickle or not any(_among(control, self._ids(text)) for text in said):
            ids = self._ids(prompt.text)
            if _among(control, ids) == wanted:
                return ids
            ids = [token for part in _divided(prompt, texts) for token in self._ids(part)]
            if _among(control, ids) == wanted:
                return ids
        # A normaliser makes control tokens of other characters, too, and some tokenizers add text
        # to each part. Then each content is encoded alone.
        ids, end = [], 0
        for _, start, stop in prompt.contents:
            ids += self._ids(prompt.text[end:start])
            ids += self._as_text(prompt.text[start:stop], control)
            end = stop
        return ids + self._ids(prompt.text[end:])

    def _ids(self, text: str) -> list[int]:
        """Ids of a text, ``_UNKNOWN`` for characters that the tokenizer does not know."""
        if not text:
            return []
        ids: list[int]
        if self._backend is None:
            ids = list(self._tokenizer.encode(text, add_special_tokens=False))
            spans = [(0, len(text))] * len(ids)
        else:
            encoding = self._backend.encode(text, add_special_tokens=False)
            ids = encoding.ids
            if self._unknown is None or self._unknown not in ids:
                return ids
            spans = encoding.offsets
        for place, (start, stop) in enumerate(spans):
            if ids[place] == self._unknown and self._unknown_name not in _folded(text[start:stop]):
                ids[place] = _UNKNOWN
        return ids

    def _find_control(self, family: str) -> tuple[frozenset[int], str]:
        """The control tokens of prompts in a markup, and a pattern of their texts."""
        written, control = self._written.union(self._ids(family)), {}
        for index, token in self._added.items():
            text = _text_of(token)
            # A plain word may stand in the template's code without being a token of its prompts.
            in_template = not text.isalnum() and text in self._template
            if index in written or token.special or in_template or _LIKE_MARKUP.fullmatch(text):
                control[index] = str(token.content)
        # Longest first: the first alternative that matches wins, and a shorter text would hide a
        # longer one. The look-ahead finds texts that overlap, too.
        texts = sorted(control.values(), key=len, reverse=True)
        return frozenset(control), f"(?=({'|'.join(map(re.escape, texts))}))"

    def _as_text(self, text: str, control: frozenset[int]) -> list[int]:
        """Ids of a text without any control token: halved until there is none."""
        ids = self._ids(text)
        if control.isdisjoint(ids):
            return ids
        if len(text) == 1:
            # No other tokens write this character, so it is left out.
            return [token for token in ids if token not in control]
        middle = len(text) // 2
        return [*self._as_text(text[:middle], control), *self._as_text(text[middle:], control)]


@lru_cache(maxsize=8)
def _encoder(tokenizer: Tokenizer, chat_template: str) -> Encoder:
    return Encoder(tokenizer)


def encoder_of(tokenizer: Tokenizer) -> Encoder:
    # An encoder knows the control tokens of one template, which is thus part of the key.
    return _encoder(tokenizer, str(tokenizer.chat_template))


def text_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Ids of a prompt whose text holds markup of its own."""
    return encoder_of(tokenizer).encode(Prompt(text=text, contents=()))


def _among(control: frozenset[int], ids: Sequence[int]) -> list[int]:
    return [] if control.isdisjoint(ids) else [token for token in ids if token in control]


def _divided(prompt: Prompt, texts: str) -> Iterable[str]:
    """The text, cut inside each name of a control token that touches a content."""
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


def _put_in_front(tokenizer: Tokenizer) -> list[int]:
    text = "a"
    # A tokenizer may not know this letter; any word that it knows serves as well.
    if not tokenizer.encode(text, add_special_tokens=False):
        added = {str(token.content) for token in tokenizer.added_tokens_decoder.values()}
        words = (word for word in tokenizer.get_vocab() if word not in added)
        known = (word for word in words if tokenizer.encode(word, add_special_tokens=False))
        text = next(known, text)
    plain, whole = (tokenizer.encode(text, add_special_tokens=own) for own in (False, True))
    places = range(len(whole) - len(plain) + 1)
    found = next((place for place in places if whole[place : place + len(plain)] == plain), 0)
    # What the tokenizer puts behind a text is left out, since an answer follows.
    return list(whole[:found])


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _text_of(token: Any) -> str:
    """The text that a token writes; "" for white space and single bytes (``<0x0A>``)."""
    text = str(token.content).strip("▁ \n\t")
    return "" if re.fullmatch("<0x[0-9A-F]{2}>", text) else text
