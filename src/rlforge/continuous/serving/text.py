"""The text of an answer while it is generated, and the bytes of it that each token is."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

from rlforge.types import Completion, value


class TextStream:
    """Turns tokens into pieces of text; their concatenation is the text of all tokens.

    Text that may be the beginning of one of ``stops`` is held back, as are incomplete characters.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._stream = DecodeStream(skip_special_tokens=True)
        self._text = ""
        self._sent = 0
        self.stopped = False

    @property
    def text(self) -> str:
        return self._text[: self._sent]

    def add(self, ids: Sequence[int]) -> str:
        """The next piece, which may be empty."""
        self._text += self._stream.step(self._tokenizer.backend_tokenizer, list(ids)) or ""
        unsent = self._text[self._sent :]
        # Characters at the end that may begin a stop string are held back.
        lengths = (
            length
            for stop in self._stops
            for length in range(min(len(stop) - 1, len(unsent)), 0, -1)
            if unsent.endswith(stop[:length])
        )
        return self._release(max(lengths, default=0))

    def add_until_stop(self, ids: Sequence[int]) -> int:
        """Add tokens up to the one that completes a stop string; returns how many."""
        for count, token in enumerate(ids, 1):
            self.add([token])
            if self.stopped:
                return count
        return len(ids)

    def finish(self, ids: Sequence[int]) -> str:
        """The last piece; ``ids`` are all tokens of the answer."""
        whole = self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=True)
        # The stream keeps back the bytes of a character that never became whole.
        self._text += whole[len(self._text) :]
        return self._release(0)

    def _release(self, held_back: int) -> str:
        if self.stopped:
            return ""
        # The stop string that comes first in the text counts, not the first of the list.
        found = [at for stop in self._stops if (at := self._text.find(stop, self._sent)) >= 0]
        if found:
            self.stopped = True
            self._text = self._text[: min(found)]
            held_back = 0
        piece = self._text[self._sent : len(self._text) - held_back]
        self._sent += len(piece)
        return piece


def token_bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The bytes of each token of an answer; joined, those of its text in UTF-8.

    Special tokens have none, and a token of a part of a character has that part.
    """
    core, special = tokenizer.backend_tokenizer, tokenizer.added_tokens_decoder
    names = [
        "" if token in special and special[token].special else core.id_to_token(token) or ""
        for token in ids
    ]
    whole = core.decode(list(ids), skip_special_tokens=True)
    # The library shows a decoder's steps only as JSON.
    decoder = b"" if core.decoder is None else core.decoder.__getstate__()
    steps = set(re.findall(rb'"type": *"(\w+)"', decoder))
    # Such tokens are written in characters that each stand for a byte.
    if b"ByteLevel" in steps:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        known = {character: byte for byte, character in bytes_to_unicode().items()}
        found = [
            bytes(map(known.__getitem__, name)) if known.keys() >= {*name} else name.encode()
            for name in names
        ]
    elif b"ByteFallback" in steps:
        found = [
            bytes([int(name[3:5], 16)])
            if re.fullmatch("<0x[0-9A-Fa-f]{2}>", name)
            else name.replace("▁", " ").encode()
            for name in names
        ]
    else:
        stream = DecodeStream(skip_special_tokens=True)
        pieces = [stream.step(core, token) or "" for token in ids]
        if pieces:
            pieces[-1] += whole[len("".join(pieces)) :]
        found = [piece.encode() for piece in pieces]
    # Decoders drop the space in front of the first word, so its token must not count it.
    dropped = _spaces(b"".join(found).decode(errors="replace")) - _spaces(whole)
    if dropped > 0:
        first = next(number for number, each in enumerate(found) if each)
        found[first] = found[first][dropped:]
    return found


def _spaces(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


@value
class ScoredToken:
    """A token of an answer, and its log-probability by the model's own distribution.

    text: text on screens, the name of a special token. data: its bytes of the answer's text.
    """

    text: str
    data: bytes
    logprob: float


def scored_tokens(tokenizer: Any, completion: Completion) -> list[ScoredToken]:
    ids = completion.token_ids
    each = zip(ids, token_bytes(tokenizer, ids), completion.model_logprobs, strict=True)
    return [
        ScoredToken(
            text=data.decode(errors="replace") or tokenizer.decode([token]),
            data=data,
            logprob=logprob,
        )
        for token, data, logprob in each
    ]


def chat_logprobs(scored: Sequence[ScoredToken]) -> dict[str, Any]:
    content = [
        {"token": each.text, "logprob": each.logprob, "bytes": list(each.data), "top_logprobs": []}
        for each in scored
    ]
    return {"content": content, "refusal": None}


def text_logprobs(scored: Sequence[ScoredToken]) -> dict[str, Any]:
    whole, offsets = codecs.getincrementaldecoder("utf-8")(errors="replace"), [0]
    for each in scored:
        offsets.append(offsets[-1] + len(whole.decode(each.data)))
    return {
        "tokens": [each.text for each in scored],
        "token_logprobs": [each.logprob for each in scored],
        "top_logprobs": None,
        "text_offset": offsets[:-1],
    }
