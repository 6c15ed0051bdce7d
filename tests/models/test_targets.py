"""Adapters on the linear layers of any decoder, chosen as PEFT chooses them."""

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from tests.factories import causal_lm

from rlforge.config.model import LoraConfig
from rlforge.errors import ConfigError
from rlforge.learner.weights import attach_lora
from rlforge.models.targets import adapted_layers, experts_note

LLAMA = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


#: Where the architecture has other names for sizes.
CHANGES = {
    "gpt2": {"num_key_value_heads": None, "head_dim": None},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 8},
    "phi": {"head_dim": None},
    "phi3": {"head_dim": None},
    "mamba": {"intermediate_size": None},
}


def empty(kind, **changes):
    with torch.device("meta"):
        return causal_lm(kind, **CHANGES.get(kind, {}), **changes)


def adapted_by(wrapped):
    return {name.partition(".lora_A")[0] for name, _ in wrapped.named_modules() if "lora_A" in name}


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("gpt2", ["c_attn", "c_fc", "c_proj"]),
        ("gpt_neox", ["dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value"]),
        ("llama", LLAMA),
        ("mixtral", ["k_proj", "o_proj", "q_proj", "v_proj"]),
        (
            "opt",
            ["fc1", "fc2", "k_proj", "out_proj", "project_in", "project_out", "q_proj", "v_proj"],
        ),
        ("phi", ["dense", "fc1", "fc2", "k_proj", "q_proj", "v_proj"]),
        ("phi3", ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]),
    ],
)
def test_by_default_all_linear_layers_but_the_head_get_an_adapter(kind, layers):
    assert adapted_layers(empty(kind), LoraConfig()) == layers
    adapted = adapted_by(attach_lora(empty(kind), LoraConfig(rank=2), 0))
    assert {name.rpartition(".")[2] for name in adapted} == set(layers)
    if kind != "mixtral":  # whose experts PEFT adapts, too
        settings = PeftLoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
        assert adapted == adapted_by(get_peft_model(empty(kind), settings))


def test_layers_of_a_model_that_see_images_get_no_adapter():
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    text = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40}
    model = empty("gemma3", text_config=text, vision_config=vision)
    layers = adapted_by(attach_lora(model, LoraConfig(rank=2), 0))
    assert len(layers) == 14
    assert all("language_model" in name for name in layers)
    assert experts_note(model) is None


@pytest.mark.parametrize(
    ("targets", "chosen"),
    [
        (["q_proj", "lm_head"], ["lm_head", "q_proj"]),
        (["self_attn.q_proj"], ["q_proj"]),
        (["model.layers.1.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
        (r".*\.1\..*v_proj", ["model.layers.1.self_attn.v_proj"]),
        (r".*_proj|lm_head", sorted([*LLAMA, "lm_head"])),
    ],
)
def test_lists_and_patterns_choose_as_in_peft(targets, chosen):
    lora = LoraConfig(rank=2, target_modules=targets)
    assert adapted_layers(empty("llama"), lora) == chosen
    by_peft = get_peft_model(empty("llama"), PeftLoraConfig(r=2, target_modules=targets))
    assert adapted_by(attach_lora(empty("llama"), lora, 0)) == adapted_by(by_peft)


def test_a_pattern_may_be_cut_to_the_last_layers():
    lora = LoraConfig(rank=2, target_modules=r".*[qv]_proj", last_layers=1)
    layers = adapted_by(attach_lora(empty("llama"), lora, 0))
    assert {name.removeprefix("base_model.model.model.layers.1.self_attn.") for name in layers} == {
        "q_proj",
        "v_proj",
    }


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["query"], "has no linear layers named query; it has down_proj, gate_proj"),
        (
            "q_proj",
            r"whose whole names are matched by q_proj; names are given as a list, \[q_proj\]",
        ),
    ],
)
def test_targets_without_a_layer_are_refused_with_those_that_are_there(targets, message):
    with pytest.raises(ConfigError, match=message):
        adapted_layers(empty("llama"), LoraConfig(target_modules=targets))


def test_experts_that_stay_as_they_are_are_named():
    note = experts_note(empty("mixtral"))
    assert "experts.down_proj, experts.gate_up_proj" in note
    assert "get no adapter" in note
    assert experts_note(empty("llama")) is None
    assert experts_note(empty("mamba")) is None


def test_layers_whose_names_mean_the_experts_to_peft_get_no_adapter():
    model = empty("qwen3_moe", num_experts=4, mlp_only_layers=[0])
    assert adapted_layers(model, LoraConfig()) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert "to mlp.down_proj, mlp.gate_proj, mlp.up_proj: these" in experts_note(model)
    adapted = adapted_by(attach_lora(model, LoraConfig(rank=2), 0))
    assert len(adapted) == 2 * 4
    assert all("self_attn" in name for name in adapted)


def test_routers_get_no_adapter_though_their_class_is_one_of_linear_layers():
    model = causal_lm("llama4_text", num_local_experts=2, head_dim=8)
    assert "router" in {name.rpartition(".")[2] for name, _ in model.named_modules()}
    assert "router" not in adapted_layers(model, LoraConfig())
    attach_lora(model, LoraConfig(rank=2), seed=0)


def test_layers_whose_adapters_peft_does_not_find_again_get_none():
    sizes = {"num_experts": 2, "num_experts_per_tok": 1, "head_dim": 8, "moe_intermediate_size": 16}
    types = {"mlp_layer_types": ["dense", "sparse"], "num_attention_heads_per_layer": [4, 4]}
    model = empty("laguna", shared_expert_intermediate_size=16, **sizes, **types)
    layers = adapted_by(attach_lora(model, LoraConfig(rank=2), 0))
    assert any("mlp.down_proj" in name for name in layers)
    assert not any("shared_experts" in name for name in layers)
