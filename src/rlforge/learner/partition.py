"""Division of rows: among ranks, into forward passes, and into segments of shared prefixes.

Rows share prefixes: the rules of a game, earlier turns, the beginning of an answer. A pass computes
each once, forward and backward (``rlforge.learner.attention``). The shared prefixes of sorted rows
form a tree: rules at the root, games below, later turns below earlier ones.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from rlforge.learner.batching import Layout, Row
from rlforge.learner.packing import Segment, Segments

#: Shared tokens that take the memory of one computed token: a row keeps keys and values of the
#: former, all activations of the latter.
SHARED_PER_TOKEN = 16


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Indexes of ``costs`` dealt to ``parts`` lists whose sums are close; each is ascending.

    Longest processing time first (Graham 1969): the largest sum is at most 4/3 - 1/(3 parts) times
    the smallest possible, and exceeds the mean by less than the largest cost. With fewer costs than
    parts some lists are empty. All machines deal alike.

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
    """Deal ``rows`` to ``parts`` ranks, balanced by the tokens that each must compute."""
    if layout != "shared":
        lengths = [row.input_length for row in rows]
        return [[rows[index] for index in indexes] for indexes in balanced(lengths, parts)]
    # Each rank computes prefixes for itself, so it gets neighbours, which share them.
    ordered = in_order(rows)
    lengths, shared = [row.input_length for row in ordered], shared_with_previous(ordered)

    def suffices(load: int) -> bool:
        return len(_filled(lengths, shared, load)) < parts

    # Bisection finds the smallest load, because a larger one never needs more ranks.
    least = bisect_left(range(sum(lengths)), True, lo=max(lengths, default=0), key=suffices)
    cuts = _filled(lengths, shared, least)
    # All rows may fit on fewer ranks; the others get an empty part.
    cuts += [len(rows)] * (parts - len(cuts))
    return [ordered[start:end] for start, end in pairwise([0, *cuts])]


def shares(
    dealt: Sequence[Sequence[Row]],
    rank: int,
    cut: Callable[[Sequence[Row]], Iterable[list[Row]]],
    *,
    in_step: bool,
) -> Iterator[tuple[list[Row], bool]]:
    """Micro-batches of ``rank`` from the rows ``dealt``, cut by ``cut``, and whether each counts.

    ``in_step``: all ranks get equally many.
    """
    mine = list(cut(dealt[rank]))
    for part in mine:
        yield part, True
    rows = [row for part in dealt for row in part]
    # A pass of a spread model gathers weights from all ranks: without one the others would wait.
    if in_step and rows:
        longest = max(sum(1 for _ in cut(part)) for part in dealt)
        # A rank with fewer micro-batches repeats the cheapest row, which does not count.
        shortest = min(rows, key=lambda row: row.input_length)
        for _ in range(longest - len(mine)):
            yield [shortest], False


def _filled(lengths: Sequence[int], shared: Sequence[int], most: int) -> list[int]:
    """Places to cut ordered rows so that each part but the last is as full as ``most`` allows."""
    cuts = []
    load = 0
    for index, (length, known) in enumerate(zip(lengths, shared, strict=True)):
        load += length - known
        if load > most:
            cuts.append(index)
            load = length
    return cuts


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Sort ``rows`` by their tokens, so that rows with a common prefix are neighbours."""
    return sorted(rows, key=lambda row: row.tokens)


def shared_with_previous(rows: Sequence[Row]) -> list[int]:
    """Length of the prefix that each of ordered rows shares with the row before it."""
    texts = [row.tokens for row in rows]
    return [0, *(_common(one, other, 0) for one, other in pairwise(texts))][: len(rows)]


def segments(rows: Sequence[Row]) -> Segments:
    """Prefix tree of ordered ``rows``: each of its tokens once, parents before children.

    A prefix shared by several rows is a segment; so is the rest of a row after the longest one.

    Example:
        >>> rows = [
        ...     Row(sample=0, prompt=(1, 2, 3, 4), answer=(5,)),
        ...     Row(sample=1, prompt=(1, 2, 7), answer=(8, 9)),
        ... ]
        >>> [(s.row, s.begin, s.end, s.parent) for s in segments(rows).segments]
        [(0, 0, 2, None), (0, 2, 4, 0), (1, 2, 4, 0)]
    """
    texts = [row.tokens for row in rows]
    made: list[Segment] = []
    ends = [0] * len(rows)
    todo: list[tuple[range, int | None, int]] = [(range(len(rows)), None, 0)] if rows else []
    while todo:
        which, parent, begin = todo.pop()
        stem = _common(texts[which[0]], texts[which[-1]], begin)
        if stem > begin:
            made.append(Segment(row=which[0], begin=begin, end=stem, parent=parent))
            parent = len(made) - 1
        branches = []
        following = ((texts[index][stem : stem + 1], index) for index in which)
        for token, group in groupby(following, itemgetter(0)):
            indexes = [index for _, index in group]
            # Rows that end here have no next token, and so no branch.
            if token:
                branches.append((range(indexes[0], indexes[-1] + 1), parent, stem))
                continue
            assert parent is not None, "no row is empty"
            for index in indexes:
                ends[index] = parent
        # A stack, because a game of many turns is deeper than Python recurses.
        todo += reversed(branches)
    return Segments(segments=tuple(made), ends=tuple(ends))


def parts(
    rows: Sequence[Row], max_rows: int | None, max_tokens: int, layout: Layout
) -> Iterator[list[Row]]:
    """Cut ``rows`` into forward passes of at most ``max_tokens`` positions each.

    A row longer than ``max_tokens`` has a pass of its own.
    """
    ordered = in_order(rows) if layout in ("distinct", "shared") else list(rows)
    # Neighbours of one length waste the least padding; those of one prefix share the most.
    if layout != "shared":
        ordered.sort(key=lambda row: row.input_length)
    alike = shared_with_previous(ordered) if layout in ("distinct", "shared") else [0] * len(rows)
    part: list[Row] = []
    before = computed = 0
    for row, shared in zip(ordered, alike, strict=True):
        length = row.input_length
        if layout in ("padded", "distinct"):
            # A row equal to the one before costs nothing, as both are computed once.
            known = bool(part) and shared == length == part[-1].input_length
            computed += not known
            positions = computed * length
        else:
            # The row and its branching point each copy shared keys and values, which fills memory.
            copied = 2 * shared if shared < length else 0
            positions = before + length - shared + copied // SHARED_PER_TOKEN
        if part and (positions > max_tokens or len(part) == max_rows):
            yield part
            part, positions, computed = [], length, 1
        part.append(row)
        before = positions
    if part:
        yield part


def _common(one: tuple[int, ...], other: tuple[int, ...], known: int) -> int:
    """Length of the prefix that two rows' tokens share, at least ``known``."""
    least, most = known, min(len(one), len(other))
    # Bisection, because slices are compared much faster than single tokens.
    while least < most:
        middle = (least + most + 1) // 2
        if one[least:middle] == other[least:middle]:
            least = middle
        else:
            most = middle - 1
    return least
