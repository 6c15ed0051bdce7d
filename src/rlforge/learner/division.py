"""Division of work: which rank computes which rows, and in which micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

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


def deal(whole: Sequence[Family], parts: int) -> list[list[Family]]:
    """``whole`` dealt to ``parts`` ranks, balanced by the tokens they make each read.

    Rows that share a beginning stay together as long as that divides the work finely enough: in
    units of an eighth of a rank's part, or of the length of the beginning where that is more,
    because each further rank reads it again.
    """
    if parts == 1:
        return [list(whole)]
    most = sum(_cost(family) for family in whole) / (8 * parts)
    units = [(origin, unit) for origin, family in enumerate(whole) for unit in _units(family, most)]
    return [
        [
            Family(
                rows=tuple(row for _, unit in group for row in unit.rows), shared=whole[at].shared
            )
            for at, group in groupby((units[index] for index in indexes), key=itemgetter(0))
        ]
        for indexes in balanced([_cost(unit) for _, unit in units], parts)
    ]


def shares(
    whole: Sequence[Family],
    rank: int,
    size: int,
    cut: Callable[[Family], Iterable[Family]],
    *,
    in_step: bool,
) -> Iterator[Share]:
    """The micro-batches that ``rank`` of ``size`` computes of the rows of ``whole``.

    cut: makes micro-batches of what a rank got of a family. in_step: all ranks get equally many,
    because each pass through a model that is spread over them takes all of them; whoever has fewer
    computes the shortest row once more, which does not count.
    """
    dealt = deal(whole, size)
    mine = [part for family in dealt[rank] for part in cut(family)]
    for part in mine:
        yield Share(part=part, counts=True)
    rows = [row for family in whole for row in family.rows]
    if in_step and rows:
        longest = max(sum(1 for family in part for _ in cut(family)) for part in dealt)
        shortest = min(rows, key=lambda row: row.input_length)
        for _ in range(longest - len(mine)):
            yield Share(part=Family(rows=(shortest,), shared=0), counts=False)


def _units(family: Family, most: float) -> Iterator[Family]:
    """``family`` in the pieces in which it is dealt: single rows where they share nothing."""
    if family.shared == 0:
        yield from (Family(rows=(row,), shared=0) for row in family.rows)
        return
    unit: list[Row] = []
    own = 0
    for row in family.rows:
        length = row.input_length - family.shared
        if unit and own + length > max(most, family.shared):
            yield Family(rows=tuple(unit), shared=family.shared)
            unit, own = [], 0
        unit.append(row)
        own += length
    if unit:
        yield Family(rows=tuple(unit), shared=family.shared)


def _cost(family: Family) -> int:
    """Tokens that ``family`` makes a rank read."""
    lengths = sum(row.input_length for row in family.rows)
    return lengths - family.shared * max(0, len(family.rows) - 1)
