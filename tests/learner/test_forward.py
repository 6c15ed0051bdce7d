"""Log-probs against the plain forward pass of transformers."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
)

from rlforge.config.schema import LoraConfig
from rlforge.learner.batching import MicroBatch, collate, select_rows
from rlforge.learner.forward import Scorer
from rlforge.learner.logprobs import Head
from rlforge.models.lora import attach_lora

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "initializer_range": 0.3,
}


def micro_of(steps) -> MicroBatch:
    return collate(select_rows(steps, None).rows, 0, torch.device("cpu"))


def plain_logprobs(model, step, temperature: float) -> list[float]:
    """One sequence, unpadded, through the model's own forward."""
    ids = torch.tensor([step.prompt_token_ids + step.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].float() / temperature
    first = len(step.prompt_token_ids) - 1
    table = torch.log_softmax(logits, -1)
    return [float(table[first + j, token]) for j, token in enumerate(step.token_ids)]


def granite() -> GraniteForCausalLM:
    return GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=4.0))


def cohere() -> CohereForCausalLM:
    return CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25))


def gemma() -> Gemma2ForCausalLM:
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=16, final_logit_softcapping=2.0))


def gpt2() -> GPT2LMHeadModel:
    config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=40, n_positions=64)
    return GPT2LMHeadModel(config)


def test_logprob_by_hand(parts):
    """With a zero head but for one row, logits are known without running the model."""
    model = parts.model(tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    step = parts.step(prompt_token_ids=(3, 4), token_ids=(5,), logprobs=(-1.0,))

    uniform = Scorer(model, temperature=1.0).score(micro_of([step]), entropy=True)

    assert uniform.logprobs.tolist() == pytest.approx([-math.log(40)], abs=1e-6)
    assert uniform.entropy is not None
    assert uniform.entropy.tolist() == pytest.approx([math.log(40)], abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padded_batch_scores_like_each_sequence_alone(parts, temperature):
    model = parts.model().eval()
    steps = parts.random_steps(9)

    scores = Scorer(model, temperature=temperature).score(micro_of(steps))

    expected = [p for step in steps for p in plain_logprobs(model, step, temperature)]
    assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("make", "by_decoder_and_head"),
    [(granite, False), (cohere, False), (gemma, True), (gpt2, True)],
)
def test_models_that_scale_or_cap_their_logits_score_as_their_own_forward(
    parts, make, by_decoder_and_head
):
    torch.manual_seed(0)
    model = make().eval()
    steps = parts.random_steps(5)

    scorer = Scorer(model, temperature=0.9)
    scores = scorer.score(micro_of(steps), entropy=True)

    assert scorer.decoder_and_head is by_decoder_and_head
    expected = [p for step in steps for p in plain_logprobs(model, step, 0.9)]
    assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_a_narrowed_head_gives_the_critic_the_same_hidden_state(parts):
    torch.manual_seed(0)
    model = granite().eval()
    steps = parts.random_steps(4)
    head = torch.nn.Linear(32, 1)
    scorer = Scorer(model, temperature=1.0, value_head=head)
    micro = micro_of(steps)

    hidden = model.get_decoder()(input_ids=micro.input_ids).last_hidden_state.flatten(0, 1)
    expected = head(hidden[micro.last_prompt]).squeeze(-1)

    assert not scorer.decoder_and_head
    torch.testing.assert_close(scorer.values(micro), expected)
    torch.testing.assert_close(scorer.score(micro).values, expected)
    assert not model.lm_head._forward_pre_hooks


def test_entropy_is_that_of_the_tempered_distribution_and_has_a_gradient(parts):
    model = parts.model()
    step = parts.random_steps(1)[0]
    micro = micro_of([step])

    entropy = Scorer(model, temperature=0.5).score(micro, entropy=True).entropy

    logits = model(input_ids=micro.input_ids).logits.flatten(0, 1)[micro.positions] / 0.5
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=logits).entropy())
    assert entropy.requires_grad


def test_chunked_logits_change_neither_scores_nor_gradients(parts):
    results = []
    for max_logits in (2**26, 3 * 40):
        model = parts.model()
        scorer = Scorer(model, temperature=0.8, max_logits=max_logits)
        scores = scorer.score(micro_of(parts.random_steps(8)), entropy=True)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((scores.logprobs.detach(), scores.entropy.detach(), gradient))

    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-5, atol=1e-5)


@pytest.fixture
def logits_at_once(monkeypatch):
    """Positions whose logits were computed together, pass by pass."""
    rows = []
    tempered = Head.tempered

    def counting(head, hidden):
        rows.append(len(hidden))
        return tempered(head, hidden)

    monkeypatch.setattr(Head, "tempered", counting)
    return rows


def test_only_answer_positions_reach_the_head(parts, logits_at_once):
    steps = parts.random_steps(8)

    Scorer(parts.model(), temperature=1.0).score(micro_of(steps))

    assert logits_at_once == [sum(len(step.token_ids) for step in steps)]


def test_no_more_logits_than_allowed_are_computed_at_once(parts, logits_at_once):
    scorer = Scorer(parts.model(), temperature=1.0, max_logits=3 * 40)

    scorer.score(micro_of(parts.random_steps(8))).logprobs.sum().backward()

    assert max(logits_at_once) == 3


def test_a_head_that_is_not_plain_runs_as_part_of_the_model(parts):
    """An adapted output layer, for example."""
    model = parts.model()
    adapted = attach_lora(model, LoraConfig(rank=2, target_modules=["lm_head"]), seed=0)
    parts.randomise_adapter(adapted)
    steps = parts.random_steps(4)

    scorer = Scorer(model, temperature=0.8)

    assert not scorer.decoder_and_head
    expected = [p for step in steps for p in plain_logprobs(model, step, 0.8)]
    scores = scorer.score(micro_of(steps))
    assert scores.logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_values_come_from_the_last_prompt_token_only(parts):
    model = parts.model().eval()
    head = torch.nn.Linear(32, 1)
    scorer = Scorer(model, temperature=1.0, value_head=head)
    step = parts.step(prompt_token_ids=(3, 4, 5), token_ids=(6, 7), logprobs=(-1.0, -1.0))

    values = scorer.score(micro_of([step])).values

    hidden = model.get_decoder()(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state[0, -1]
    torch.testing.assert_close(values, head(hidden))
