"""Shapes count parameters as the models themselves do."""

import dataclasses

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from rlforge.config.model import LoraConfig
from rlforge.learner.weights import attach_lora
from rlforge.models.shape import KNOWN, known_shape, shape_from_config

#: As their publishers state them.
PUBLISHED = {
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "SmolLM2-135M": 134_515_008,
}


def on_meta(config):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def as_config(shape):
    """The transformers configuration of a known shape."""
    return (Qwen3Config if shape.head_norms else LlamaConfig)(
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
    )


@pytest.mark.parametrize("shape", KNOWN, ids=lambda shape: shape.name)
def test_known_shapes_have_the_published_number_of_parameters_and_read_back(shape):
    config = as_config(shape)
    assert shape.parameters == on_meta(config).num_parameters() == PUBLISHED[shape.name]
    assert shape_from_config(shape.name, config.to_dict()) == shape


@pytest.mark.parametrize(
    "lora",
    [
        LoraConfig(rank=16, target_modules=["q_proj", "down_proj"]),
        LoraConfig(rank=16),
        LoraConfig(rank=16, target_modules=["v_proj", "lm_head"], last_layers=3),
    ],
    ids=["two", "all", "last"],
)
@pytest.mark.parametrize("shape", [KNOWN[0], KNOWN[-1]], ids=lambda shape: shape.name)
def test_adapters_have_the_parameters_that_peft_gives_them(shape, lora):
    """Counts of a shape with head norms and of one without, cut to four layers."""
    shape = dataclasses.replace(shape, layers=4)
    with torch.device("meta"):
        adapted = attach_lora(on_meta(as_config(shape)), lora, seed=0)
    trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert shape.adapter_parameters(lora) == trainable


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(attention_bias=True, mlp_bias=True),
        LlamaConfig(num_key_value_heads=4, tie_word_embeddings=True),
        Qwen2Config(),
        Qwen3Config(attention_bias=True, head_dim=64, num_key_value_heads=8),
    ],
    ids=["biases", "grouped", "qwen2", "qwen3"],
)
def test_biases_head_norms_and_tied_embeddings_are_counted(config):
    shape = shape_from_config("some", config.to_dict())
    assert shape.parameters == on_meta(config).num_parameters()


def test_other_architectures_have_no_known_shape():
    assert shape_from_config("gpt2", GPT2Config().to_dict()) is None
    windowed = Qwen3Config(use_sliding_window=True, sliding_window=512)
    assert shape_from_config("windowed", windowed.to_dict()) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen/Qwen3-1.7B-Base", "Qwen3-1.7B"),
        ("Qwen/Qwen3-8B", "Qwen3-8B"),
        ("meta-llama/Llama-3.2-3B-Instruct", "Llama-3.2-3B"),
        ("ORG/Qwen3-17B", None),
    ],
)
def test_hub_ids_give_the_shape_of_their_model(name, found):
    shape = known_shape(name)
    assert (shape.name if shape else None) == found
