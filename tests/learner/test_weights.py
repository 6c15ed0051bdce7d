"""Files that the learner saves, read back by PEFT and transformers."""

from __future__ import annotations

import json
import os
import shutil
import time
from functools import partial
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tests.factories import causal_lm
from tests.learner import parts
from transformers import AutoModelForCausalLM

from rlforge.config.model import LoraConfig
from rlforge.engines.policies import load_policy
from rlforge.errors import CheckpointError, ConfigError
from rlforge.learner.weights import attach_lora, save_value_head
from rlforge.models.files import ADAPTER_WEIGHTS, VALUE_HEAD
from rlforge.system.checkpoint import write_checkpoint

IDS = torch.tensor([[5, 6, 7, 8]])


def logits(model) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits


def trained(**settings):
    """A learner after some updates, and its model."""
    model = parts.model()
    learner = parts.learner(model, **settings)
    for seed in range(2):
        learner.update(parts.batch(parts.random_steps(6, seed=seed)))
    return model, learner


def test_saving_leaves_the_learner_as_it_was(tmp_path):
    ends = []
    for save in (False, True):
        model, learner = trained()
        if save:
            learner.save(tmp_path)
        learner.update(parts.batch(parts.random_steps(6, seed=9)))
        ends.append(logits(model))
    assert torch.equal(*ends)


def test_a_tiny_adapter_is_saved_within_30_ms(tmp_path):
    _, learner = trained()
    learner.save(tmp_path)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        learner.save(tmp_path)
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_loads_saved_full_weights(tmp_path, dtype):
    model = parts.model().to(dtype)
    learner = parts.learner(model, train="full")
    learner.update(parts.batch(parts.random_steps(6)))
    learner.save(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == dtype
    before = dict(parts.model().to(dtype).named_parameters())
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name).to(dtype)), name
        assert not torch.equal(parameter, before[name]), name


def test_the_critic_is_saved_with_the_policy_and_warm_starts(tmp_path):
    _, learner = trained(algorithm=parts.PolicyGradient(values=True))
    learner.save(tmp_path)
    saved = load_file(tmp_path / "value_head.safetensors")
    assert saved["weight"].abs().max() > 0
    again = parts.learner(
        algorithm=parts.PolicyGradient(values=True), initial_adapter=str(tmp_path)
    ).state_dict()["policy"]
    assert torch.equal(again["value_head.weight"], saved["weight"])
    assert torch.equal(again["value_head.bias"], saved["bias"])


def test_without_a_critic_none_is_saved(tmp_path):
    _, learner = trained()
    learner.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The files of a trained adapter; only read."""
    folder = tmp_path_factory.mktemp("saved")
    trained()[1].save(folder)
    return folder


@pytest.fixture
def adapter(saved, tmp_path):
    """A copy of those files to damage."""
    return shutil.copytree(saved, tmp_path / "adapter")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, r"holds no adapter_model\.safetensors"),
        (
            lambda path: (path / ADAPTER_WEIGHTS).write_bytes(
                (path / ADAPTER_WEIGHTS).read_bytes()[:100]
            ),
            r"adapter_model\.safetensors cannot be read",
        ),
        (lambda path: (path / "adapter_config.json").unlink(), r"adapter_config\.json is missing"),
    ],
)
def test_a_missing_or_damaged_initial_adapter_is_named(adapter, damage, message):
    damage(adapter)
    with pytest.raises(CheckpointError, match=message) as caught:
        parts.learner(initial_adapter=str(adapter))
    assert str(adapter) in str(caught.value)


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (LoraConfig(rank=2, alpha=8), r"lora_A.* is \(4, 48\), and the model takes \(2, 48\)"),
        (LoraConfig(rank=4, alpha=16), r"model\.lora\.alpha 8 against 16"),
        (LoraConfig(rank=4, alpha=8, last_layers=1), r"the model has no .*layers\.0"),
    ],
)
def test_an_initial_adapter_that_does_not_fit_says_why(saved, lora, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        parts.learner(lora=lora, initial_adapter=str(saved))
    assert str(saved) in str(caught.value)


PLAIN = LoraConfig(rank=4, alpha=8)
RSLORA = LoraConfig(rank=4, alpha=8, use_rslora=True)
LAST = LoraConfig(rank=4, alpha=8, last_layers=1)


@pytest.mark.parametrize(("lora", "scale"), [(PLAIN, 8 / 4), (RSLORA, 8 / 4**0.5), (LAST, 8 / 4)])
def test_adapters_are_trained_saved_and_played_as_by_peft(tmp_path, lora, scale):
    model, learner = trained(lora=lora)
    learner.save(tmp_path)
    plain = PeftModel.from_pretrained(parts.model(), str(tmp_path))
    assert not torch.equal(logits(plain), logits(parts.model()))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["inference_mode"] is True
    warm = parts.model()
    parts.learner(warm, lora=lora, initial_adapter=str(tmp_path))
    assert torch.equal(logits(plain), logits(model))
    assert torch.equal(logits(warm), logits(model))
    played = load_policy(parts.model(), str(tmp_path), "saved")
    torch.testing.assert_close(logits(played), logits(model), atol=1e-5, rtol=1e-5)
    *others, last = plain.base_model.model.model.layers
    assert last.self_attn.q_proj.scaling["default"] == scale
    adapted = [hasattr(layer.self_attn.q_proj, "lora_A") for layer in others]
    assert others
    assert all(each == (lora is not LAST) for each in adapted)


ATTENTION = ["q_proj", "v_proj"]


def one_layer_llama() -> Any:
    return parts.model(num_hidden_layers=1, hidden_size=16)


def trainable(model: Any) -> dict[str, torch.Tensor]:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def test_a_new_adapter_changes_nothing_and_is_all_that_trains():
    model = one_layer_llama()
    ids = torch.arange(10)[None]
    before = model(ids).logits
    wrapped = attach_lora(model, LoraConfig(rank=4, alpha=8, target_modules=ATTENTION), seed=1)
    assert torch.equal(wrapped(ids).logits, before)
    trained = trainable(wrapped)
    assert len(trained) == 4
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == 4 * 4 * 16
    assert wrapped.peft_config["default"].lora_alpha == 8
    assert wrapped.peft_config["default"].lora_dropout == 0


def test_the_seed_decides_the_adapter_and_nothing_else():
    lora = LoraConfig(rank=4, dropout=0.1, target_modules=ATTENTION)
    state = torch.random.get_rng_state()
    first, again, other = (
        trainable(attach_lora(one_layer_llama(), lora, seed)) for seed in (1, 1, 2)
    )
    name = next(name for name in first if "lora_A" in name)
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    model = one_layer_llama()
    torch.manual_seed(0)
    attach_lora(model, lora, seed=5)
    assert torch.equal(torch.rand(1), expected)
    torch.random.set_rng_state(state)


def test_unknown_target_modules_are_refused_with_the_known_ones():
    lora = LoraConfig(target_modules=["q_proj", "query_key_value"])
    with pytest.raises(ConfigError, match=r"no linear layers named query_key_value; it has down"):
        attach_lora(one_layer_llama(), lora, seed=0)
    with pytest.raises(ConfigError, match="no linear layers named nothing"):
        attach_lora(one_layer_llama(), LoraConfig(target_modules=[]), seed=0)
    with pytest.raises(ConfigError, match=r"last_layers=2: the model has 1"):
        attach_lora(one_layer_llama(), LoraConfig(last_layers=2), seed=0)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o027])
@pytest.mark.parametrize("full", [False, True])
def test_weights_have_the_mode_that_the_umask_gives(mask, full, tmp_path):
    learner = parts.learner(parts.model(), train="full" if full else "lora")

    def save(directory):
        learner.save(directory)
        save_value_head(torch.nn.Linear(4, 1), directory)

    before = os.umask(mask)
    try:
        saved = write_checkpoint(tmp_path, "step-1", save, {})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in saved.iterdir()}
    assert {VALUE_HEAD, "model.safetensors" if full else ADAPTER_WEIGHTS} <= modes.keys()
    assert set(modes.values()) == {0o666 & ~mask}, modes


@pytest.mark.parametrize("kind", ["gpt2", "mixtral", "phi3"])
def test_adapters_of_other_decoders_are_trained_saved_and_played_as_by_peft(tmp_path, kind):
    """The layers of GPT-2 hold their weights transposed."""
    changes = {"head_dim": None} | ({"num_key_value_heads": None} if kind == "gpt2" else {})
    model = causal_lm(kind, **changes)
    learner = parts.learner(model)
    learner.update(parts.batch(parts.random_steps(6)))
    learner.save(tmp_path)
    assert not torch.equal(logits(model), logits(causal_lm(kind, **changes)))
    plain = PeftModel.from_pretrained(causal_lm(kind, **changes), str(tmp_path))
    played = load_policy(causal_lm(kind, **changes), str(tmp_path), "saved")
    torch.testing.assert_close(logits(plain), logits(model), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits(played), logits(model), atol=1e-5, rtol=1e-5)


def test_adapters_beside_layers_that_peft_renames_are_trained_saved_and_played(tmp_path):
    """PEFT's own loader would leave those of the shared expert, which get none, at zero."""
    sizes = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "num_experts": 4}
    sizes["num_experts_per_tok"] = 2
    make = partial(causal_lm, "laguna", **sizes)
    learner, model = parts.adapted(model=make())
    learner.save(tmp_path)
    names = load_file(tmp_path / "adapter_model.safetensors")
    assert not any(".shared_expert" in name for name in names)
    played, again = load_policy(make(), str(tmp_path), "saved"), make()
    parts.learner(again, initial_adapter=str(tmp_path))
    for other in (played, again):
        torch.testing.assert_close(logits(other), logits(model), atol=1e-5, rtol=1e-5)
