"""Prompts that begin alike: the rules of a game, the turns before this one.

A model reads a shared beginning once instead of once per row, forward and backward, and every row
goes on from it (``rlforge.learner.attention``). Here it is decided which rows do: each family costs
one more pass through the model, and a row that shares P tokens saves P.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rlforge.learner.batching import Row
from rlforge.types import value

#: What one more pass through the model costs, in tokens.
PASS_TOKENS = 256

#: Shared tokens per row that take as much memory as one computed token: attention keeps a copy of
#: their keys and values for each row, a computed token everything that its layers need.
SHARED_PER_TOKEN = 16


@value
class Family:
    """Rows whose prompts have their first ``shared`` tokens in common; 0: nothing worth sharing."""

    rows: tuple[Row, ...]
    shared: int


def families(rows: Sequence[Row], pass_tokens: int = PASS_TOKENS) -> list[Family]:
    """``rows`` divided so that shared beginnings save the most; the last prompt token is never one.

    Over the tree of prompts, from the leaves: a branch becomes families of its own where that
    saves more than leaving its rows with the others at the fork, which share only the stem.
    """
    ordered = sorted(rows, key=lambda row: row.prompt[:-1])
    return _divide(ordered, pass_tokens).families


@value
class _Division:
    """saved: tokens, less what the passes cost."""

    saved: int
    families: list[Family]


def _divide(rows: list[Row], pass_tokens: int) -> _Division:
    """The best division of ``rows``, which are sorted by prompt."""
    stem = _common(rows[0].prompt[:-1], rows[-1].prompt[:-1]) if rows else 0
    branches = [list(branch) for _, branch in groupby(rows, lambda row: _token_at(row, stem))]
    if len(branches) < 2:
        return _together(rows, stem, pass_tokens)
    divisions = [_divide(branch, pass_tokens) for branch in branches]
    gains = [
        division.saved > len(branch) * stem
        for branch, division in zip(branches, divisions, strict=True)
    ]
    stay = [
        row for branch, apart in zip(branches, gains, strict=True) if not apart for row in branch
    ]
    apart = [division for division, apart in zip(divisions, gains, strict=True) if apart]
    # A fork with few rows left costs its stem: then it may be better if all go.
    return max(
        _sum([*apart, _together(stay, stem, pass_tokens)]),
        _sum(divisions),
        key=lambda division: division.saved,
    )


def _together(rows: list[Row], stem: int, pass_tokens: int) -> _Division:
    """``rows`` as one family, which shares ``stem`` tokens."""
    if not rows:
        return _Division(saved=0, families=[])
    shared = stem if len(rows) > 1 else 0
    saved = (len(rows) - 1) * shared - pass_tokens
    return _Division(saved=saved, families=[Family(rows=tuple(rows), shared=shared)])


def _sum(divisions: Sequence[_Division]) -> _Division:
    return _Division(
        saved=sum(division.saved for division in divisions),
        families=[family for division in divisions for family in division.families],
    )


def _token_at(row: Row, place: int) -> int | None:
    return row.prompt[place] if place < len(row.prompt) - 1 else None


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two prompts begin with alike."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def parts(
    family: Family, max_rows: int | None, max_tokens: int, *, packed: bool = False
) -> Iterator[Family]:
    """``family`` cut, by length, into forward passes of at most ``max_tokens`` positions each.

    Neighbours in length waste the least padding; packed, there is none. Copies of shared keys and
    values count as the positions whose memory they take. A row longer than ``max_tokens`` goes
    alone.
    """
    part: list[Row] = []
    before = 0
    for row in sorted(family.rows, key=lambda row: row.input_length):
        length = row.input_length - family.shared
        positions = before + length if packed else (len(part) + 1) * length
        positions += (len(part) + 1) * family.shared // SHARED_PER_TOKEN
        if part and (family.shared + positions > max_tokens or len(part) == max_rows):
            yield Family(rows=tuple(part), shared=family.shared)
            part, before = [], 0
        part.append(row)
        before += length
    if part:
        yield Family(rows=tuple(part), shared=family.shared)
