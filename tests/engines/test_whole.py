"""Answers of any decoder are exact, from a cache or by whole passes."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from tests.factories import causal_lm

from rlforge.engines.policies import PolicyStore
from rlforge.engines.whole import cache_problem, last_logits, reads_padded
from rlforge.errors import ConfigError
from rlforge.types import SamplingParams

from .answers import BASE_POLICY, completion_of, direct_logprobs, finish

BARE = {"head_dim": None, "num_key_value_heads": None}
CACHED = {
    "gpt2": BARE,
    "opt": BARE | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "bloom": BARE,
    "gptj": BARE | {"rotary_dim": 8},
    "falcon": BARE | {"alibi": True},
    "gemma3_text": {
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention"],
        "head_dim": 8,
    },
    "mixtral": {"num_local_experts": 4, "head_dim": 8},
    "llama": {"num_key_value_heads": 1, "head_dim": 8},
    "qwen2": {"head_dim": 8},
    "qwen3": {"head_dim": 8},
    "phi3": {"sliding_window": 4, "head_dim": 8},
    "mistral": {"sliding_window": 4, "head_dim": 8},
}
WHOLE = {
    "openai-gpt": BARE,
    "bart": BARE | {"decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4},
}


def make(kind):
    return causal_lm(kind, **{"vocab_size": 300} | (CACHED | WHOLE)[kind])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", CACHED | WHOLE)
def test_recorded_logprobs_are_those_of_plain_passes(kind, make_core, make_adapter):
    """Of requests that join one after the other, continue others, and are of three versions."""
    model = make(kind)
    plain = {"base": copy.deepcopy(model)}
    policies = [BASE_POLICY]
    for seed in (1, 2):
        policy, wrapped = make_adapter(seed, model=model, target_modules="all-linear")
        policies.append(policy)
        plain[policy.uid] = wrapped
    core = make_core(model, 2, 8, max_model_len=60)
    rng, answers = random.Random(0), {}

    def ask(prompt, number):
        params = SamplingParams(max_tokens=2 + number % 5, seed=number, conversation=0)
        core.submit(prompt, params, policies[number % 3])
        answers.update((answer.id, answer) for answer in core.step())

    for number in range(9):
        ask([rng.randrange(300) for _ in range(rng.randint(1, 30))], number)
    answers |= finish(core)
    for number, answer in enumerate(list(answers.values())):
        said = completion_of(answer)
        ask([*said.prompt_token_ids, *said.token_ids, rng.randrange(300)], number)
    answers |= finish(core)
    assert len(answers) == 18
    assert (core.stats().cached_tokens > 0) == (kind in CACHED)
    for answer in answers.values():
        said = completion_of(answer)
        expected = direct_logprobs(plain[said.policy_uid], said)
        assert list(said.logprobs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", CACHED | WHOLE)
def test_a_trial_finds_which_models_answer_from_a_cache(kind):
    store = PolicyStore(make(kind), 1)
    assert (cache_problem(store, narrow=False) == "") == (kind in CACHED)


def test_a_trial_leaves_windows_and_random_numbers_as_they_were():
    model = make("gemma3_text")
    model.config.sliding_window = 33
    store, state = PolicyStore(model, 1), torch.get_rng_state()
    assert reads_padded(store)
    assert cache_problem(store, narrow=True) == ""
    assert model.config.sliding_window == 33
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("longest", "cached"), [(101, False), (100, True)])
def test_attention_that_is_scaled_later_is_tried_where_sequences_get_so_long(longest, cached):
    """Llama 4 scales by the place in the row, which is no position where rows have padding."""
    few = {"floor_scale": 100, "attn_scale": 0.5, "no_rope_layers": [0, 1], "num_local_experts": 2}
    model = causal_lm("llama4_text", head_dim=8, **few)
    store = PolicyStore(model, 1)
    assert (cache_problem(store, narrow=False, longest=longest) == "") == cached
    assert model.model.layers[0].self_attn.floor_scale == 100


def test_a_model_that_reads_ahead_is_refused():
    model = causal_lm("bert", head_dim=None, num_key_value_heads=None)
    with pytest.raises(ConfigError, match="depends on later tokens"):
        reads_padded(PolicyStore(model, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_are_not_finite_are_left_to_the_answers(dtype):
    model = causal_lm("llama").to(dtype)
    model.get_output_embeddings().weight.data[7] = float("nan")
    store = PolicyStore(model, 1)
    assert reads_padded(store)
    assert cache_problem(store, narrow=True) == ""


@pytest.mark.parametrize("padded", [True, False])
def test_last_logits_are_those_of_each_sequence_alone(padded):
    model = make("gpt2")
    rng = random.Random(0)
    sequences = [[rng.randrange(300) for _ in range(length)] for length in (9, 4, 4, 30, 12)]
    with torch.no_grad():
        found = last_logits(model, sequences, 3, padded=padded, most_tokens=40)
        for sequence, logits in zip(sequences, found, strict=True):
            expected = model(input_ids=torch.tensor([sequence])).logits[0, -3:]
            torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
