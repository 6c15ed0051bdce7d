"""RMSNorm in one step is the model's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rlforge.learner.norms import fuse_norms

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "vocab_size": 40,
}


def llama_norm(dtype=torch.float32, width=48):
    norm = LlamaRMSNorm(width, eps=1e-5)
    norm.weight.data.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(1))
    return norm.to(dtype)


def run(norm, x, weight):
    """Output, and gradients of input and weight under a random one of the output."""
    x = x.clone().requires_grad_()
    norm.zero_grad()
    output = norm(x)
    (output * weight).sum().backward()
    return output.detach(), x.grad, norm.weight.grad


@pytest.mark.parametrize("shape", [(7, 48), (2, 5, 3, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_the_same_to_the_last_bit_and_gradients_as_good(shape, dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    plain = llama_norm(dtype)
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 1
    wide = x.double().requires_grad_()
    gain = plain.weight.detach().double().requires_grad_()
    rms = (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    (wide / rms * gain * weight).sum().backward()
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output, *gradients = run(fused, x, weight)
            expected, *theirs = run(plain, x, weight)
        assert output.dtype == dtype
        assert torch.equal(output, expected)
        for ours, other, exact in zip(gradients, theirs, (wide.grad, gain.grad), strict=True):
            assert ours.dtype == dtype
            error = (ours - exact).norm()
            assert error < 1.1 * (other - exact).norm() + 1e-6 * exact.norm()


def test_only_the_input_and_one_number_per_row_are_kept():
    norm = llama_norm(torch.bfloat16).requires_grad_(False)
    fuse_norms(norm)
    x = torch.randn(6, 48, dtype=torch.bfloat16, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda tensor: tensor):
        norm(x)
    kept = {t.data_ptr(): t.nbytes for t in saved if t.data_ptr() != norm.weight.data_ptr()}
    assert x.data_ptr() in kept
    assert sum(kept.values()) == x.nbytes + 6 * 4


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_gives_the_same_loss_and_gradient(trained):
    torch.manual_seed(0)
    plain = Qwen3ForCausalLM(Qwen3Config(**SIZES))
    for name, parameter in plain.named_parameters():
        if "norm" in name:
            parameter.data.normal_(1.0, 0.2)
            parameter.requires_grad_(trained)
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 4 * 2 + 1  # with those of heads
    ids = torch.randint(0, 40, (3, 17))
    losses = [model(input_ids=ids, labels=ids).loss for model in (plain, fused)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    for (name, one), other in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert (other.grad is None) == (one.grad is None) == ("norm" in name and not trained)
        if one.grad is not None:
            torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-6)


def test_norms_that_do_something_else_stay_as_they_are():
    torch.manual_seed(0)
    assert fuse_norms(Gemma2ForCausalLM(Gemma2Config(**SIZES))) == 0  # adds one to its weight
    assert fuse_norms(GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2))) == 0
    assert fuse_norms(nn.LayerNorm(48, bias=False)) == 0

    class Capped(LlamaRMSNorm):
        """Another epsilon than it says."""

        def forward(self, hidden_states):
            return hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, True) + 1e-3)

    class Gated(LlamaRMSNorm):
        def forward(self, hidden_states, gate=None):
            return super().forward(hidden_states if gate is None else hidden_states * gate)

    norms = [Capped(48), Gated(48), Gemma2RMSNorm(48)]
    for norm in norms:
        assert fuse_norms(norm) == 0
        assert "forward" not in vars(norm)


def test_a_gain_in_another_dtype_than_the_input_is_mixed_as_the_model_does():
    plain = llama_norm()
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 1
    x, weight = torch.randn(5, 48).bfloat16(), torch.randn(5, 48)
    for ours, theirs in zip(run(fused, x, weight), run(plain, x, weight), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_kernel_gives_what_the_model_gives(dtype):
    x, weight = (torch.randn(64, 48, device="cuda", dtype=dtype) for _ in range(2))
    plain = llama_norm(dtype).to("cuda")
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 1
    with torch.autocast("cuda", torch.bfloat16):
        ours, theirs = run(fused, x, weight), run(plain, x, weight)
        assert "RmsNorm" in type(fused(x.requires_grad_()).grad_fn).__name__
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == dtype
        assert (one - other).float().norm() < tolerance * other.float().norm()
