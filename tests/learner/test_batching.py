from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learner import parts

from rlforge.errors import RunError
from rlforge.learner.batching import (
    Row,
    collate,
    most_legal,
    rows_of,
    select_rows,
    split_rows,
    sums_of,
    whole,
)
from rlforge.learner.packing import Segment, Segments
from rlforge.learner.partition import in_order, segments


def row(prompt: int, answer: int, sample: int = 0, start: int = 0) -> Row:
    return Row(
        sample=sample,
        prompt=tuple(range(1, prompt + 1)),
        answer=tuple(range(101, 101 + answer)),
        behaviour=(-1.0,) * answer,
        start=start,
    )


def test_steps_without_tokens_are_left_out_and_counted():
    unanswered, unasked = {"token_ids": (), "logprobs": ()}, {"prompt_token_ids": ()}
    samples = [parts.sample(**unanswered), parts.sample(), parts.sample(**unasked)]
    selection = select_rows(samples, None)
    assert [r.sample for r in selection.rows] == [1]
    assert (selection.empty, selection.tokens) == (2, 2)


def test_max_train_len_cuts_the_end_of_answers_and_drops_prompts_without_room():
    samples = [
        parts.sample(prompt_token_ids=(1, 2, 3), token_ids=(4, 5, 6), logprobs=(-1.0, -2.0, -3.0)),
        parts.sample(prompt_token_ids=(1, 2, 3, 4, 5)),
        parts.sample(prompt_token_ids=(1, 2, 3), token_ids=(4, 5), logprobs=(-1.0, -2.0)),
    ]
    selection = select_rows(samples, 5)
    assert [(r.sample, r.answer, r.behaviour, r.start) for r in selection.rows] == [
        (0, (4, 5), (-1.0, -2.0), 0),
        (2, (4, 5), (-1.0, -2.0), 2),
    ]
    assert (selection.truncated, selection.too_long, selection.tokens) == (1, 1, 4)


def test_logprobs_that_do_not_match_the_tokens_name_game_and_turn():
    with pytest.raises(RunError, match=r"^g7, turn 3: 2 tokens but 1 log-probs"):
        select_rows([parts.sample(origin="g7", turn_index=3, logprobs=(-1.0,))], None)


def test_collate_pads_right_and_points_at_the_predicting_positions():
    rows = [row(2, 3, sample=7, start=10), row(4, 1, sample=9, start=20)]
    micro = collate(rows, 0, torch.device("cpu"))
    assert micro.input_ids.tolist() == [[1, 2, 101, 102], [1, 2, 3, 4]]
    assert micro.mask.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
    assert micro.token_ids.tolist() == [101, 102, 103, 101]
    assert micro.positions.tolist() == [1, 2, 3, 7]
    assert micro.slots.tolist() == [0, 1, 2, 3]
    assert micro.flat.tolist() == [10, 11, 12, 20]
    assert micro.samples.tolist() == [7, 9]
    assert micro.last_prompt.tolist() == [1, 7]
    assert (micro.padding, micro.reused, micro.packing) == (0, 0, None)


def test_packed_rows_follow_each_other():
    rows = [row(2, 3), row(4, 1)]
    micro = collate(rows, 0, torch.device("cpu"), whole(rows))
    assert micro.input_ids.tolist() == [[1, 2, 101, 102, 1, 2, 3, 4]]
    assert micro.positions.tolist() == [1, 2, 3, 7]
    assert micro.last_prompt.tolist() == [1, 7]
    assert micro.packing.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert micro.packing.keys is None
    assert micro.packing.query_ends.tolist() == micro.packing.key_ends.tolist() == [0, 4, 8]
    assert (micro.packing.longest, micro.padding, micro.reused) == ((4, 4), 0, 0)


def test_segments_continue_their_shared_prefix():
    rows = [row(3, 3), row(6, 1)]
    stem = Segment(row=1, begin=0, end=2)
    ends = [Segment(row=n, begin=2, end=rows[n].input_length, parent=0) for n in range(2)]
    micro = collate(rows, 0, torch.device("cpu"), Segments(segments=(stem, *ends), ends=(1, 2)))
    assert micro.input_ids.tolist() == [[1, 2, 3, 101, 102, 3, 4, 5, 6]]
    assert micro.positions.tolist() == [2, 3, 4, 8]
    assert micro.last_prompt.tolist() == [2, 8]
    packing = micro.packing
    assert packing.position_ids.tolist() == [[0, 1, 2, 3, 4, 2, 3, 4, 5]]
    assert packing.query_ends.tolist() == [0, 2, 5, 9]
    assert packing.keys.tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 5, 6, 7, 8]
    assert packing.key_ends.tolist() == [0, 2, 7, 13]
    assert (packing.longest, micro.padding, micro.reused) == ((4, 6), 0, 2)


def test_equal_answers_after_equal_tokens_are_computed_and_scored_once():
    """Groups of one prompt, and short answers, repeat themselves: 207 turns of Kuhn had 24 texts.

    The first two rows are equal; the third shares their prompt and the first answer token.
    """
    rows = in_order(
        [
            Row(sample=0, prompt=(1, 2), answer=(3, 4, 5), start=0),
            Row(sample=1, prompt=(1, 2), answer=(3, 4, 5), start=3),
            Row(sample=2, prompt=(1, 2), answer=(3, 6), start=6),
        ]
    )
    micro = collate(rows, 0, torch.device("cpu"), segments(rows))

    assert micro.input_ids.tolist() == [[1, 2, 3, 4]]
    assert micro.reused == 4 + 4 + 3 - 4
    scored = zip(micro.positions.tolist(), micro.token_ids.tolist(), strict=True)
    assert list(scored) == [(1, 3), (2, 4), (2, 6), (3, 5)]
    assert micro.reads.tolist() == [1, 2, 3]
    assert [row.sample for row in rows] == [2, 0, 1]
    assert micro.copies.tolist() == [0, 2, 0, 1, 3, 0, 1, 3]
    assert micro.flat.tolist() == [6, 7, 0, 1, 2, 3, 4, 5]
    assert micro.last_prompt.tolist() == [1, 1, 1]


def test_padded_rows_of_equal_tokens_are_computed_once():
    rows = [
        Row(sample=0, prompt=(1, 2), answer=(3,), start=0),
        Row(sample=1, prompt=(4, 5, 6), answer=(3,), start=1),
        Row(sample=2, prompt=(1, 2), answer=(7,), start=2),
        Row(sample=3, prompt=(1, 2), answer=(3,), start=3),
    ]
    micro = collate(rows, 0, torch.device("cpu"), distinct=True)
    assert micro.input_ids.tolist() == [[1, 2, 0], [4, 5, 6]]
    assert (micro.padding, micro.reused) == (1, 4)
    scored = list(zip(micro.positions.tolist(), micro.token_ids.tolist(), strict=True))
    assert scored == [(1, 3), (1, 7), (5, 3)]
    assert [scored[copy] for copy in micro.copies.tolist()] == [(1, 3), (5, 3), (1, 7), (1, 3)]
    assert micro.reads.tolist() == [1, 5]
    assert micro.last_prompt.tolist() == [1, 5, 1, 1]
    assert micro.samples.tolist() == micro.flat.tolist() == [0, 1, 2, 3]


def test_padded_lays_out_the_numbers_of_each_token_with_zeros_in_the_padding():
    micro = collate([row(2, 1), row(4, 2)], 0, torch.device("cpu"))
    per_token = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
    padded = micro.padded(per_token)
    assert padded.tolist() == [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]
    assert micro.padded(per_token[:, 0]).tolist() == [[1, 0], [3, 5]]
    padded.square().sum().backward()
    assert per_token.grad.tolist() == [[2, 4], [6, 8], [10, 12]]


def test_the_answers_of_pairs_are_numbered_one_after_the_other():
    rows, total = rows_of([((1, 2), (3, 4)), ((5,), (6,)), ((1,), (7, 8, 9))])
    assert [(r.sample, r.prompt, r.answer, r.start) for r in rows] == [
        (0, (1, 2), (3, 4), 0),
        (1, (5,), (6,), 2),
        (2, (1,), (7, 8, 9), 3),
    ]
    assert total == 6
    per_token = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    assert sums_of(rows, per_token) == [3.0, 4.0, 56.0]
    assert rows_of([]) == ([], 0)


# ---------------------------------------------------------------- legal tokens


def test_legal_tokens_are_cut_with_their_answer():
    known = ((8, 9), (9,))
    samples = [parts.sample(legal_tokens=known), parts.sample()]
    assert [turn.legal for turn in select_rows(samples, None).turns] == [known, ()]
    assert [turn.legal for turn in select_rows(samples, 4).turns] == [((8, 9),), ()]


def test_most_legal_is_the_largest_set_of_all_turns():
    samples = parts.conversation(3)
    wide = tuple((1, 2, 3) for _ in samples[0].token_ids)
    narrow = tuple((1,) for _ in samples[2].token_ids)
    samples[0] = dataclasses.replace(samples[0], legal_tokens=wide)
    samples[2] = dataclasses.replace(samples[2], legal_tokens=narrow)
    assert most_legal(select_rows(samples, None).rows) == 3
    assert most_legal([row(2, 3)]) == 0
    assert most_legal([]) == 0


def test_legal_ids_are_filled_up_behind_the_tokens_of_each_place():
    known = dataclasses.replace(row(2, 2), legal=((101, 105, 109), (102,)))
    micro = collate([known, row(4, 1, start=2)], 0, torch.device("cpu"))
    assert micro.legal_ids.tolist() == [[101, 105, 109], [102, -1, -1], [-1, -1, -1]]
    assert collate([row(2, 2)], 0, torch.device("cpu")).legal_ids is None


@pytest.mark.parametrize("layout", ["distinct", "shared"])
def test_equal_tokens_with_other_legal_tokens_are_scored_apart(layout):
    """Two states may look alike to a model and allow different actions."""
    sets = [((3, 4),), ((3, 5),), ((3, 4),), ()]
    rows = [
        Row(sample=n, prompt=(1, 2), answer=(3,), start=n, legal=legal)
        for n, legal in enumerate(sets)
    ]
    made = segments(rows) if layout == "shared" else None
    micro = collate(rows, 0, torch.device("cpu"), made, distinct=layout == "distinct")
    assert micro.input_ids.tolist() == [[1, 2]]
    assert micro.legal_ids[micro.copies].tolist() == [[3, 4], [3, 5], [3, 4], [-1, -1]]
    assert micro.token_ids.tolist() == [3, 3, 3]


lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=30)


@given(lengths, st.integers(2, 8), st.integers(0, 2**32))
def test_split_rows_shuffles_every_row_into_even_parts(sizes, number, seed):
    rows = [row(prompt, answer, sample=i) for i, (prompt, answer) in enumerate(sizes)]
    split = split_rows(rows, number, np.random.default_rng(seed))
    assert sorted(r.sample for part in split for r in part) == list(range(len(rows)))
    counts = [len(part) for part in split]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1
    assert len(split) == min(number, len(rows))


def test_split_into_one_part_keeps_the_order_and_no_rows_give_no_parts():
    rows = [row(2, 1, sample=1), row(3, 1, sample=0)]
    generator = np.random.default_rng(0)
    assert split_rows(rows, 1, generator) == [rows]
    assert split_rows([], 1, generator) == []
    assert split_rows([], 3, generator) == []


# ---------------------------------------------------------------- conversations


def test_the_turns_of_a_conversation_are_one_row():
    first, second = parts.conversation(3, "a"), parts.conversation(2, "b", seed=1)
    samples = [second[1], *first, second[0]]
    selection = select_rows(samples, None)
    assert [turn.sample for turn in selection.turns] == [0, 1, 2, 3, 4]
    assert [[turn.sample for turn in row.turns] for row in selection.rows] == [[4, 0], [1, 2, 3]]
    assert [row.input_length for row in selection.rows] == [
        len(one.prompt_token_ids) + len(one.token_ids) - 1 for one in (second[1], first[2])
    ]


def test_a_turn_that_is_missing_stays_as_context():
    samples = parts.conversation(4)
    del samples[1]
    (row,) = select_rows(samples, None).rows
    assert [turn.sample for turn in row.turns] == [0, 1, 2]


def test_rewritten_history_begins_a_row():
    """A chat template that drops the reasoning of earlier answers changes the prompt."""
    samples = parts.conversation(4)
    changed = [
        dataclasses.replace(sample, prompt_token_ids=(1, *sample.prompt_token_ids))
        for sample in samples[2:]
    ]
    rows = select_rows([*samples[:2], *changed], None).rows
    assert [[turn.sample for turn in row.turns] for row in rows] == [[0, 1], [2, 3]]


def test_seats_and_games_with_equal_tokens_are_not_one_conversation():
    first, second = parts.conversation(2)
    other = [dataclasses.replace(second, player_id=1), dataclasses.replace(second, origin="h")]
    assert len(select_rows([first, *other], None).rows) == 3


def test_each_token_of_a_conversation_is_computed_once():
    samples = parts.conversation(20)
    rows = select_rows(samples, None).rows
    whole_length = len(samples[-1].prompt_token_ids) + len(samples[-1].token_ids) - 1
    apart = sum(len(sample.prompt_token_ids) + len(sample.token_ids) - 1 for sample in samples)
    for packed in (None, whole(rows)):
        micro = collate(rows, 0, torch.device("cpu"), packed)
        assert micro.input_ids.numel() == whole_length
        assert (micro.padding, micro.reused) == (0, apart - whole_length)
        ids = micro.input_ids.flatten()
        for turn, sample in enumerate(samples):
            place = int(micro.last_prompt[turn])
            assert ids[: place + 1].tolist() == list(sample.prompt_token_ids)
        answers = [token for sample in samples for token in sample.token_ids]
        assert micro.token_ids.tolist() == answers
        # Each answer token but the last of all follows the position that predicts it.
        assert ids[micro.positions[:-1] + 1].tolist() == answers[:-1]
