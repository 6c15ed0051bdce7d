"""Attention over shared keys in many architectures, also with sliding windows."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.factories import causal_lm

from rlforge.config.engine import EngineConfig
from rlforge.engines.cache import new_cache, share_keys
from rlforge.engines.transformers import TransformersEngine
from rlforge.errors import ConfigError

MODELS = {
    "llama": {"num_key_value_heads": 1},
    "qwen2": {},
    "phi3": {"sliding_window": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "mistral": {"sliding_window": 4},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3": {},
}


@pytest.fixture(params=MODELS)
def model(request):
    sizes = {"vocab_size": 120, "head_dim": 8} | MODELS[request.param]
    return causal_lm(request.param, **sizes)


@pytest.mark.parametrize("padding", [(0, 0, 0), (3, 0, 7)], ids=["even", "padded"])
def test_grouped_attention_equals_eager_attention_and_repeats_no_keys(model, padding, monkeypatch):
    plain = copy.deepcopy(model).eval()
    plain.set_attn_implementation("eager")
    shared = copy.deepcopy(model).eval()
    shared.set_attn_implementation("sdpa")
    share_keys(shared)
    caches = {id(one): new_cache() for one in (plain, shared)}
    ids = torch.randint(1, 120, (3, 14), generator=torch.Generator().manual_seed(0))
    starts = torch.tensor(padding)[:, None]
    logits = {id(plain): [], id(shared): []}

    def read(one, begin, end):
        where = torch.arange(end)[None, :]
        with torch.no_grad():
            output = one(
                input_ids=ids[:, begin:end],
                attention_mask=(where >= starts).long() if any(padding) else None,
                position_ids=(where - starts)[:, begin:end].clip(min=0),
                past_key_values=caches[id(one)],
                logits_to_keep=1,
            )
        logits[id(one)].append(output.logits)

    def repeat(*_):
        raise AssertionError("keys and values were repeated")

    for one in (plain, shared):
        read(one, 0, 9)
    for begin in range(9, 14):
        read(plain, begin, begin + 1)
        with monkeypatch.context() as context:
            context.setattr("transformers.integrations.sdpa_attention.repeat_kv", repeat)
            read(shared, begin, begin + 1)
    for expected, actual in zip(logits[id(plain)], logits[id(shared)], strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_models_that_use_another_attention_keep_it():
    model = causal_lm("llama")
    model.set_attn_implementation("eager")
    share_keys(model)
    assert model.config._attn_implementation == "eager"


def test_models_with_a_recurrent_state_are_refused(tokenizer):
    model = causal_lm("mamba", intermediate_size=None)
    with pytest.raises(ConfigError, match="MambaForCausalLM has a recurrent state"):
        TransformersEngine(EngineConfig(), model, tokenizer)
