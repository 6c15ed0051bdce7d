"""Which rows share the beginning of their prompts, and that sharing changes no result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.schema import LoraConfig
from rlforge.learner.batching import Row, collate, whole
from rlforge.learner.prefixes import in_order, parts, segments, shared_with_previous

CPU = torch.device("cpu")
BUILD = {"padded": lambda rows: None, "packed": whole, "shared": segments}


def row(prompt, step=0, answer=(1,)):
    return Row(step=step, prompt=tuple(prompt), answer=answer)


prompts = st.lists(
    st.lists(st.integers(1, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=25
)


def tokens_of(made, rows, index):
    """What segment ``index`` ends, from the first token on."""
    segment = made[index]
    before = () if segment.parent is None else tokens_of(made, rows, segment.parent)
    assert len(before) == segment.begin < segment.end
    row = rows[segment.row]
    return before + (row.prompt + row.answer[:-1])[segment.begin : segment.end]


@given(prompts, st.integers(0, 3))
def test_segments_make_every_row_and_hold_each_beginning_once(drawn, answered):
    answer = tuple(range(7, 7 + answered))
    rows = in_order([row(prompt, step, answer) for step, prompt in enumerate(drawn)])
    made = segments(rows)
    ends = {segment.row: index for index, segment in enumerate(made) if not segment.shared}
    assert sorted(ends) == list(range(len(rows)))
    for index, each in enumerate(rows):
        assert tokens_of(made, rows, ends[index]) == each.prompt + each.answer[:-1]
    for index, segment in enumerate(made):
        assert segment.parent is None or segment.parent < index
        assert segment.shared == any(other.parent == index for other in made)
    beginnings = {each.prompt[:n] for each in rows for n in range(1, len(each.prompt))}
    own = sum(1 + max(0, len(each.answer) - 1) for each in rows)
    computed = sum(segment.end - segment.begin for segment in made)
    assert computed == len(beginnings) + own
    lengths = sum(each.input_length for each in rows)
    assert computed == lengths - sum(shared_with_previous(rows))


def test_turns_of_a_game_go_on_from_each_other_and_games_from_their_rules():
    rules, first, second = (1, 2, 3), (4, 5), (6,)
    turns = [(*rules, *first, 9), (*rules, *first, 8, 9), (*rules, *second, 9), (*rules, 7, 9)]
    made = segments(in_order([row(prompt) for prompt in turns]))
    assert [(s.begin, s.end, s.parent, s.shared) for s in made] == [
        (0, 3, None, True),
        (3, 5, 0, True),
        (5, 6, 1, False),
        (5, 7, 1, False),
        (3, 5, 0, False),
        (3, 5, 0, False),
    ]


def test_a_long_game_is_no_deeper_than_its_turns():
    """Every turn goes on from all those before it: more of them than Python has stack frames."""
    rows = [row(range(n)) for n in range(2, 3002)]
    assert len(segments(rows)) == 2 * len(rows) - 1


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=30),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(1, 90),
    st.sampled_from(list(BUILD)),
)
def test_passes_hold_every_row_once_within_both_limits(lengths, max_rows, max_tokens, layout):
    rows = [row(range(1, n + 1), step) for step, n in enumerate(lengths)]
    cut = list(parts(rows, max_rows, max_tokens, layout))
    assert sorted(r.step for part in cut for r in part) == list(range(len(rows)))
    for part in cut:
        micro = collate(part, 0, CPU, BUILD[layout](part))
        assert len(part) == 1 or micro.input_ids.numel() <= max_tokens
        assert micro.padding == 0 or layout == "padded"
        assert micro.reused == 0 or layout == "shared"
        assert max_rows is None or len(part) <= max_rows
    lengths_in_order = [r.input_length for part in cut for r in part]
    assert lengths_in_order == sorted(lengths_in_order)


def alike(parts, number=7):
    """Steps whose prompts begin with the same five tokens, and those of a game with two more."""
    beginning = (9, 8, 7, 6, 5)
    return [
        parts.step(
            prompt_token_ids=(*beginning, index % 2 + 1, 3, *step.prompt_token_ids),
            token_ids=step.token_ids,
            logprobs=step.logprobs,
            reward=step.reward,
            game_id=f"game-{index}",
        )
        for index, step in enumerate(parts.random_steps(number))
    ]


def update(parts, lora=None, **config):
    """Share of tokens that an update did not compute; also its loss and gradient."""
    model = parts.model()
    learner = parts.learner(model, lora=lora, mini_batch_size=None, packing="on", **config)
    parts.randomise_adapter(model)
    gradients = parts.record_gradients(model)
    metrics = learner.update(parts.batch(alike(parts))).metrics
    return metrics["reused_share"], metrics["loss"], gradients


@pytest.mark.parametrize(
    "config", [{}, {"gradient_checkpointing": True}, {"activation_checkpointing": True}]
)
def test_an_update_is_the_same_and_reads_less(parts, config):
    share, loss, gradients = update(parts, **config)
    none, expected_loss, expected = update(parts, share_prefixes=False, **config)
    tokens = sum(len(s.prompt_token_ids) + len(s.token_ids) - 1 for s in alike(parts))
    # Beside what is shared by chance, the beginning six times, and two tokens three and two times.
    assert share >= (6 * 5 + 2 * 5) / tokens
    assert none == 0.0
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_dropout_is_not_shared(parts):
    assert update(parts, lora=LoraConfig(rank=4, alpha=8, dropout=0.1))[0] == 0.0
