"""New adapters do not change the model and repeat from their seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.config.schema import LoraConfig
from rlforge.errors import ConfigError
from rlforge.models.lora import (
    attach_lora,
    linear_layers,
    skip_input_casts,
)

ATTENTION = ["q_proj", "v_proj"]


def _model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def _adapter(model: Any) -> dict[str, torch.Tensor]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def test_a_new_adapter_changes_nothing_and_is_all_that_trains() -> None:
    model = _model()
    ids = torch.arange(10)[None]
    before = model(ids).logits
    wrapped = attach_lora(model, LoraConfig(rank=4, alpha=8, target_modules=ATTENTION), seed=1)
    assert torch.equal(wrapped(ids).logits, before)
    trained = _adapter(wrapped)
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == 4 * 4 * 16
    assert wrapped.peft_config["default"].lora_alpha == 8
    assert wrapped.peft_config["default"].lora_dropout == 0


def test_the_seed_decides_the_adapter_and_nothing_else() -> None:
    lora = LoraConfig(rank=4, dropout=0.1, target_modules=ATTENTION)
    state = torch.random.get_rng_state()
    first, again, other = (_adapter(attach_lora(_model(), lora, seed)) for seed in (1, 1, 2))
    name = next(name for name in first if "lora_A" in name)
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    model = _model()
    torch.manual_seed(0)
    attach_lora(model, lora, seed=5)
    assert torch.equal(torch.rand(1), expected)
    torch.random.set_rng_state(state)


def test_unknown_target_modules_are_refused_with_the_known_ones() -> None:
    lora = LoraConfig(target_modules=["q_proj", "query_key_value"])
    with pytest.raises(ConfigError, match=r"no linear layers named query_key_value; it has down"):
        attach_lora(_model(), lora, seed=0)
    with pytest.raises(ConfigError, match="no linear layers named nothing"):
        attach_lora(_model(), LoraConfig(target_modules=[]), seed=0)
    with pytest.raises(ConfigError, match=r"model\.lora\.rank is 0"):
        attach_lora(_model(), LoraConfig(rank=0), seed=0)


def test_linear_layers_of_a_llama() -> None:
    expected = {*LoraConfig().target_modules, "lm_head"}
    assert linear_layers(_model()) == sorted(expected)


def test_skipped_input_casts_change_no_bit_under_autocast() -> None:
    torch.manual_seed(3)
    ids = torch.randint(0, 50, (3, 17))
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    results = []
    for alone in (False, True):
        lora = LoraConfig(rank=4, alpha=6, target_modules=targets)
        wrapped = attach_lora(_model().to(torch.bfloat16), lora, seed=1)
        generator = torch.Generator().manual_seed(2)
        for name, parameter in _adapter(wrapped).items():
            assert parameter.dtype == torch.float32
            if "lora_B" in name:
                parameter.data.normal_(generator=generator)
        if alone:
            skip_input_casts(wrapped)
        seen: list[torch.dtype] = []
        for layer in wrapped.modules():
            if isinstance(layer, torch.nn.Linear) and layer.weight.dtype == torch.float32:
                layer.register_forward_pre_hook(
                    lambda _, inputs, seen=seen: seen.append(inputs[0].dtype)
                )
        with torch.autocast("cpu", torch.bfloat16):
            logits = wrapped(ids).logits
        logprobs = logits.float().log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])
        logprobs.sum().backward()
        assert set(seen) - {torch.bfloat16} == (set() if alone else {torch.float32})
        results.append((logprobs, {n: p.grad for n, p in _adapter(wrapped).items()}))
    (before, expected), (after, found) = results
    assert torch.equal(after, before)
    assert len(found) == 2 * len(targets)
    for name, gradient in expected.items():
        assert gradient.abs().sum() > 0
        assert torch.equal(found[name], gradient), name
