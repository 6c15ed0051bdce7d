"""Encodes prompts so that only their markup, and no text of games or players, is control tokens.

A control token is an added token of the tokenizer that is special (``<|im_end|>``, ``[SEP]``) or
looks like markup (``<think>``). A tokenizer makes one of its text wherever that stands, so an
opponent that says ``<|im_end|>`` would end the turn of the player who reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rlforge.games.markup import Prompt, Tokenizer
from rlforge.system.values import writable


class Encoder:
    """Token ids of prompts.

    A prompt whose contents make no control token is encoded as one text. In any other the text of
    such tokens is divided among separately encoded parts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Unknown characters become the unknown token, which many a tokenizer has as a special one.
        harmless = {tokenizer.unk_token_id} - {tokenizer.bos_token_id, tokenizer.eos_token_id}
        added = tokenizer.added_tokens_decoder.items()
        control = {i: token for i, token in added if i not in harmless and _is_control(token)}
        self._control = frozenset(control)
        # Longest first; a look-ahead, since they may overlap.
        texts = sorted((str(token.content) for token in control.values()), key=len, reverse=True)
        self._texts = "|".join(map(re.escape, texts))
        self._of_markup: dict[str, tuple[int, ...]] = {}

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's ids; their control tokens are those of its markup.

        Lone surrogates, which no tokenizer takes, are replaced.
        """
        prompt = prompt._replace(text=writable(prompt.text))
        ids = self._ids(prompt.text)
        wanted = [token for piece in prompt.markup() for token in self._markup_tokens(piece)]
        if self._tokens(ids) == wanted:
            return tuple(ids)
        ids = [token for part in self._divided(prompt) for token in self._ids(part)]
        if self._tokens(ids) == wanted:
            return tuple(ids)
        # A normaliser has made one of other characters, or the tokenizer adds text to each part.
        ids, end = [], 0
        for _, start, stop in prompt.contents:
            ids += [*self._ids(prompt.text[end:start]), *self._as_text(prompt.text[start:stop])]
            end = stop
        return tuple(ids + self._ids(prompt.text[end:]))

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []

    def _tokens(self, ids: Sequence[int]) -> list[int]:
        """The control tokens among ``ids``."""
        control = self._control
        return [] if control.isdisjoint(ids) else [token for token in ids if token in control]

    def _markup_tokens(self, piece: str) -> tuple[int, ...]:
        found = self._of_markup.get(piece)
        if found is None:
            found = self._of_markup[piece] = tuple(self._tokens(self._ids(piece)))
        return found

    def _divided(self, prompt: Prompt) -> Iterable[str]:
        """The text, cut inside each text of a control token that is not of the markup alone."""
        begin = 0
        for found in re.finditer(f"(?=({self._texts}))", prompt.text):
            first, last = found.span(1)
            for _, start, stop in prompt.contents:
                if first < stop and start < last:
                    cut = max(first + 1, start) if first < start else first + 1
                    yield prompt.text[begin:cut]
                    begin = cut
                    break
        yield prompt.text[begin:]

    def _as_text(self, text: str) -> list[int]:
        """Ids of a text without any control token: halved until there is none."""
        ids = self._ids(text)
        if self._control.isdisjoint(ids):
            return ids
        if len(text) == 1:  # cannot be written as text
            return [token for token in ids if token not in self._control]
        middle = len(text) // 2
        return [*self._as_text(text[:middle]), *self._as_text(text[middle:])]


def _is_control(token: Any) -> bool:
    """Special or ``<…>``; white space and single bytes (``<0x0A>``) are text all the same."""
    text = str(token.content).strip("▁ \n\t")
    if not text or re.fullmatch("<0x[0-9A-F]{2}>", text):
        return False
    return bool(token.special) or (text[0] == "<" and text[-1] == ">")
