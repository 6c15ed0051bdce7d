"""Sources of deployments: which are accepted, and the error for each that is not."""

import dataclasses
import json

import pytest

from rlforge.config.model import LoraConfig
from rlforge.continuous.serving.adapter import (
    check_fit,
    checkpoint_of,
    copy_files,
    find_source,
    fingerprint,
)
from rlforge.errors import ConfigError, DeploymentError
from rlforge.models.finite import check_finite

from .conftest import weights_of, without_manifest


def test_an_adapter_of_this_model_fits_and_is_finite(config, make_adapter):
    path = make_adapter(1)
    assert check_fit(path, config.model) == "LoRA of rank 4 on down_proj, q_proj, v_proj"
    assert "tensors" in check_finite(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_nan_or_infinite_weight_is_refused_by_name(config, make_adapter, tmp_path, value):
    path = without_manifest(make_adapter(1), tmp_path / "bad")
    with weights_of(path) as weights:
        weights[min(weights)].view(-1)[3] = value
    with pytest.raises(ConfigError, match=r"lora_A.weight holds 1 numbers that are not finite"):
        check_finite(path)


def test_a_truncated_file_is_refused_with_and_without_a_manifest(config, make_adapter, tmp_path):
    path = make_adapter(1)
    plain = without_manifest(path, tmp_path / "plain")
    for folder in (path, plain):
        file = folder / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DeploymentError, match=r"adapter_model.safetensors is truncated"):
        fingerprint(path)
    with pytest.raises(ConfigError, match=r"adapter_model.safetensors is damaged or truncated"):
        check_finite(plain)


def test_an_adapter_for_a_base_model_of_another_name_is_refused(config, make_adapter, tmp_path):
    path = without_manifest(make_adapter(1), tmp_path / "other")
    described = json.loads((path / "adapter_config.json").read_text())
    described["base_model_name_or_path"] = "Qwen/Qwen3-0.6B"
    (path / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(DeploymentError, match=r"another base model: Qwen/Qwen3-0\.6B; this one is"):
        check_fit(path, config.model)


def test_weights_of_other_shapes_or_for_other_layers_are_refused(config, make_adapter, tmp_path):
    adapter = make_adapter(1)
    wide, deep = (without_manifest(adapter, tmp_path / name) for name in ("wide", "deep"))
    with weights_of(wide) as weights:
        name = next(name for name in weights if "q_proj.lora_A" in name)
        weights[name] = weights[name].new_zeros(4, 99)
    with weights_of(deep) as weights:
        name = next(name for name in weights if ".0." in name)
        weights[name.replace(".0.", ".17.")] = weights[name].clone()
    with pytest.raises(
        DeploymentError, match=r"does not fit.*q_proj\S* is \(4, 99\), and the model"
    ):
        check_fit(wide, config.model)
    with pytest.raises(DeploymentError, match=r"the model has no \S*model\.layers\.17"):
        check_fit(deep, config.model)


def test_a_rank_above_that_of_the_service_is_refused(config, make_adapter):
    path = make_adapter(1, lora=LoraConfig(rank=8, alpha=8, target_modules=["q_proj"]))
    with pytest.raises(DeploymentError, match=r"rank 8, and model\.lora\.rank=4 makes room for 4"):
        check_fit(path, config.model)


def test_full_weights_fit_if_their_shapes_do(config, small_model, tmp_path):
    assert check_fit(small_model, config.model) == "full weights of this model"
    other = dataclasses.replace(config.model, lora=LoraConfig())
    from transformers import AutoModelForCausalLM

    wide = AutoModelForCausalLM.from_pretrained(small_model)
    wide.resize_token_embeddings(wide.config.vocab_size + 7)
    wide.save_pretrained(tmp_path / "wide")
    with pytest.raises(DeploymentError, match=r"the vocabulary of the model in \S+wide has"):
        check_fit(tmp_path / "wide", other)


def test_the_source_of_a_run_is_its_newest_checkpoint(make_adapter, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for seed in (1, 2):
        path = make_adapter(seed)
        (run / "checkpoints").mkdir(exist_ok=True)
        path.rename(run / "checkpoints" / path.name)
    assert checkpoint_of(run).version == 2
    assert checkpoint_of(find_source(run, "step-1")).version == 1
    with pytest.raises(
        DeploymentError, match=r"step-9: no such checkpoint; the newest are step-2, step-1"
    ):
        find_source(run, "step-9")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such directory; give a run or an adapter"),
        (lambda path: path.mkdir(), "neither a run"),
        (lambda path: (path / "checkpoints").mkdir(parents=True), "holds no checkpoint yet"),
    ],
)
def test_a_path_that_is_neither_run_nor_adapter_is_refused(tmp_path, make, message):
    make(tmp_path / "thing")
    with pytest.raises(DeploymentError, match=message):
        find_source(tmp_path / "thing")


def test_a_file_that_changed_after_its_digest_is_not_copied(make_adapter, tmp_path):
    path = make_adapter(1)
    files = fingerprint(path)
    (path / "adapter_config.json").write_text("{}")
    with pytest.raises(DeploymentError, match=r"adapter_config.json changed while"):
        copy_files(path, files)(tmp_path)
