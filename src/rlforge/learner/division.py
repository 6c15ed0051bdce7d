"""Division of work: which rank computes which rows, and in which micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from rlforge.learner.batching import Layout, Row
from rlforge.learner.prefixes import in_order, shared_with_previous
from rlforge.types import value


@value
class Share:
    """One micro-batch of a rank. counts: False where it only keeps the ranks in step."""

    rows: list[Row]
    counts: bool


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """Indexes of ``costs`` dealt to ``parts`` lists whose sums are close; each is ascending.

    Longest processing time first (Graham 1969, "Bounds on multiprocessing timing anomalies"): the
    dearest goes to whoever has least. The largest sum is at most 4/3 - 1/(3 parts) times the
    smallest possible, and beyond the mean by less than the dearest cost. Some lists are empty
    where there are fewer costs than parts. Equal input gives equal output, on any machine.
    """
    dealt: list[list[int]] = [[] for _ in range(parts)]
    # Beside the sum stands the count, so that what costs nothing is spread as well.
    loads = [(0, 0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, count, part = loads[0]
        dealt[part].append(index)
        heapq.heapreplace(loads, (load + costs[index], count + 1, part))
    return [sorted(indexes) for indexes in dealt]


def deal(rows: Sequence[Row], parts: int, layout: Layout) -> list[list[Row]]:
    """``rows`` dealt to ``parts`` ranks, balanced by the tokens they make each read.

    Where beginnings are shared, neighbours in the order of their prompts stay together: each
    further rank reads such a beginning again.
    """
    if layout != "shared":
        lengths = [row.input_length for row in rows]
        return [[rows[index] for index in indexes] for indexes in balanced(lengths, parts)]
    ordered = in_order(rows)
    lengths, shared = [row.input_length for row in ordered], shared_with_previous(ordered)
    least, most = max(lengths, default=0), sum(lengths)
    while least < most:  # the smallest load with which the ranks suffice
        middle = (least + most) // 2
        if len(_filled(lengths, shared, middle)) < parts:
            most = middle
        else:
            least = middle + 1
    cuts = _filled(lengths, shared, most)
    cuts += [len(rows)] * (parts - len(cuts))
    return [ordered[start:end] for start, end in pairwise([0, *cuts])]


def shares(
    dealt: Sequence[Sequence[Row]],
    rank: int,
    cut: Callable[[Sequence[Row]], Iterable[list[Row]]],
    *,
    in_step: bool,
) -> Iterator[Share]:
    """The micro-batches that ``rank`` computes of its part of what was ``dealt``.

    cut: makes micro-batches of what a rank got. in_step: all ranks get equally many, because each
    pass through a model that is spread over them takes all of them; whoever has fewer computes the
    shortest row once more, which does not count.
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
    """Where to cut rows in order so that each part but the last is as full as ``most`` allows."""
    cuts = []
    load = 0
    for index, (length, known) in enumerate(zip(lengths, shared, strict=True)):
        load += length - known
        if load > most:
            cuts.append(index)
            load = length
    return cuts
