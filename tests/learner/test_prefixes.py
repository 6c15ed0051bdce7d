"""Which rows share the beginning of their prompts, and that sharing changes no result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlforge.config.schema import LoraConfig
from rlforge.learner.batching import Row, collate
from rlforge.learner.prefixes import Family, families, parts

CPU = torch.device("cpu")
RULES, OTHER = tuple(range(1, 21)), tuple(range(31, 40))


def row(prompt, step=0, answer=(1,)):
    return Row(step=step, prompt=tuple(prompt), answer=answer)


def saved(found, pass_tokens):
    """Tokens that a division saves, less what its passes cost."""
    return sum((len(f.rows) - 1) * f.shared for f in found) - pass_tokens * len(found)


prompts = st.lists(
    st.lists(st.integers(1, 2), min_size=1, max_size=12).map(tuple), min_size=1, max_size=25
)


@given(prompts, st.integers(0, 30))
def test_every_row_is_in_one_family_whose_prompts_go_on_after_the_shared_beginning(
    drawn, pass_tokens
):
    rows = [row(prompt, step) for step, prompt in enumerate(drawn)]
    found = families(rows, pass_tokens)
    assert sorted(r.step for f in found for r in f.rows) == list(range(len(rows)))
    for family in found:
        assert len({r.prompt[: family.shared] for r in family.rows}) == 1
        assert all(len(r.prompt) > family.shared for r in family.rows)
    assert saved(found, pass_tokens) >= saved([Family(rows=tuple(rows), shared=0)], pass_tokens)


def test_seats_with_rules_of_their_own_become_families_and_a_stray_row_joins_none():
    first = [row((*RULES, 1, n), n) for n in range(6)]
    second = [row((*OTHER, 2, n), 10 + n) for n in range(6)]
    stray = row((50, 51), 20)
    found = {f.shared: {r.step for r in f.rows} for f in families([*first, *second, stray], 4)}
    assert found == {21: set(range(6)), 10: set(range(10, 16)), 0: {20}}


def test_rows_stay_at_a_fork_where_their_branches_are_not_worth_a_pass():
    """Two branches of three rows: 5 times 20 tokens saved together, or 4 times 30 apart."""
    rows = [row((*RULES, *[b] * 10, n), 10 * b + n) for b in (1, 2) for n in range(3)]
    assert [f.shared for f in families(rows, 21)] == [20]
    assert [f.shared for f in families(rows, 19)] == [30, 30]


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=30),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(1, 90),
    st.sampled_from([(False, 0), (True, 0), (True, 1)]),
)
def test_passes_hold_every_row_once_within_both_limits(lengths, max_rows, max_tokens, how):
    packed, shared = how
    rows = tuple(row(range(1, n + 1), step) for step, n in enumerate(lengths))
    cut = list(parts(Family(rows=rows, shared=shared), max_rows, max_tokens, packed=packed))
    assert sorted(r.step for part in cut for r in part.rows) == list(range(len(rows)))
    for part in cut:
        micro = collate(part.rows, 0, CPU, packed=packed, shared=part.shared)
        assert len(part.rows) == 1 or micro.input_ids.numel() <= max_tokens
        assert micro.padding == 0 or not packed
        assert max_rows is None or len(part.rows) <= max_rows
    lengths_in_order = [r.input_length for part in cut for r in part.rows]
    assert lengths_in_order == sorted(lengths_in_order)


def alike(parts, number=7):
    """Steps whose prompts begin with the same five tokens."""
    beginning = (9, 8, 7, 6, 5)
    return [
        parts.step(
            prompt_token_ids=beginning + step.prompt_token_ids,
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
    assert (share, none) == (pytest.approx(30 / tokens), 0.0)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_dropout_is_not_shared(parts):
    assert update(parts, lora=LoraConfig(rank=4, alpha=8, dropout=0.1))[0] == 0.0
