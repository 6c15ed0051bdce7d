"""Every row is computed once, evenly over ranks, and shared prefixes change no result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learner import parts

from rlforge.config.model import LoraConfig
from rlforge.learner import partition
from rlforge.learner.batching import Row, collate, whole
from rlforge.learner.partition import (
    balanced,
    deal,
    in_order,
    segments,
    shared_with_previous,
    shares,
)

CPU = torch.device("cpu")
BUILD = {"packed": whole, "shared": segments}
LAYOUTS = ["padded", "distinct", *BUILD]


def built(rows, layout):
    """The tensors of ``rows``."""
    made = BUILD[layout](rows) if layout in BUILD else None
    return collate(rows, 0, CPU, made, distinct=layout == "distinct")


def row(prompt, sample=0, answer=(1,)):
    return Row(sample=sample, prompt=tuple(prompt), answer=answer)


texts = st.lists(st.integers(1, 2), min_size=1, max_size=12).map(tuple)
answers = st.lists(st.integers(1, 2), max_size=4).map(tuple)


def tokens_of(made, rows, index):
    """All tokens of the row up to the end of segment ``index``."""
    segment = made[index]
    before = () if segment.parent is None else tokens_of(made, rows, segment.parent)
    assert len(before) == segment.begin < segment.end
    return before + rows[segment.row].tokens[segment.begin : segment.end]


@given(st.lists(st.tuples(texts, answers), min_size=1, max_size=25))
def test_segments_make_every_row_and_hold_each_shared_prefix_once(drawn):
    rows = in_order([row(prompt, sample, answer) for sample, (prompt, answer) in enumerate(drawn)])
    made = segments(rows)
    for end, each in zip(made.ends, rows, strict=True):
        assert tokens_of(made.segments, rows, end) == each.prompt + each.answer[:-1]
    for index, segment in enumerate(made.segments):
        assert segment.parent is None or segment.parent < index
    beginnings = {each.tokens[:n] for each in rows for n in range(1, len(each.tokens) + 1)}
    computed = sum(segment.end - segment.begin for segment in made.segments)
    assert computed == len(beginnings)
    lengths = sum(each.input_length for each in rows)
    assert computed == lengths - sum(shared_with_previous(rows))


def test_a_game_of_many_turns_needs_no_recursion():
    """Each turn continues all earlier ones: more than Python's recursion limit."""
    rows = [row((*range(n), 9000 + n)) for n in range(2, 1202)]
    assert len(segments(in_order(rows)).segments) == 2 * len(rows) - 1


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=30),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(1, 90),
    st.sampled_from(LAYOUTS),
)
def test_passes_hold_every_row_once_within_both_limits(lengths, max_rows, max_tokens, layout):
    rows = [row(range(1, n + 1), sample) for sample, n in enumerate(lengths)]
    cut = list(partition.parts(rows, max_rows, max_tokens, layout))
    assert sorted(r.sample for part in cut for r in part) == list(range(len(rows)))
    for part in cut:
        micro = built(part, layout)
        different = len({r.tokens for r in part})
        assert different == 1 or micro.input_ids.numel() <= max_tokens
        assert micro.padding == 0 or layout in ("padded", "distinct")
        assert micro.reused == 0 or layout in ("distinct", "shared")
        assert layout != "distinct" or len(micro.input_ids) == different
        assert max_rows is None or len(part) <= max_rows
    lengths_in_order = [r.input_length for part in cut for r in part]
    assert lengths_in_order == sorted(lengths_in_order)


def alike(number=7):
    """Samples whose prompts share five tokens, every second sample two more."""
    return [
        replace(
            sample,
            prompt_token_ids=(9, 8, 7, 6, 5, index % 2 + 1, 3, *sample.prompt_token_ids),
            origin=f"game-{index}",
        )
        for index, sample in enumerate(parts.random_steps(number))
    ]


CHECKPOINTING = [{}, {"gradient_checkpointing": True}, {"activation_checkpointing": True}]


@pytest.mark.parametrize("config", CHECKPOINTING)
def test_packing_and_shared_prefixes_give_the_same_update(config):
    samples = alike(13)
    options = {"reference": True, "values": True, "entropy": True}
    (expected, padded), (apart, packed), (together, shared) = (
        parts.first_update(
            samples,
            parts.PolicyGradient(**options),
            mini_batch_size=None,
            packing=packing,
            share_prefixes=share,
            **config,
        )
        for packing, share in (("off", False), ("on", False), ("on", True))
    )
    # Twelve of 13 rows reuse the five tokens, eleven reuse two more (others by chance).
    read = sum(len(sample.prompt_token_ids) + len(sample.token_ids) - 1 for sample in samples)
    assert shared["reused_share"] >= (12 * 5 + 11 * 2) / read
    assert padded["reused_share"] == packed["reused_share"] == packed["padding_share"] == 0.0
    assert padded["padding_share"] > 0.05
    assert packed["loss"] == pytest.approx(padded["loss"], rel=1e-5)
    assert shared["loss"] == pytest.approx(padded["loss"], rel=1e-5)
    parts.same_gradients(apart, expected)
    parts.same_gradients(together, expected)


@pytest.mark.parametrize("config", CHECKPOINTING)
def test_equal_turns_give_the_same_update_from_one_padded_row(config):
    """Self-play at small games: the same states with the same and with other answers."""
    states = [
        replace(sample, token_ids=sample.token_ids[:1], logprobs=sample.logprobs[:1])
        for sample in parts.random_steps(3)
    ]
    answers = {"token_ids": (4,), "logprobs": (-0.5,)}
    others = [replace(s, reward=-s.reward, **answers, origin="other") for s in states]
    samples = [*states, *others, *(replace(s, reward=0.3, origin="third") for s in states)]
    (learned, shared), (expected, plain) = (
        parts.first_update(
            samples, mini_batch_size=None, packing="off", share_prefixes=on, **config
        )
        for on in (True, False)
    )
    assert shared["reused_share"] == pytest.approx(2 / 3)
    assert plain["reused_share"] == 0.0
    assert shared["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    parts.same_gradients(learned, expected)


@pytest.mark.parametrize("packing", ["on", "off"])
def test_nothing_is_shared_under_dropout(packing):
    lora = LoraConfig(rank=4, alpha=8, dropout=0.1)
    learner = parts.learner(lora=lora, mini_batch_size=None, packing=packing)
    assert learner.update(parts.batch(alike() * 2)).metrics["reused_share"] == 0.0


# ---------------------------------------------------------------- ranks

COSTS = st.lists(st.integers(0, 1000), max_size=60)
PARTS = st.integers(1, 9)


@given(COSTS, PARTS)
def test_every_index_is_dealt_once_in_ascending_order_and_evenly(costs, count):
    """No load exceeds the mean by more than the largest cost."""
    dealt = balanced(costs, count)
    assert len(dealt) == count
    assert sorted(index for indexes in dealt for index in indexes) == list(range(len(costs)))
    assert all(indexes == sorted(indexes) for indexes in dealt)
    loads = [sum(costs[index] for index in indexes) for indexes in dealt]
    assert max(loads) * count <= sum(costs) + max(costs, default=0) * (count - 1)


@given(st.lists(st.integers(1, 30), max_size=6), st.integers(1, 3))
def test_the_largest_load_is_near_the_smallest_possible(costs, count):
    def largest(owners):
        pairs = list(zip(owners, costs, strict=True))
        return max(sum(cost for owner, cost in pairs if owner == part) for part in range(count))

    best = min(map(largest, product(range(count), repeat=len(costs))))
    loads = [sum(costs[index] for index in indexes) for indexes in balanced(costs, count)]
    assert max(loads) <= (4 / 3 - 1 / (3 * count)) * best + 1e-9


@given(st.integers(0, 40), PARTS)
def test_equal_costs_are_dealt_evenly_even_if_zero(number, count):
    for cost in (0, 5):
        sizes = [len(indexes) for indexes in balanced([cost] * number, count)]
        assert max(sizes) - min(sizes) <= 1


PROMPTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=12), max_size=40)


def reads(rows: list[Row]) -> int:
    """Tokens that a rank computes for ordered rows with shared prefixes."""
    return sum(segment.end - segment.begin for segment in segments(rows).segments)


@given(PROMPTS, PARTS)
def test_rows_with_shared_prefixes_are_dealt_once_each_and_evenly(prompts, size):
    rows = [row(prompt, n, (3,)) for n, prompt in enumerate(prompts)]
    dealt = deal(rows, size, "shared")
    assert len(dealt) == size
    assert sorted(row.sample for mine in dealt for row in mine) == list(range(len(rows)))
    # A part is full when the next row does not fit, and begins with a row read from its start.
    longest = max((row.input_length for row in rows), default=0)
    assert max(map(reads, dealt)) <= reads(in_order(rows)) / size + 2 * longest


def test_a_game_stays_on_one_rank_while_others_balance_it():
    rules = [tuple(range(100 * n, 100 * n + 80)) for n in range(8)]
    rows = [
        row((*rules[game], *range(900, 901 + turn)), 10 * game + turn)
        for turn in range(10)
        for game in range(8)
    ]
    for mine in deal(rows, 4, "shared"):
        assert sorted({row.sample // 10 for row in mine}) == [
            row.sample // 10 for row in mine[::10]
        ]
        assert len(mine) == 20


@pytest.mark.parametrize("size", [2, 3, 8])
def test_rows_with_one_common_prefix_are_divided(size):
    rules = tuple(range(50))
    rows = [row((*rules, *range(100 * n, 120 + 101 * n)), n) for n in range(1, 65)]
    loads = [reads(mine) for mine in deal(rows, size, "shared")]
    assert max(loads) <= 1.15 * sum(loads) / size


def rows_of(lengths: list[int]) -> list[Row]:
    return [row((1,) * length, sample, (2,)) for sample, length in enumerate(lengths)]


def cut(rows: Sequence[Row]) -> Iterator[list[Row]]:
    return partition.parts(rows, 3, 1000, "padded")


@given(st.lists(st.integers(1, 50), max_size=40), PARTS, st.booleans())
def test_all_ranks_together_count_every_row_once(lengths, size, in_step):
    dealt = deal(rows_of(lengths), size, "padded")
    by_rank = [list(shares(dealt, rank, cut, in_step=in_step)) for rank in range(size)]
    counted = [row.sample for mine in by_rank for part, counts in mine if counts for row in part]
    assert sorted(counted) == list(range(len(lengths)))
    if in_step:
        assert len({len(mine) for mine in by_rank}) == 1
    else:
        assert all(counts for mine in by_rank for _, counts in mine)


def test_a_rank_without_rows_computes_the_shortest_in_step_without_counting_it():
    rows = rows_of([7, 3])
    dealt = deal(rows, 3, "padded")
    assert dealt[2] == []
    assert list(shares(dealt, 2, cut, in_step=True)) == [([rows[1]], False)]
    assert list(shares(dealt, 2, cut, in_step=False)) == []


@pytest.mark.parametrize("in_step", [False, True])
def test_one_rank_makes_the_micro_batches_of_all_rows(in_step):
    rows = rows_of([5, 1, 4, 2, 3, 9, 8])
    alone = [part for part, _ in shares([rows], 0, cut, in_step=in_step)]
    assert alone == list(cut(rows))
