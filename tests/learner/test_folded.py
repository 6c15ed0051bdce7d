"""LoRA layers that compute with W + s B A."""

import copy

import pytest
import torch

from rlforge.config.schema import LoraConfig
from rlforge.learner.folded import fold_small_layers
from rlforge.models.lora import attach_lora

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
    assert fold_small_layers(folded) == 2 * len(LAYERS)
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
    fold_small_layers(folded)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        on = folded(ids).logits
        with plain.disable_adapter(), folded.disable_adapter():
            torch.testing.assert_close(folded(ids).logits, plain(ids).logits)
            assert not torch.allclose(folded(ids).logits, on)


def test_saved_weights_keep_their_names(adapted):
    folded = adapted()
    names = list(folded.state_dict())
    fold_small_layers(folded)
    assert list(folded.state_dict()) == names


@pytest.mark.parametrize(("rank", "folded"), [(3, 0), (4, 4), (6, 8), (8, 14)])
def test_only_layers_that_gain_are_folded(adapted, rank, folded):
    """Layers of 32 x 16 gain from rank 3.6 on, 32 x 32 from 5.4, 32 x 64 from 7.2."""
    assert fold_small_layers(adapted(rank=rank)) == folded


def test_dropout_and_reduced_precision_are_left_to_peft(adapted):
    assert fold_small_layers(adapted(dropout=0.1)) == 0
    assert fold_small_layers(adapted().to(torch.bfloat16)) == 0
