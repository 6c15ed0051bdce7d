"""LoRA layers that compute with W + s B A, or add their product in place."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlforge.config.schema import LoraConfig
from rlforge.learner.lora_kernels import fuse_lora_add, merge_small_lora
from rlforge.models.lora import attach_lora, leave_inputs_alone

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture
def adapted(parts):
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


def test_loss_and_gradient_are_those_of_peft(adapted):
    plain = adapted()
    folded = copy.deepcopy(plain)
    assert merge_small_lora(folded) == 2 * len(LAYERS)
    loss, gradient = loss_and_gradient(folded)
    expected_loss, expected = loss_and_gradient(plain)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert gradient.keys() == expected.keys()
    assert all("lora_" in name for name in gradient)
    for name, wanted in expected.items():
        torch.testing.assert_close(gradient[name], wanted, rtol=1e-4, atol=1e-6)


def test_a_switched_off_adapter_stays_off(adapted):
    plain = adapted()
    folded = copy.deepcopy(plain)
    merge_small_lora(folded)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        on = folded(ids).logits
        with plain.disable_adapter(), folded.disable_adapter():
            torch.testing.assert_close(folded(ids).logits, plain(ids).logits)
            assert not torch.allclose(folded(ids).logits, on)


def test_saved_weights_keep_their_names(adapted):
    folded = adapted()
    names = list(folded.state_dict())
    merge_small_lora(folded)
    assert list(folded.state_dict()) == names


@pytest.mark.parametrize(("rank", "folded"), [(3, 0), (4, 4), (6, 8), (8, 14)])
def test_only_layers_that_gain_are_folded(adapted, rank, folded):
    """Layers of 32 x 16 gain from rank 3.6 on, 32 x 32 from 5.4, 32 x 64 from 7.2."""
    assert merge_small_lora(adapted(rank=rank)) == folded


def test_dropout_and_reduced_precision_are_left_to_peft(adapted):
    assert merge_small_lora(adapted(dropout=0.1)) == 0
    assert merge_small_lora(adapted().to(torch.bfloat16)) == 0


def test_joined_layers_give_loss_and_gradient_of_peft(adapted):
    plain = adapted(rank=3)
    joined = copy.deepcopy(plain)
    assert fuse_lora_add(joined) == 2 * len(LAYERS)
    loss, gradient = loss_and_gradient(joined)
    expected_loss, expected = loss_and_gradient(plain)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    assert gradient.keys() == expected.keys()
    for name, wanted in expected.items():
        torch.testing.assert_close(gradient[name], wanted, rtol=1e-4, atol=1e-6)


def test_joined_layers_drop_out_what_peft_drops(adapted):
    plain = adapted(rank=3, dropout=0.5).train()
    joined = copy.deepcopy(plain)
    fuse_lora_add(joined)
    results = []
    for model in (plain, joined):
        torch.manual_seed(5)
        results.append(loss_and_gradient(model)[0])
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
    torch.manual_seed(6)
    assert not torch.allclose(loss_and_gradient(joined)[0], results[1])


def test_joined_layers_are_no_further_from_exact_under_autocast(adapted):
    exact = adapted(rank=3).to(torch.bfloat16).to(torch.float64)
    _, expected = loss_and_gradient(exact)
    wanted = torch.cat([gradient.flatten() for gradient in expected.values()])
    errors = []
    for join in (False, True):
        model = adapted(rank=3).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data = parameter.data.float()
        leave_inputs_alone(model)
        assert fuse_lora_add(model) == 2 * len(LAYERS) if join else True
        with torch.autocast("cpu", torch.bfloat16):
            _, gradient = loss_and_gradient(model)
        assert {gradient[name].dtype for name in expected} == {torch.float32}
        found = torch.cat([gradient[name].flatten() for name in expected])
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert errors[1] < 1.1 * errors[0] < 0.05


def test_joined_layers_add_in_place_and_make_nothing_else_of_all_outputs(adapted):
    """Tensors as large as the output: W x, and no B A x, none scaled, no sum."""
    model = adapted(rank=3)
    fuse_lora_add(model)
    (layer, *_) = (m for n, m in model.named_modules() if n.endswith("up_proj"))
    x = torch.randn(2, 5, 32, requires_grad=True)
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and result.numel() == 2 * 5 * 64:
                made.append(result.untyped_storage().data_ptr())
            return result

    with Made():
        layer(x)
    assert len(set(made)) == 1


def test_a_switched_off_adapter_of_joined_layers_stays_off(adapted):
    joined = adapted(rank=3)
    fuse_lora_add(joined)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        on = joined(ids).logits
        with joined.disable_adapter():
            off = joined(ids).logits
        bare = joined.unload()(ids).logits
    torch.testing.assert_close(off, bare)
    assert not torch.allclose(on, off)


def test_folded_layers_are_not_joined(adapted):
    model = adapted(rank=6)
    assert merge_small_lora(model) == 8
    assert fuse_lora_add(model) == 2 * len(LAYERS) - 8
