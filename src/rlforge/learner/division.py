"""Division of work: which rank computes which rows, and in which micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence

from rlforge.learner.batching import Row
from rlforge.learner.prefixes import Family
from rlforge.types import value


@value
class Share:
    """One micro-batch of a rank. counts: False where it only keeps the ranks in step."""

    part: Family
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


def shares(
    rows: Sequence[Row],
    rank: int,
    size: int,
    cut: Callable[[Sequence[Row]], Iterable[Family]],
    *,
    in_step: bool,
) -> Iterator[Share]:
    """The micro-batches that ``rank`` of ``size`` computes of ``rows``, balanced by tokens.

    cut: makes micro-batches of a rank's rows. in_step: all ranks get equally many, because each
    pass through a model that is spread over them takes all of them; whoever has fewer computes the
    shortest row once more, which does not count.
    """
    dealt = [
        [rows[index] for index in indexes]
        for indexes in balanced([row.input_length for row in rows], size)
    ]
    mine = list(cut(dealt[rank]))
    for part in mine:
        yield Share(part=part, counts=True)
    if in_step and rows:
        longest = max(sum(1 for _ in cut(part)) for part in dealt)
        filler = Family(rows=(min(rows, key=lambda row: row.input_length),), shared=0)
        for _ in range(longest - len(mine)):
            yield Share(part=filler, counts=False)
