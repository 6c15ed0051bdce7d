"""Keys and values of answered requests, which the next turn of their conversation continues.

The next prompt of a conversation begins with the last prompt and its answer. If their keys and
values were kept, only the tokens after them are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlforge.engines.cache import Row
from rlforge.engines.versions import PolicyKey

#: Multiplier of the hash: odd, so that every token counts in all 64 bits (Steele and Vigna 2021,
#: "Computationally easy, spectrally good multipliers").
_FACTOR = 0xD1342543DE82EF95


@dataclass(slots=True, eq=False)
class _Entry:
    """Keys and values of ``tokens``; ``copies``: how many requests may still continue them."""

    key: PolicyKey
    tokens: tuple[int, ...]
    row: Row
    copies: int = 1


class KeptRows:
    """Keys and values by policy version and tokens; those kept longest ago are dropped first.

    Each is handed out as often as it was put in: two games may have had the same turns so far.

    Example: of a prompt of five tokens, the first three are known:
        >>> kept, step = KeptRows(), PolicyKey("step-1", "checkpoints/step-1")
        >>> kept.put(step, (5, 6, 7), row=[])
        >>> kept.take(step, (5, 6, 7, 8, 9)), kept.tokens
        (([], 3), 0)
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._powers = np.empty(0, dtype=np.uint64)
        self.tokens = 0

    def put(self, key: PolicyKey, tokens: tuple[int, ...], row: Row) -> None:
        """Keeps ``row``, the keys and values of ``tokens`` under the version ``key``."""
        number = self._hashes(key, tokens)[-1]
        entry = self._entries.get(number)
        if entry is not None and (entry.key, entry.tokens) == (key, tokens):
            entry.copies += 1
            self._entries.move_to_end(number)
            return
        if entry is not None:  # two texts with one hash
            self._drop(number)
        self._entries[number] = _Entry(key, tokens, row)
        self.tokens += len(tokens)

    def take(self, key: PolicyKey, prompt: tuple[int, ...]) -> tuple[Row, int]:
        """The row of the longest beginning of ``prompt``, and its number of tokens; or [], 0.

        At least one token of the prompt is left to read.
        """
        if not self._entries:
            return [], 0
        hashes = self._hashes(key, prompt[:-1])
        for length in range(len(hashes), 0, -1):
            entry = self._entries.get(hashes[length - 1])
            if entry is not None and entry.key == key and entry.tokens == prompt[:length]:
                entry.copies -= 1
                if not entry.copies:
                    self._drop(hashes[length - 1])
                return entry.row, length
        return [], 0

    def shrink(self, most: int) -> None:
        """Drops the oldest until they have at most ``most`` tokens."""
        while self._entries and self.tokens > most:
            self._drop(next(iter(self._entries)))

    def drop_unless(self, resident: Callable[[PolicyKey], bool]) -> None:
        """Drops those of versions that are not resident any more."""
        for number in [n for n, e in self._entries.items() if not resident(e.key)]:
            self._drop(number)

    def clear(self) -> None:
        """Drops all."""
        self._entries.clear()
        self.tokens = 0

    def _drop(self, number: int) -> None:
        self.tokens -= len(self._entries.pop(number).tokens)

    def _hashes(self, key: PolicyKey, tokens: Sequence[int]) -> list[int]:
        """A hash of each beginning of ``tokens``: polynomials modulo 2^64, all in one pass."""
        if len(tokens) > len(self._powers):
            factors = np.full(2 * len(tokens), _FACTOR, dtype=np.uint64)
            self._powers = np.multiply.accumulate(factors)
        terms = (np.asarray(tokens, dtype=np.uint64) + np.uint64(1)) * self._powers[: len(tokens)]
        seed = np.uint64(hash(key) % 2**64)
        hashes: list[int] = (np.add.accumulate(terms) ^ seed).tolist()
        return hashes
