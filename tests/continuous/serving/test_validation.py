"""Sources of deployments: which are accepted, and the error for each that is not."""

import dataclasses

import pytest

from rlforge.config.model import LoraConfig
from rlforge.continuous.serving.validation import (
    check_fit,
    checkpoint_of,
    copy_files,
    find_source,
    fingerprint,
)
from rlforge.errors import DeploymentError


def test_an_adapter_of_this_model_fits(config, make_adapter):
    assert check_fit(make_adapter(1), config.model) == "LoRA of rank 4 on down_proj, q_proj, v_proj"


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


def test_a_file_that_is_truncated_or_changed_after_its_digest_is_refused(make_adapter, tmp_path):
    path = make_adapter(1)
    files = fingerprint(path)
    described = path / "adapter_config.json"
    whole = described.read_bytes()
    described.write_text("{}")
    with pytest.raises(DeploymentError, match=r"adapter_config.json changed while"):
        copy_files(path, files, tmp_path)
    described.write_bytes(whole)
    file = path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DeploymentError, match=r"adapter_model.safetensors is truncated"):
        fingerprint(path)
