"""Fused RMSNorm and LoRA layers compute the same as the libraries' own."""

import copy

import pytest
import torch
from tests.factories import causal_lm
from tests.learner import parts
from tests.learner.parts import gpt2
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rlforge.config.model import LoraConfig
from rlforge.learner.kernels import fuse_lora_add, fuse_norms, merge_small_lora, skip_input_casts
from rlforge.learner.weights import attach_lora


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
def test_fused_norm_has_bit_identical_outputs_and_gradients_as_exact(shape, dtype):
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


def test_fused_norm_keeps_only_its_input_and_one_number_per_row():
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
def test_a_model_with_fused_norms_gives_the_same_loss_and_gradient(trained):
    torch.manual_seed(0)
    plain = causal_lm("qwen3")
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


def test_modules_that_are_no_plain_rms_norm_are_not_fused():
    torch.manual_seed(0)
    assert fuse_norms(causal_lm("gemma2")) == 0  # adds one to its weight
    assert fuse_norms(gpt2()) == 0
    assert fuse_norms(nn.LayerNorm(48, bias=False)) == 0

    class Capped(LlamaRMSNorm):
        """Uses another epsilon than its attribute names."""

        def forward(self, hidden_states):
            return hidden_states * torch.rsqrt(hidden_states.pow(2).mean(-1, True) + 1e-3)

    class Gated(LlamaRMSNorm):
        def forward(self, hidden_states, gate=None):
            return super().forward(hidden_states if gate is None else hidden_states * gate)

    norms = [Capped(48), Gated(48), Gemma2RMSNorm(48)]
    for norm in norms:
        assert fuse_norms(norm) == 0
        assert "forward" not in vars(norm)


def test_a_weight_in_another_dtype_than_the_input_falls_back_to_the_model():
    plain = llama_norm()
    fused = copy.deepcopy(plain)
    assert fuse_norms(fused) == 1
    x, weight = torch.randn(5, 48).bfloat16(), torch.randn(5, 48)
    for ours, theirs in zip(run(fused, x, weight), run(plain, x, weight), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_fused_kernel_equals_the_norm_of_the_model(dtype):
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


# ---------------------------------------------------------------- LoRA

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture
def adapted():
    """A function that makes an adapted model with layers of three sizes, some with a bias."""

    def make(rank=16, **lora):
        model = parts.model(
            intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, attention_bias=True
        )
        peft = attach_lora(model, LoraConfig(rank=rank, alpha=2 * rank, **lora), seed=1)
        parts.randomise_adapter(peft)
        return peft

    return make


def loss_and_gradient(model):
    ids = torch.randint(0, 40, (3, 17), generator=torch.Generator().manual_seed(2))
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


FUSIONS = pytest.mark.parametrize(("fuse", "rank"), [(merge_small_lora, 16), (fuse_lora_add, 3)])


@FUSIONS
def test_merged_and_fused_layers_give_loss_and_gradient_of_peft(adapted, fuse, rank):
    plain = adapted(rank=rank)
    fused = copy.deepcopy(plain)
    assert fuse(fused) == 2 * len(LAYERS)
    loss, gradient = loss_and_gradient(fused)
    expected_loss, expected = loss_and_gradient(plain)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert all("lora_" in name for name in gradient)
    parts.same_gradients(gradient, expected)


@FUSIONS
def test_a_switched_off_adapter_of_merged_and_fused_layers_stays_off(adapted, fuse, rank):
    plain = adapted(rank=rank)
    fused = copy.deepcopy(plain)
    fuse(fused)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        on = fused(ids).logits
        with plain.disable_adapter(), fused.disable_adapter():
            torch.testing.assert_close(fused(ids).logits, plain(ids).logits)
            assert not torch.allclose(fused(ids).logits, on)


@pytest.mark.parametrize(("rank", "merged"), [(3, 0), (4, 4), (6, 8), (8, 14)])
def test_only_layers_that_gain_are_merged(adapted, rank, merged):
    """Layers of 32 x 16 gain from rank 3.6 on, 32 x 32 from 5.4, 32 x 64 from 7.2."""
    assert merge_small_lora(adapted(rank=rank)) == merged


def test_layers_with_dropout_or_bfloat16_are_not_merged(adapted):
    assert merge_small_lora(adapted(dropout=0.1)) == 0
    assert merge_small_lora(adapted().to(torch.bfloat16)) == 0


def test_fused_layers_apply_the_same_dropout_as_peft(adapted):
    plain = adapted(rank=3, dropout=0.5).train()
    fused = copy.deepcopy(plain)
    fuse_lora_add(fused)
    results = []
    for model in (plain, fused):
        torch.manual_seed(5)
        results.append(loss_and_gradient(model)[0])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
    torch.manual_seed(6)
    assert not torch.allclose(loss_and_gradient(fused)[0], results[1])


def mixed_precision(model):
    """``model`` in bfloat16 with its adapter in float32."""
    model = model.to(torch.bfloat16)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
    return model


def test_skipped_input_casts_change_no_bit_under_autocast(adapted):
    results = []
    for skipped in (False, True):
        model = mixed_precision(adapted(rank=4))
        if skipped:
            skip_input_casts(model)
        seen = set()
        for layer in model.modules():
            if isinstance(layer, nn.Linear) and layer.weight.dtype == torch.float32:
                layer.register_forward_pre_hook(
                    lambda _, inputs, seen=seen: seen.add(inputs[0].dtype)
                )
        with torch.autocast("cpu", torch.bfloat16):
            results.append(loss_and_gradient(model))
        assert (torch.float32 in seen) is not skipped
    (before, expected), (after, found) = results
    assert torch.equal(after, before)
    adapter = [name for name in expected if "lora_" in name]
    assert len(adapter) == 4 * len(LAYERS)
    for name in adapter:
        assert expected[name].abs().sum() > 0
        assert torch.equal(found[name], expected[name]), name


def test_fused_layers_are_as_exact_as_peft_under_autocast(adapted):
    exact = adapted(rank=3).to(torch.bfloat16).to(torch.float64)
    _, expected = loss_and_gradient(exact)
    wanted = torch.cat([gradient.flatten() for gradient in expected.values()])
    errors = []
    for join in (False, True):
        model = mixed_precision(adapted(rank=3))
        skip_input_casts(model)
        assert fuse_lora_add(model) == 2 * len(LAYERS) if join else True
        with torch.autocast("cpu", torch.bfloat16):
            _, gradient = loss_and_gradient(model)
        assert {gradient[name].dtype for name in expected} == {torch.float32}
        found = torch.cat([gradient[name].flatten() for name in expected])
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[1] < 1.1 * errors[0] < 0.05


def test_fused_layers_add_in_place_without_another_tensor_of_all_outputs(adapted):
    """The only new tensor as large as the output is W x: no B A x, scaled or not, no sum."""
    model = adapted(rank=3)
    fuse_lora_add(model)
    (layer, *_) = (m for n, m in model.named_modules() if n.endswith("up_proj"))
    x = torch.randn(2, 5, 32, requires_grad=True)
    with parts.Made() as made:
        layer(x)
    assert len({place for place, count in made.tensors if count == 2 * 5 * 64}) == 1


def test_merged_layers_are_not_fused(adapted):
    model = adapted(rank=6)
    assert merge_small_lora(model) == 8
    assert fuse_lora_add(model) == 2 * len(LAYERS) - 8
