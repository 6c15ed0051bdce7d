"""Which rank computes what: everything once, evenly, and the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.learner.batching import Row
from rlforge.learner.division import balanced, deal, shares
from rlforge.learner.prefixes import in_order, parts, segments

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
    assert max(loads) * parts <= sum(costs) + max(costs, default=0) * (parts - 1)


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


PROMPTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=12), max_size=40)


def reads(rows: list[Row]) -> int:
    """Tokens that a rank reads of rows in order that share their beginnings."""
    return sum(segment.end - segment.begin for segment in segments(rows))


@given(PROMPTS, PARTS)
def test_rows_that_share_beginnings_are_dealt_once_each_as_evenly_as_neighbours_can_be(
    prompts: list[list[int]], size: int
) -> None:
    rows = [Row(step=n, prompt=tuple(prompt), answer=(3,)) for n, prompt in enumerate(prompts)]
    dealt = deal(rows, size, "shared")
    assert len(dealt) == size
    assert sorted(row.step for mine in dealt for row in mine) == list(range(len(rows)))
    # A part is full when the next row does not fit, and begins with a row read from its start.
    longest = max((row.input_length for row in rows), default=0)
    assert max(map(reads, dealt)) <= reads(in_order(rows)) / size + 2 * longest


def test_a_game_stays_on_one_rank_while_others_balance_it() -> None:
    rules = [tuple(range(100 * n, 100 * n + 80)) for n in range(8)]
    rows = [
        Row(step=10 * game + turn, prompt=(*rules[game], *range(900, 901 + turn)), answer=(1,))
        for turn in range(10)
        for game in range(8)
    ]
    for mine in deal(rows, 4, "shared"):
        assert sorted({row.step // 10 for row in mine}) == [row.step // 10 for row in mine[::10]]
        assert len(mine) == 20


@pytest.mark.parametrize("size", [2, 3, 8])
def test_rows_with_one_beginning_are_divided(size: int) -> None:
    rules = tuple(range(50))
    rows = [
        Row(step=n, prompt=(*rules, *range(100 * n, 120 + 101 * n)), answer=(1,))
        for n in range(1, 65)
    ]
    loads = [reads(mine) for mine in deal(rows, size, "shared")]
    assert max(loads) <= 1.15 * sum(loads) / size


def rows_of(lengths: list[int]) -> list[Row]:
    return [
        Row(step=step, prompt=(1,) * length, answer=(2,)) for step, length in enumerate(lengths)
    ]


def cut(rows: Sequence[Row]) -> Iterator[list[Row]]:
    return parts(rows, 3, 1000, "padded")


@given(st.lists(st.integers(1, 50), max_size=40), PARTS, st.booleans())
def test_all_ranks_together_count_every_row_once(
    lengths: list[int], size: int, in_step: bool
) -> None:
    dealt = deal(rows_of(lengths), size, "padded")
    by_rank = [list(shares(dealt, rank, cut, in_step=in_step)) for rank in range(size)]
    counted = [row.step for mine in by_rank for share in mine if share.counts for row in share.rows]
    assert sorted(counted) == list(range(len(lengths)))
    if in_step:
        assert len({len(mine) for mine in by_rank}) == 1
    else:
        assert all(share.counts for mine in by_rank for share in mine)


def test_a_rank_without_rows_computes_the_shortest_in_step_without_counting_it() -> None:
    rows = rows_of([7, 3])
    dealt = deal(rows, 3, "padded")
    assert dealt[2] == []
    (filler,) = shares(dealt, 2, cut, in_step=True)
    assert filler.rows == [rows[1]]
    assert not filler.counts
    assert list(shares(dealt, 2, cut, in_step=False)) == []


@pytest.mark.parametrize("in_step", [False, True])
def test_one_rank_makes_the_micro_batches_of_all_rows(in_step: bool) -> None:
    rows = rows_of([5, 1, 4, 2, 3, 9, 8])
    alone = [share.rows for share in shares([rows], 0, cut, in_step=in_step)]
    assert alone == list(cut(rows))
