"""Prompts that begin alike: the rules of a game, the turns before this one.

In one pass a model reads a shared beginning once instead of once per row, forward and backward, and
every row goes on from it (``rlforge.learner.attention``). In the order of their prompts, what rows
share is a tree: the rules, from which each game goes on, from whose turns the later ones go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from rlforge.learner.batching import Layout, Row, Segment

#: Shared tokens per row that take as much memory as one computed token: attention keeps a copy of
#: their keys and values for each row, a computed token everything that its layers need.
SHARED_PER_TOKEN = 16


def in_order(rows: Sequence[Row]) -> list[Row]:
    """``rows`` by prompt: those that begin alike stand together."""
    return sorted(rows, key=_shareable)


def shared_with_previous(rows: Sequence[Row]) -> list[int]:
    """Of rows in order, how many tokens each begins with alike as the one before it."""
    return [0, *(_common(one, other, 0) for one, other in pairwise(rows))][: len(rows)]


def segments(rows: Sequence[Row]) -> list[Segment]:
    """The tree of ``rows``, which are in order: each of its tokens once, parents before children.

    A beginning that all its rows share is a segment, and so is the rest of each row, which goes on
    from the longest one that it shares with any other. It has at least the last prompt token.
    """
    made: list[Segment] = []
    todo: list[tuple[range, int | None, int]] = [(range(len(rows)), None, 0)] if rows else []
    while todo:
        which, parent, begin = todo.pop()
        first, last = rows[which[0]], rows[which[-1]]
        if len(which) == 1:
            made.append(
                Segment(
                    row=which[0], begin=begin, end=first.input_length, parent=parent, shared=False
                )
            )
            continue
        stem = _common(first, last, begin)
        if stem > begin:
            made.append(Segment(row=which[0], begin=begin, end=stem, parent=parent, shared=True))
            parent = len(made) - 1
        todo += [(branch, parent, stem) for branch in reversed(_branches(rows, which, stem))]
    return made


def parts(
    rows: Sequence[Row], max_rows: int | None, max_tokens: int, layout: Layout
) -> Iterator[list[Row]]:
    """``rows`` cut into forward passes of at most ``max_tokens`` positions each.

    By length, because neighbours in length waste the least padding; or in the order of their
    prompts where they share beginnings, of which copies of keys and values count as the positions
    whose memory they take. A row longer than ``max_tokens`` goes alone.
    """
    by_prompt = layout == "shared"
    ordered = in_order(rows) if by_prompt else sorted(rows, key=lambda row: row.input_length)
    alike = shared_with_previous(ordered) if by_prompt else [0] * len(rows)
    part: list[Row] = []
    before = 0
    for row, shared in zip(ordered, alike, strict=True):
        length = row.input_length
        if layout == "padded":
            positions = (len(part) + 1) * length
        else:
            # A row copies what it shares, and so does the fork at which it leaves the others.
            positions = before + length - shared + 2 * shared // SHARED_PER_TOKEN
        if part and (positions > max_tokens or len(part) == max_rows):
            yield part
            part, positions = [], length
        part.append(row)
        before = positions
    if part:
        yield part


def _branches(rows: Sequence[Row], which: range, stem: int) -> list[range]:
    """``which`` of the rows go on together after ``stem`` tokens; what ends there goes alone."""
    branches = []
    for token, group in groupby(which, lambda index: _token_at(rows[index], stem)):
        indexes = list(group)
        if token is None:
            branches += [range(index, index + 1) for index in indexes]
        else:
            branches.append(range(indexes[0], indexes[-1] + 1))
    return branches


def _shareable(row: Row) -> tuple[int, ...]:
    return row.prompt[:-1]


def _token_at(row: Row, place: int) -> int | None:
    return row.prompt[place] if place < len(row.prompt) - 1 else None


def _common(one: Row, other: Row, known: int) -> int:
    """How many tokens two rows begin with alike, of which the first ``known`` are."""
    least, most = known, min(len(one.prompt), len(other.prompt)) - 1
    while least < most:  # halving the rest: tuples are compared much faster than single tokens
        middle = (least + most + 1) // 2
        if one.prompt[least:middle] == other.prompt[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
