"""How rows are divided: among ranks, into forward passes, and into segments of shared prefixes.

Prompts share prefixes: the rules of a game, the turns before this one. A pass computes a shared
prefix once instead of once per row, forward and backward (``rlforge.learner.attention``). Sorted by
prompt, the rows' shared prefixes form a tree: the rules at the root, games below, later turns of a
game below its earlier ones.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from rlforge.learner.batching import Layout, Row
from rlforge.learner.packing import Segment
from rlforge.types import value

#: Number of shared tokens that take the memory of one computed token: for a shared token each row
#: keeps a copy of keys and values, for a computed token all activations.
SHARED_PER_TOKEN = 16


@value
class Share:
    """One micro-batch of a rank. counts: False if it only gives all ranks equally many passes."""

    rows: list[Row]
    counts: bool


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Indexes of ``costs`` dealt to ``parts`` lists whose sums are close; each is ascending.

    Longest processing time first (Graham 1969, "Bounds on multiprocessing timing anomalies"): the
    largest cost goes to the list with the smallest sum. The largest sum is at most
    4/3 - 1/(3 parts) times the smallest possible, and exceeds the mean by less than the largest
    cost. With fewer costs than parts some lists are empty. The result is the same on any machine.

    Example:
        >>> balanced([5, 4, 3, 3], parts=2)
        [[0, 3], [1, 2]]
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    # Counts break ties, so that costs of 0 are spread as well.
    loads = [(0, 0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, count, part = loads[0]
        dealt[part].append(index)
        heapq.heapreplace(loads, (load + costs[index], count + 1, part))
    return [sorted(indexes) for indexes in dealt]


def deal(rows: Sequence[Row], parts: int, layout: Layout) -> list[list[Row]]:
    """``rows`` dealt to ``parts`` ranks, balanced by the tokens that each must compute.

    With shared prefixes rows are sorted by prompt and cut into contiguous parts, because each rank
    computes the prefixes of its rows again.
    """
    if layout != "shared":
        lengths = [row.input_length for row in rows]
        return [[rows[index] for index in indexes] for indexes in balanced(lengths, parts)]
    ordered = in_order(rows)
    lengths, shared = [row.input_length for row in ordered], shared_with_previous(ordered)

    def suffices(load: int) -> bool:
        return len(_filled(lengths, shared, load)) < parts

    least = bisect_left(range(sum(lengths)), True, lo=max(lengths, default=0), key=suffices)
    cuts = _filled(lengths, shared, least)
    cuts += [len(rows)] * (parts - len(cuts))
    return [ordered[start:end] for start, end in pairwise([0, *cuts])]


def shares(
    dealt: Sequence[Sequence[Row]],
    rank: int,
    cut: Callable[[Sequence[Row]], Iterable[list[Row]]],
    *,
    in_step: bool,
) -> Iterator[Share]:
    """The micro-batches that ``rank`` computes of its part of the rows ``dealt``.

    cut: makes micro-batches of a rank's rows. in_step: all ranks get equally many, because a pass
    through a model that is spread over the ranks needs all of them; a rank with fewer computes the
    shortest row again, which does not count.
    """
    mine = list(cut(dealt[rank]))
    for part in mine:
        yield Share(rows=part, counts=True)
    rows = [row for part in dealt for row in part]
    if in_step and rows:
        longest = max(sum(1 for _ in cut(part)) for part in dealt)
        shortest = min(rows, key=lambda row: row.input_length)
        for _ in range(longest - len(mine)):
            yield Share(rows=[shortest], counts=False)


def _filled(lengths: Sequence[int], shared: Sequence[int], most: int) -> list[int]:
    """Where to cut ordered rows so that each part but the last is as full as ``most`` allows."""
    cuts = []
    load = 0
    for index, (length, known) in enumerate(zip(lengths, shared, strict=True)):
        load += length - known
        if load > most:
            cuts.append(index)
            load = length
    return cuts


def in_order(rows: Sequence[Row]) -> list[Row]:
    """``rows`` sorted by prompt, so that rows with a common prefix are neighbours."""
    return sorted(rows, key=lambda row: row.prompt[: row.shareable])


def shared_with_previous(rows: Sequence[Row]) -> list[int]:
    """For ordered rows, the length of the prefix that each shares with the row before it."""
    return [0, *(_common(one, other, 0) for one, other in pairwise(rows))][: len(rows)]


def segments(rows: Sequence[Row]) -> list[Segment]:
    """The prefix tree of ordered ``rows``: each of its tokens once, parents before children.

    A prefix shared by several rows is a segment; so is the rest of each row, which continues the
    longest prefix that it shares with any other and has at least the last prompt token.

    Example:
        >>> rows = [
        ...     Row(step=0, prompt=(1, 2, 3, 4), answer=(5,)),
        ...     Row(step=1, prompt=(1, 2, 7), answer=(8, 9)),
        ... ]
        >>> [(s.row, s.begin, s.end, s.parent) for s in segments(rows)]
        [(0, 0, 2, None), (0, 2, 4, 0), (1, 2, 4, 0)]
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

    Sorted by length, which wastes the least padding; with shared prefixes by prompt, and copies of
    keys and values count as the positions whose memory they take (``SHARED_PER_TOKEN``). A row
    longer than ``max_tokens`` has a pass of its own.
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
            # Twice: the row and its branching point each keep a copy of shared keys and values.
            positions = before + length - shared + 2 * shared // SHARED_PER_TOKEN
        if part and (positions > max_tokens or len(part) == max_rows):
            yield part
            part, positions = [], length
        part.append(row)
        before = positions
    if part:
        yield part


def _branches(rows: Sequence[Row], which: range, stem: int) -> list[range]:
    """``which`` rows by their token after ``stem`` tokens; each row that ends there is alone."""
    branches = []
    for token, group in groupby(which, lambda index: _token_at(rows[index], stem)):
        indexes = list(group)
        if token is None:
            branches += [range(index, index + 1) for index in indexes]
        else:
            branches.append(range(indexes[0], indexes[-1] + 1))
    return branches


def _token_at(row: Row, place: int) -> int | None:
    return row.prompt[place] if place < row.shareable else None


def _common(one: Row, other: Row, known: int) -> int:
    """Length of the prefix that two rows share, at least ``known``."""
    least, most = known, min(one.shareable, other.shareable)
    while least < most:  # by bisection: tuples are compared much faster than single tokens
        middle = (least + most + 1) // 2
        if one.prompt[least:middle] == other.prompt[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
