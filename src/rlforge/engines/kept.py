"""Keys and values that later requests continue, and logits that they draw from.

The next prompt of a conversation begins with the last prompt and its answer, and all prompts of a
game with its rules. Where keys and values of these are kept, only the tokens after them are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from torch import Tensor

from rlforge.engines.cache import Row
from rlforge.engines.versions import PolicyKey

# Multiplier of the hash: odd, so that every token counts in all 64 bits (Steele and Vigna 2021,
# "Computationally easy, spectrally good multipliers").
_FACTOR = 0xD1342543DE82EF95

#: Fewest tokens that a shared beginning saves, and most beginnings that are known.
LEAST_SHARED, MOST_SHARED = 16, 8
#: A beginning is kept where at least this share of a batch's prompts has it.
_LEAST_SHARE = 1 / 8


@dataclass(slots=True, eq=False)
class _Entry:
    """Keys and values of ``tokens``, which ``copies`` requests may still continue."""

    key: PolicyKey
    tokens: tuple[int, ...]
    row: Row
    copies: float = 1


class KeptRows:
    """Keys and values by policy version and tokens; those not used for longest are dropped first.

    Each is handed out as often as it was put in.

    Example: of a prompt of five tokens, the first three are known:
        >>> kept, step = KeptRows(), PolicyKey("step-1", "checkpoints/step-1")
        >>> kept.put(step, (5, 6, 7), row=())
        >>> kept.take(step, (5, 6, 7, 8, 9)), kept.tokens
        (((), 3), 0)
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._powers = np.empty(0, dtype=np.uint64)
        self.tokens = 0

    def put(self, key: PolicyKey, tokens: tuple[int, ...], row: Row, *, copies: float = 1) -> None:
        """Keep ``row``, the keys and values of ``tokens``, for so many requests of ``key``."""
        number = self._hashes(key, tokens)[-1]
        entry = self._entries.get(number)
        if entry is not None and (entry.key, entry.tokens) == (key, tokens):
            entry.copies += copies  # two games may have had the same turns so far
            self._entries.move_to_end(number)
            return
        if entry is not None:  # two texts with one hash
            self._drop(number)
        self._entries[number] = _Entry(key, tokens, row, copies)
        self.tokens += len(tokens)

    def take(self, key: PolicyKey, prompt: tuple[int, ...]) -> tuple[Row, int]:
        """The row of the longest beginning of ``prompt``, and its number of tokens; or (), 0.

        At least one token of the prompt is left to read.
        """
        hashes = self._hashes(key, prompt[:-1]) if self._entries else []
        for length in range(len(hashes), 0, -1):
            entry = self._entries.get(hashes[length - 1])
            if entry is not None and entry.key == key and entry.tokens == prompt[:length]:
                entry.copies -= 1
                self._entries.move_to_end(hashes[length - 1])
                if not entry.copies:
                    self._drop(hashes[length - 1])
                return entry.row, length
        return (), 0

    def has(self, key: PolicyKey, tokens: tuple[int, ...]) -> bool:
        """Whether the keys and values of just these tokens are kept, which counts as a use."""
        number = self._hashes(key, tokens)[-1]
        entry = self._entries.get(number)
        if entry is None or (entry.key, entry.tokens) != (key, tokens):
            return False
        # Else beginnings would go while conversations that have them are continued.
        self._entries.move_to_end(number)
        return True

    def shrink(self, most: int) -> None:
        """Drop those not used for longest until all have at most ``most`` tokens."""
        while self._entries and self.tokens > most:
            self._drop(next(iter(self._entries)))

    def drop_unless(self, resident: Callable[[PolicyKey], bool]) -> None:
        """Drop those of versions that are not resident any more."""
        for number in [n for n, e in self._entries.items() if not resident(e.key)]:
            self._drop(number)

    def clear(self) -> None:
        """Drop all."""
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


class KeptLogits:
    """Logits after sequences that were read before; those not used for longest are dropped first.

    Small games have few positions, so that most requests of a version ask about one that another
    request has asked about: they need no pass.

    Example:
        >>> kept, step = KeptLogits(most_bytes=8), PolicyKey("step-1", "checkpoints/step-1")
        >>> import torch
        >>> for token in (5, 6, 7):
        ...     kept.put(step, (token,), torch.tensor([float(token)]))
        >>> [kept.get(step, (token,)) for token in (5, 7)]
        [None, tensor([7.])]
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self._bytes = most_bytes, 0
        self._entries: OrderedDict[tuple[PolicyKey, tuple[int, ...]], Tensor] = OrderedDict()

    def put(self, key: PolicyKey, tokens: tuple[int, ...], logits: Tensor) -> None:
        """Keep a copy of ``logits`` [V] after ``tokens``."""
        if logits.nbytes > self.most_bytes or self.has(key, tokens):
            return
        # A view would keep the logits of the whole batch.
        self._entries[key, tokens] = logits.clone()
        self._bytes += logits.nbytes
        while self._bytes > self.most_bytes:
            self._bytes -= self._entries.popitem(last=False)[1].nbytes

    def get(self, key: PolicyKey, tokens: tuple[int, ...]) -> Tensor | None:
        """The logits after ``tokens``, if they are kept."""
        found = self._entries.get((key, tokens))
        if found is not None:
            self._entries.move_to_end((key, tokens))
        return found

    def has(self, key: PolicyKey, tokens: tuple[int, ...]) -> bool:
        """Whether the logits after ``tokens`` are kept."""
        return (key, tokens) in self._entries

    def drop_unless(self, resident: Callable[[PolicyKey], bool]) -> None:
        """Drop those of versions that are not resident any more."""
        for each in [each for each in self._entries if not resident(each[0])]:
            self._bytes -= self._entries.pop(each).nbytes

    def clear(self) -> None:
        """Drop all."""
        self._entries.clear()
        self._bytes = 0


class SharedBeginnings:
    """Beginnings that many prompts have in common; those not used for longest are forgotten first.

    Example: prompts with the same rules of 20 tokens:
        >>> shared = SharedBeginnings()
        >>> prompts = [(*range(20), 30 + number) for number in range(4)]
        >>> {len(beginning) for beginning in shared.learn(prompts).values()}
        {20}
    """

    def __init__(self) -> None:
        self._beginnings: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def learn(self, prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
        """The longest known beginning of each of a batch of prompts; () without one.

        The beginning that saves most tokens in the batch, if one is common, is known from now on.
        """
        known = {prompt: self._longest(prompt) for prompt in prompts}
        for used in set(known.values()):
            if used:
                self._beginnings.move_to_end(used)
        long = sorted(
            each for each, start in known.items() if len(each) - len(start) > LEAST_SHARED
        )
        saved: dict[tuple[int, ...], int] = {}
        for beginning in {one[: _common(one, other)] for one, other in pairwise(long)}:
            # Most are, once the rules are known, and need no comparison of each prompt with each.
            if len(beginning) - len(self._longest(beginning)) < LEAST_SHARED:
                continue
            have = [prompt for prompt in long if _begins(prompt, beginning)]
            gain = len(beginning) - len(known[have[0]]) if have else 0
            if gain >= LEAST_SHARED and len(have) >= max(2, _LEAST_SHARE * len(prompts)):
                saved[beginning] = gain * (len(have) - 1)
        if saved:
            best = max(saved, key=lambda beginning: saved[beginning])
            self._beginnings[best] = None
            for prompt in filter(lambda prompt: _begins(prompt, best), long):
                known[prompt] = max(known[prompt], best, key=len)
            if len(self._beginnings) > MOST_SHARED:
                self._beginnings.popitem(last=False)
        return known

    def _longest(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """The longest known beginning of ``prompt``; () without one."""
        return max(
            (each for each in self._beginnings if _begins(prompt, each)), key=len, default=()
        )


def _begins(prompt: tuple[int, ...], beginning: tuple[int, ...]) -> bool:
    """Whether ``prompt`` has ``beginning`` and at least one token more."""
    return len(prompt) > len(beginning) and prompt[: len(beginning)] == beginning


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
