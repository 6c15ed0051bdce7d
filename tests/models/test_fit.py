"""Directories of weights against a real small Llama, and the message for each that does not fit."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from tests import factories

from rlforge.config.model import LoraConfig as TrainedLora
from rlforge.config.model import ModelConfig
from rlforge.errors import ConfigError
from rlforge.models import fit
from rlforge.models.fit import check_initial_adapter, check_model_fits

# PEFT looks at the base for a changed vocabulary.
pytestmark = pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")


def _llama(**sizes: Any) -> Any:
    return factories.llama(**{"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24} | sizes)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "small"
    _llama().save_pretrained(folder)
    return ModelConfig(kind="hf", name=str(folder))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """An adapter as ``adapter`` makes it; only read."""
    return _save(tmp_path_factory.mktemp("adapters") / "plain")


def _save(path: Path, base: str = "/another/cache/small", model: Any = None, **lora: Any) -> Path:
    settings = {"r": 4, "target_modules": ["q_proj", "down_proj"]} | lora
    wrapped = get_peft_model(model or _llama(), LoraConfig(**settings))
    wrapped.peft_config["default"].base_model_name_or_path = base
    wrapped.save_pretrained(path)
    return path


@pytest.fixture
def adapter(plain, tmp_path):
    def make(**changes):
        """A folder of its own, with these changes of the plain adapter."""
        path = tmp_path / "adapter"
        return _save(path, **changes) if changes else shutil.copytree(plain, path)

    return make


def _check(path: Path, model: ModelConfig) -> list[str]:
    assert model.name is not None
    return fit.check_adapter_fits(path, model, model.name)


def _describe(path: Path, **changed: Any) -> None:
    file = path / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def _weigh(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(path / WEIGHTS)
    change(weights)
    save_file(weights, path / WEIGHTS)


@pytest.mark.parametrize(
    ("lora", "layers"),
    [
        ({}, ["down_proj", "q_proj"]),
        ({"base": ""}, ["down_proj", "q_proj"]),  # names no base
        ({"base": "org/SMALL"}, ["down_proj", "q_proj"]),  # the hub knows one model by any case
        ({"r": 9, "lora_alpha": 3}, ["down_proj", "q_proj"]),
        ({"target_modules": ["v_proj"], "layers_to_transform": [1]}, ["v_proj"]),
        (
            {"target_modules": "all-linear"},
            ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        ),
        ({"target_modules": r".*\.0\..*v_proj", "use_rslora": True}, ["v_proj"]),
        ({"rank_pattern": {"q_proj": 2}}, ["down_proj", "q_proj"]),
    ],
)
def test_adapters_of_any_rank_and_layers_fit(model, adapter, lora, layers):
    assert _check(adapter(**lora), model) == layers


def test_the_check_draws_no_random_number(model, adapter):
    path, state = adapter(), torch.random.get_rng_state()
    _check(path, model)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_largest_rank_counts_those_of_single_layers(adapter):
    assert fit.largest_rank(fit.read_adapter(adapter())) == 4
    other = adapter(rank_pattern={"q_proj": 12})
    assert fit.largest_rank(fit.read_adapter(other)) == 12


def test_an_adapter_of_another_base_is_refused_by_name_and_by_shape(model, adapter):
    with pytest.raises(ConfigError, match=r"another base model: org/large; this one is .*small"):
        _check(adapter(base="org/large"), model)
    with pytest.raises(ConfigError, match=r"does not fit.* is \(32, 4\), and.*\(16, 4\)"):
        _check(adapter(model=_llama(hidden_size=32)), model)
    with pytest.raises(ConfigError, match=r"the model has no \S*model\.layers\.2\."):
        _check(adapter(model=_llama(num_hidden_layers=3)), model)


def _shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / CONFIG).unlink(), r"adapter_config\.json is missing"),
        (lambda p: (p / CONFIG).write_text("{"), r"config\.json cannot be read"),
        (lambda p: (p / CONFIG).write_text("[]"), r"is not a JSON object"),
        (lambda p: (p / CONFIG).write_text("{}"), r"describes no adapter of PEFT"),
        (lambda p: _describe(p, r=0), r"describes no adapter of PEFT"),
        (lambda p: _describe(p, r=7), r"does not fit.* is \(4, 24\), and.*\(7, 24\)"),
        (lambda p: _describe(p, target_modules=["query"]), r"does not fit the model: Target mod"),
        (
            lambda p: _describe(p, target_modules=["q_proj", "down_proj", "k_proj"]),
            r"it lacks \S*model\.layers\.0\.self_attn\.k_proj",
        ),
        (lambda p: (p / WEIGHTS).unlink(), r"safetensors is missing"),
        (lambda p: _shorten(p / WEIGHTS), r"adapter_model\.safetensors is damaged or truncated"),
        (
            lambda p: _weigh(p, lambda weights: weights.pop(max(weights))),
            r"it lacks \S*model\.layers\.1\.self_attn\.q_proj",
        ),
    ],
)
def test_a_damaged_adapter_is_refused_in_one_line_with_its_file(model, adapter, damage, message):
    path = adapter()
    damage(path)
    with pytest.raises(ConfigError, match=message) as caught:
        _check(path, model)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_full_weights_with_the_same_vocabulary_fit(model, tmp_path):
    _llama(hidden_size=32, num_hidden_layers=1).save_pretrained(tmp_path / "wide")
    check_model_fits(tmp_path / "wide", model)
    _llama(vocab_size=60).save_pretrained(tmp_path / "other")
    with pytest.raises(ConfigError, match="has 60 tokens, that of the configured model 50"):
        check_model_fits(tmp_path / "other", model)


def test_full_weights_of_other_shapes_are_refused_where_they_must_be_the_same(model, tmp_path):
    check_model_fits(Path(model.name or ""), model, same_shapes=True)
    _llama(intermediate_size=32).save_pretrained(tmp_path / "wide")
    with pytest.raises(ConfigError, match=r"down_proj.weight is \(16, 32\), and the model takes"):
        check_model_fits(tmp_path / "wide", model, same_shapes=True)


@pytest.mark.parametrize("size", ["1KB", "1GB"])
def test_incomplete_full_weights_are_refused(model, tmp_path, size):
    path = tmp_path / "full"
    _llama(hidden_size=32).save_pretrained(path, max_shard_size=size)
    check_model_fits(path, model)
    shard = max(path.glob("*.safetensors"))
    _shorten(shard)
    with pytest.raises(ConfigError, match=rf"{shard.name} is damaged or truncated"):
        check_model_fits(path, model)
    shard.unlink()
    with pytest.raises(ConfigError, match=rf"{shard.name} is missing|has no weights"):
        check_model_fits(path, model)
    (path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        check_model_fits(path, model)


def _training(model: ModelConfig, **lora: Any) -> ModelConfig:
    """``model`` with the adapter that the fixture saves, but for ``lora``."""
    trained = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "down_proj"]} | lora
    return dataclasses.replace(model, lora=TrainedLora(**trained))


def test_training_continues_an_adapter_of_its_own_kind_wherever_its_base_is_cached(model, adapter):
    check_initial_adapter(adapter(base="/one/cache/tiny-1"), _training(model), "/another/Tiny-1")


@pytest.mark.parametrize(
    ("lora", "base", "message"),
    [
        ({"rank": 8}, "small", r"model\.lora\.rank 4 against 8"),
        ({"alpha": 4}, "small", r"model\.lora\.alpha 8 against 4"),
        ({"target_modules": ["q_proj"]}, "small", r"\['down_proj', 'q_proj'\] against \['q_proj'"),
        ({}, "org/other", "base model '/another/cache/small' against 'org/other'"),
    ],
)
def test_training_refuses_an_initial_adapter_that_differs_and_names_the_key(
    model, adapter, lora, base, message
):
    path = adapter()
    with pytest.raises(ConfigError, match=message) as caught:
        check_initial_adapter(path, _training(model, **lora), base)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("use_dora", True),
        ("alpha_pattern", {"q_proj": 2}),
        ("rank_pattern", {"q_proj": 2}),
        ("bias", "lora_only"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("layers_to_transform", 0),
        ("exclude_modules", ["down_proj"]),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("trainable_token_indices", [3]),
        ("target_parameters", ["experts.down"]),
        ("init_lora_weights", "pissa"),
        ("a_setting_of_tomorrow", True),
        ("peft_type", "LOHA"),
    ],
)
def test_training_refuses_what_is_more_than_plain_lora_by_its_name(model, adapter, setting, value):
    path = adapter()
    _describe(path, **{setting: value})
    message = re.escape(
        f"{path}: the adapter has {setting}={value!r}, and the learner trains LoRA without"
    )
    with pytest.raises(ConfigError, match=f"{message}.* merge_and_unload"):
        check_initial_adapter(path, _training(model), "small")


def test_training_takes_settings_that_change_nothing(model, adapter):
    path = adapter(lora_dropout=0.1, init_lora_weights="gaussian")
    _describe(path, revision="main", fan_in_fan_out=True, a_setting_of_tomorrow=None)
    _describe(path, eva_config={"rho": 2.0}, base_model_name_or_path=None)
    check_initial_adapter(path, _training(model), "small")


def test_training_continues_only_adapters_of_the_layers_and_scale_of_the_configuration(
    model, adapter
):
    path = adapter(use_rslora=True)
    check_initial_adapter(path, _training(model, use_rslora=True), "small")
    with pytest.raises(ConfigError, match=r"model\.lora\.use_rslora True against False"):
        check_initial_adapter(path, _training(model), "small")
    _describe(path, use_rslora=False, layers_to_transform=[1])
    with pytest.raises(ConfigError, match=r"model\.lora\.last_layers 1 against None"):
        check_initial_adapter(path, _training(model), "small")


@pytest.mark.parametrize("named", ["all-linear", r".*_proj", ["k_proj", "q_proj"]])
def test_targets_are_compared_by_the_layers_that_they_name(model, adapter, named):
    ours = _training(model, target_modules=named)
    path = adapter(target_modules=named)
    check_initial_adapter(path, ours, "small")
    _describe(path, target_modules=["q_proj"])
    with pytest.raises(ConfigError, match=r"model\.lora\.target_modules \['q_proj'\] against \["):
        check_initial_adapter(path, ours, "small")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("bias", "all"),
        ("lora_bias", True),
        ("layer_replication", [[0, 2], [1, 2]]),
        ("alora_invocation_tokens", [7]),
        ("init_lora_weights", "olora"),
        ("a_setting_of_tomorrow", True),
    ],
)
def test_an_adapter_that_no_engine_computes_as_peft_does_is_refused_by_name(
    model, adapter, setting, value
):
    path = adapter()
    _describe(path, **{setting: value})
    with pytest.raises(
        ConfigError, match=re.escape(f"{path} has {setting}={value!r}, and rlforge")
    ):
        _check(path, model)


def test_training_refuses_a_missing_or_damaged_initial_adapter(model, adapter, tmp_path):
    with pytest.raises(ConfigError, match=r"learner\.initial_adapter=.*nowhere: no adapter there"):
        check_initial_adapter(tmp_path / "nowhere", _training(model), "small")
    path = adapter()
    (path / CONFIG).write_text("{")
    with pytest.raises(ConfigError, match=r"adapter_config\.json cannot be read"):
        check_initial_adapter(path, _training(model), "small")


def test_an_adapter_is_copied_by_its_names_also_where_peft_takes_them_for_experts():
    """PEFT's own loader leaves those of a shared expert at their first values."""
    sizes = {"moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
    sizes |= {"num_experts": 4, "num_experts_per_tok": 2}

    def adapted(seed: int) -> Any:
        model = factories.causal_lm("laguna", **sizes)
        targets = r".*\.shared_experts\.(gate|up|down)_proj"
        torch.manual_seed(seed)
        return get_peft_model(
            model, LoraConfig(r=2, target_modules=targets, init_lora_weights=False)
        )

    first, other = adapted(1), adapted(2)
    saved = {name: tensor.clone() for name, tensor in get_peft_model_state_dict(first).items()}
    assert fit.copy_adapter(other, saved) is None
    for name, tensor in get_peft_model_state_dict(other).items():
        assert torch.equal(tensor, saved[name]), name
    gone = sorted(saved)[0]
    del saved[gone]
    assert fit.copy_adapter(other, saved) == f"it lacks {gone}"
