"""Which rows share the beginning of their prompts, and that sharing changes no result."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlforge.learner.batching import Row, collate, select_rows
from rlforge.learner.forward import Scorer
from rlforge.learner.prefixes import Family, families, parts

RULES, OTHER = tuple(range(1, 21)), tuple(range(31, 40))


def row(prompt, step=0, answer=(1,)):
    return Row(step=step, prompt=tuple(prompt), answer=answer)


def saved(found, pass_tokens):
    """Tokens that a division saves, against one pass over everything."""
    return sum((len(f.rows) - 1) * f.shared for f in found) - pass_tokens * sum(
        2 if f.shared else 1 for f in found
    )


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
    found = {f.shared: {r.step for r in f.rows} for f in families([*first, *second, stray], 5)}
    assert found == {21: set(range(6)), 10: set(range(10, 16)), 0: {20}}


def test_a_beginning_that_costs_more_than_it_saves_is_not_shared():
    rows = [row((*RULES, n), n) for n in range(4)]
    assert [f.shared for f in families(rows, 59)] == [20]
    assert [f.shared for f in families(rows, 60)] == [0]


def test_rows_stay_at_a_fork_where_their_branches_are_not_worth_a_pass():
    """Two branches of three rows: 5 times 20 tokens saved together, or 4 times 30 apart."""
    rows = [row((*RULES, *[b] * 10, n), 10 * b + n) for b in (1, 2) for n in range(3)]
    assert [f.shared for f in families(rows, 11)] == [20]
    assert [f.shared for f in families(rows, 9)] == [30, 30]


@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=30),
    st.one_of(st.none(), st.integers(1, 6)),
    st.integers(1, 90),
    st.integers(0, 1),
)
def test_passes_hold_every_row_once_within_both_limits(lengths, max_rows, max_tokens, shared):
    rows = tuple(row(range(1, n + 1), step) for step, n in enumerate(lengths))
    cut = list(parts(Family(rows=rows, shared=shared), max_rows, max_tokens))
    assert sorted(r.step for part in cut for r in part.rows) == list(range(len(rows)))
    for part in cut:
        micro = collate(part.rows, 0, torch.device("cpu"), shared=part.shared)
        assert len(part.rows) == 1 or micro.computed <= max_tokens
        assert max_rows is None or len(part.rows) <= max_rows
    lengths_in_order = [r.input_length for part in cut for r in part.rows]
    assert lengths_in_order == sorted(lengths_in_order)


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def qwen3():
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16))


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=40, n_positions=64)
    )


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


@pytest.mark.parametrize("make", [qwen3, gpt2])
def test_scores_and_gradients_are_those_of_whole_prompts(parts, make):
    torch.manual_seed(0)
    model = make().eval()
    head = torch.nn.Linear(32, 1)
    scorer = Scorer(model, temperature=0.9, value_head=head)
    rows = select_rows(alike(parts), None).rows
    results = []
    for shared in (0, 5):
        micro = collate(rows, 0, torch.device("cpu"), shared=shared)
        scores = scorer.score(micro, entropy=True)
        model.zero_grad()
        (scores.logprobs.sum() + scores.entropy.sum() + scores.values.sum()).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((scores.logprobs, scores.entropy, scores.values, gradient))
        torch.testing.assert_close(scorer.values(micro), scores.values)
    assert scorer.can_share()
    for whole, shared in zip(*results, strict=True):
        torch.testing.assert_close(whole, shared, rtol=1e-4, atol=1e-5)


def test_layers_that_forget_share_nothing():
    config = Gemma2Config(**SIZES, head_dim=16, sliding_window=8)
    assert not Scorer(Gemma2ForCausalLM(config), temperature=1.0).can_share()


def reused(parts, monkeypatch, lora=None, **config):
    """Share of tokens that an update did not compute; also its loss and gradient."""
    monkeypatch.setattr("rlforge.learner.prefixes.families.__defaults__", (4,))
    model = parts.model()
    learner = parts.learner(model, lora=lora, mini_batch_size=None, **config)
    parts.randomise_adapter(model)
    gradients = parts.record_gradients(model)
    metrics = learner.update(parts.batch(alike(parts))).metrics
    return metrics["reused_share"], metrics["loss"], gradients


def test_an_update_is_the_same_and_reads_less(parts, monkeypatch):
    share, loss, gradients = reused(parts, monkeypatch)
    none, expected_loss, expected = reused(parts, monkeypatch, share_prefixes=False)
    tokens = sum(len(s.prompt_token_ids) + len(s.token_ids) - 1 for s in alike(parts))
    assert (share, none) == (pytest.approx(30 / tokens), 0.0)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6)


def test_nothing_is_shared_where_passes_are_repeated_or_dropout_would_be_shared(parts, monkeypatch):
    from rlforge.config.schema import LoraConfig

    for settings in (
        {"gradient_checkpointing": True},
        {"activation_checkpointing": True},
        {"lora": LoraConfig(rank=4, alpha=8, dropout=0.1)},
    ):
        assert reused(parts, monkeypatch, **settings)[0] == 0.0
