"""Versions load correctly, share the base's parameters, do not change them and leak no memory."""

from __future__ import annotations

import copy
import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, LlamaForCausalLM

from rlforge.engines.policies import PolicyStore, load_policy
from rlforge.engines.versions import PolicyKey
from rlforge.errors import EngineError
from rlforge.types import PolicyRef

IDS = torch.arange(1, 30)[None]


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


def _path(policy: PolicyRef) -> str:
    assert policy.path_or_name is not None
    return policy.path_or_name


def test_an_adapter_is_merged_into_copies_of_its_targets_only(base, make_adapter):
    before = {name: p.clone() for name, p in base.state_dict().items()}
    policy, wrapped = make_adapter(1)
    model = load_policy(base, _path(policy), policy.uid)
    assert torch.allclose(_logits(model), _logits(wrapped), atol=1e-4)
    assert all(torch.equal(p, before[name]) for name, p in base.state_dict().items())
    shared = {p.data_ptr() for p in base.parameters()}
    own = {name for name, p in model.named_parameters() if p.data_ptr() not in shared}
    assert own
    assert all(name.split(".")[-2] in ("q_proj", "v_proj", "down_proj") for name in own)


@pytest.mark.filterwarnings("ignore:.*tie.*embeddings:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "lora",
    [
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 16}},
        {"rank_pattern": {"q_proj": 2}},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"layers_to_transform": [1]},
        {"exclude_modules": ["q_proj"]},
        {"trainable_token_indices": [3, 5]},
    ],
    ids=lambda lora: next(iter(lora)),
)
def test_variants_of_lora_are_played_as_plain_peft_computes_them(base, tmp_path, lora, dtype):
    model = copy.deepcopy(base).to(dtype)
    before = _logits(model)
    targets = ["q_proj", "v_proj"]
    wrapped = get_peft_model(
        copy.deepcopy(model), LoraConfig(r=4, lora_alpha=8, target_modules=targets, **lora)
    )
    torch.manual_seed(0)
    for parameter in wrapped.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    wrapped.save_pretrained(tmp_path / "variant", save_embedding_layers=False)
    plain = PeftModel.from_pretrained(copy.deepcopy(model), str(tmp_path / "variant")).eval()
    loaded = load_policy(model, str(tmp_path / "variant"), "variant")
    assert torch.allclose(_logits(loaded).float(), _logits(plain).float(), atol=1e-4)
    assert not torch.allclose(_logits(loaded), before, atol=1e-2)
    assert torch.equal(_logits(model), before)


@pytest.mark.filterwarnings("ignore:.*tie.*embeddings:UserWarning")
def test_an_adapter_on_a_tied_output_layer_does_not_change_the_input_embedding(base, tmp_path):
    wrapped = get_peft_model(copy.deepcopy(base), LoraConfig(r=4, target_modules=["lm_head"]))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0, 0.1)
    wrapped.save_pretrained(tmp_path / "head", save_embedding_layers=False)
    model = load_policy(base, str(tmp_path / "head"), "head")
    assert torch.allclose(_logits(model), _logits(wrapped.eval()), atol=1e-4)
    assert not torch.allclose(_logits(model), _logits(base), atol=1e-2)


def test_bfloat16_keeps_updates_that_merging_would_round_away(base, make_adapter):
    half = copy.deepcopy(base).to(torch.bfloat16)
    policy, wrapped = make_adapter(1, scale=0.012, model=half)
    model = load_policy(half, _path(policy), policy.uid)
    assert torch.equal(_logits(model), _logits(wrapped))
    layer = wrapped.base_model.model.model.layers[0].self_attn.q_proj
    folded = (layer.weight + layer.get_delta_weight("default")).to(torch.bfloat16)
    changed = (folded != layer.weight).float().mean()
    assert changed < 0.9  # merging would leave the other weights unchanged


def test_a_directory_of_full_weights_is_a_policy(base, full_weights):
    policy, other = full_weights
    model = load_policy(base, _path(policy), policy.uid)
    assert torch.allclose(_logits(model), _logits(other), atol=1e-5)
    assert not any(p.requires_grad for p in model.parameters())


def test_full_weights_of_a_model_that_also_sees_are_a_policy(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "head_dim": 8}
    text = sizes | {"vocab_size": 40, "num_key_value_heads": 1}
    config = Gemma3Config(text_config=text, vision_config=sizes | {"image_size": 28})
    model = Gemma3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    loaded = load_policy(model, str(tmp_path), "v1")
    ids = torch.arange(8)[None]
    assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


def test_full_weights_of_another_vocabulary_are_refused(base, tmp_path):
    config = copy.deepcopy(base.config)
    config.vocab_size = 100
    LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
    with pytest.raises(EngineError, match="vocabulary has 100 tokens, the base model's 300"):
        load_policy(base, str(tmp_path / "other"), "x")


def _break_rank(path: Path) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "r": 7}))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / "adapter_model.safetensors").write_bytes(b"torn"),
        _break_rank,
        lambda path: (path / "adapter_config.json").unlink(),
    ],
)
def test_a_damaged_adapter_is_refused_with_its_path(base, make_adapter, damage):
    path = Path(_path(make_adapter(1)[0]))
    damage(path)
    with pytest.raises(EngineError, match=r"policy 'v1' cannot be loaded") as caught:
        load_policy(base, str(path), "v1")
    assert str(path) in str(caught.value)


def test_a_store_without_capacity_is_refused(base):
    with pytest.raises(EngineError, match="max_loras is 0"):
        PolicyStore(base, 0)


def test_a_failed_load_evicts_nothing(base, make_adapter, tmp_path):
    store = PolicyStore(base, 1)
    key = PolicyKey.of(make_adapter(1)[0])
    assert store.load(key, busy=())
    with pytest.raises(EngineError):
        store.load(PolicyKey("gone", str(tmp_path / "gone")), busy=())
    assert store.resident == (key,)


def test_swaps_leave_no_memory_behind(base, make_adapter):
    store = PolicyStore(base, 2)
    paths = [_path(make_adapter(seed)[0]) for seed in (1, 2, 3)]

    def live():
        gc.collect()
        # type() rather than isinstance(), which would wake lazy modules among the objects.
        objects = gc.get_objects()
        tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
        models = [o for o in objects if issubclass(type(o), LlamaForCausalLM)]
        return sum(t.numel() for t in tensors), len(models)

    counts = []
    for version in range(19):
        store.load(PolicyKey(f"v{version}", paths[version % 3]), busy=())
        if version in (6, 18):
            counts.append(live())
    assert counts[0] == counts[1]
