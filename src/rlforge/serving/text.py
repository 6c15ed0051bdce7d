"""Text from tokens as they come: whole characters only, and nothing beyond a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: What a tokenizer puts where bytes are no character, or not yet one.
_UNFINISHED = "�"


class TextStream:
    """Turns tokens into pieces of text whose concatenation is the text of all tokens.

    decode: ids to text. stops: strings that end the text and are not part of it; text that may be
    the beginning of one is held back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, tuple(stops)
        self._ids: list[int] = []
        # Ids up to _read are in _text. Those from _prefix on are decoded again with new ones:
        # the text of a token may depend on the one before it.
        self._prefix = self._read = 0
        self._text = ""
        self._sent = 0
        self.stopped = False

    @property
    def text(self) -> str:
        """All that was handed out."""
        return self._text[: self._sent]

    def add(self, ids: Sequence[int]) -> str:
        """The next piece, which may be empty."""
        self._ids.extend(ids)
        fresh = self._fresh()
        if fresh and not fresh.endswith(_UNFINISHED):
            self._take(fresh)
        return self._release(self._held_back())

    def finish(self, ids: Sequence[int]) -> str:
        """The last piece; ``ids`` are all tokens of the answer, those added among them."""
        self._ids.extend(ids[len(self._ids) :])
        self._take(self._fresh())
        return self._release(0)

    def _fresh(self) -> str:
        known = self._decode(self._ids[self._prefix : self._read])
        return self._decode(self._ids[self._prefix :])[len(known) :]

    def _take(self, fresh: str) -> None:
        self._text += fresh
        self._prefix, self._read = self._read, len(self._ids)

    def _held_back(self) -> int:
        """Characters at the end that may begin a stop string."""
        unsent = self._text[self._sent :]
        lengths = (
            length
            for stop in self._stops
            for length in range(min(len(stop) - 1, len(unsent)), 0, -1)
            if unsent.endswith(stop[:length])
        )
        return max(lengths, default=0)

    def _release(self, held_back: int) -> str:
        if self.stopped:
            return ""
        found = [at for stop in self._stops if (at := self._text.find(stop, self._sent)) >= 0]
        if found:
            self.stopped = True
            self._text = self._text[: min(found)]
            held_back = 0
        piece = self._text[self._sent : len(self._text) - held_back]
        self._sent += len(piece)
        return piece
