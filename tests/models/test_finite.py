"""Weights that are not finite are found in every format."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rlforge.errors import ConfigError
from rlforge.models.finite import check_finite


def write(path, name, tensors):
    if name.endswith(".bin"):
        torch.save(tensors, path / name)
    else:
        save_file(tensors, path / name)
    return path


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_the_tensor_is_named(tmp_path, name, dtype, number):
    tensors = {"a": torch.ones(8, dtype=dtype), "b": torch.ones(4, 3, dtype=dtype)}
    assert check_finite(write(tmp_path, name, tensors)) == "20 numbers in 2 tensors"
    tensors["b"][2, 1] = number
    with pytest.raises(ConfigError, match=rf"{name}: b holds 1 numbers that are not finite"):
        check_finite(write(tmp_path, name, tensors))


def test_finite_numbers_whose_sum_is_infinite_pass(tmp_path):
    tensors = {"a": torch.full((9,), 60000.0, dtype=torch.float16), "ids": torch.arange(3)}
    check_finite(write(tmp_path, "model.safetensors", tensors))


def test_a_damaged_file_is_named(tmp_path):
    write(tmp_path, "pytorch_model.bin", {"a": torch.ones(1000)})
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:900])
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is damaged or truncated"):
        check_finite(tmp_path)


def test_only_files_that_a_model_is_loaded_from_are_read(tmp_path):
    """Trainers leave their settings, and rlforge a head for values, beside the weights."""
    tensors = {"a": torch.tensor([1.0, float("inf")])}
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    torch.save(Path("arguments"), tmp_path / "training_args.bin")
    write(tmp_path, "value_head.safetensors", {"bias": torch.ones(1)})
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin: a holds 1 numbers"):
        check_finite(tmp_path)
