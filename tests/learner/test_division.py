"""Which rank computes what: everything once, evenly, and the same on every machine."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.learner.batching import Row
from rlforge.learner.division import balanced, shares
from rlforge.learner.prefixes import Family, parts

COSTS = st.lists(st.integers(0, 1000), max_size=60)
PARTS = st.integers(1, 9)


@given(COSTS, PARTS)
def test_every_index_is_dealt_once_in_ascending_order(costs: list[int], parts: int) -> None:
    dealt = balanced(costs, parts)
    assert len(dealt) == parts
    assert sorted(index for indexes in dealt for index in indexes) == list(range(len(costs)))
    assert all(indexes == sorted(indexes) for indexes in dealt)


@given(COSTS, PARTS)
def test_no_load_lies_further_above_the_mean_than_the_dearest(costs: list[int], parts: int) -> None:
    loads = [sum(costs[index] for index in indexes) for indexes in balanced(costs, parts)]
    assert max(loads) <= sum(costs) / parts + max(costs, default=0) * (1 - 1 / parts)


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), max_size=6), st.integers(1, 3))
def test_the_largest_load_is_near_the_smallest_possible(costs: list[int], parts: int) -> None:
    def largest(owners: tuple[int, ...]) -> int:
        pairs = list(zip(owners, costs, strict=True))
        return max(sum(cost for owner, cost in pairs if owner == part) for part in range(parts))

    best = min(map(largest, product(range(parts), repeat=len(costs))))
    loads = [sum(costs[index] for index in indexes) for indexes in balanced(costs, parts)]
    assert max(loads) <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


@given(st.integers(0, 40), PARTS)
def test_equal_costs_are_counted_out_even_when_they_are_nothing(count: int, parts: int) -> None:
    for cost in (0, 5):
        sizes = [len(indexes) for indexes in balanced([cost] * count, parts)]
        assert max(sizes) - min(sizes) <= 1


def rows_of(lengths: list[int]) -> list[Row]:
    return [
        Row(step=step, prompt=(1,) * length, answer=(2,)) for step, length in enumerate(lengths)
    ]


def cut(rows):
    return parts(Family(rows=tuple(rows), shared=0), 3, 1000)


@given(st.lists(st.integers(1, 50), max_size=40), PARTS, st.booleans())
def test_all_ranks_together_count_every_row_once(
    lengths: list[int], size: int, in_step: bool
) -> None:
    rows = rows_of(lengths)
    by_rank = [list(shares(rows, rank, size, cut, in_step=in_step)) for rank in range(size)]
    counted = [share.part for mine in by_rank for share in mine if share.counts]
    counted = [row.step for part in counted for row in part.rows]
    assert sorted(counted) == list(range(len(rows)))
    if in_step:
        assert len({len(mine) for mine in by_rank}) == 1
    else:
        assert all(share.counts for mine in by_rank for share in mine)


def test_a_rank_without_rows_computes_the_shortest_in_step_without_counting_it() -> None:
    rows = rows_of([7, 3])
    (filler,) = shares(rows, 2, 3, cut, in_step=True)
    assert filler.part == Family(rows=(rows[1],), shared=0)
    assert not filler.counts
    assert list(shares(rows, 2, 3, cut, in_step=False)) == []


@pytest.mark.parametrize("in_step", [False, True])
def test_one_rank_makes_the_micro_batches_of_all_rows(in_step: bool) -> None:
    rows = rows_of([5, 1, 4, 2, 3, 9, 8])
    alone = [share.part for share in shares(rows, 0, 1, cut, in_step=in_step)]
    assert alone == list(cut(rows))
