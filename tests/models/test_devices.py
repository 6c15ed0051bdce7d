"""Devices: the one that a name chooses, and tensors that move there and back in place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from tests import factories
from torch import nn

from rlforge.errors import ConfigError
from rlforge.models.devices import give_back, move, named_device, resolve_device, resolve_dtype

CPU = torch.device("cpu")


@pytest.fixture
def model():
    return factories.llama()


def everything(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_a_moved_model_predicts_the_same(model, elsewhere):
    ids = torch.arange(10)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        objects = everything(model)
        move(everything(model), CPU)
        assert torch.equal(model(input_ids=ids).logits, before)
    assert all(a is b for a, b in zip(objects, everything(model), strict=True))
    assert len(elsewhere) == len(objects)


def test_shared_memory_moves_once_and_stays_shared(model, elsewhere):
    whole = torch.arange(12.0).reshape(3, 4)
    row, column, alias = whole[1], whole[:, 2], nn.Parameter(whole.data, requires_grad=False)
    move([whole, row, column, alias], CPU)
    assert elsewhere == [48]
    whole[1, 2] = -1.0
    assert row.tolist() == [4.0, 5.0, -1.0, 7.0]
    assert column.tolist() == [2.0, -1.0, 10.0]
    assert alias[1, 2] == -1.0
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_repeated_and_empty_tensors_are_moved(elsewhere):
    tensor, empty, other = torch.ones(3), torch.empty(0), torch.empty(0, 4, dtype=torch.long)
    move([tensor, tensor, empty, other], CPU)
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    assert (empty.shape, other.shape, other.dtype) == ((0,), (0, 4), torch.long)


def test_tensors_already_on_the_device_keep_their_memory(model):
    before = [tensor.data_ptr() for tensor in everything(model)]
    move(everything(model), CPU)
    give_back(CPU)
    assert [tensor.data_ptr() for tensor in everything(model)] == before


def test_cublas_workspaces_are_freed_before_the_cache(monkeypatch):
    done = []
    # Absent in a torch without CUDA.
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: done.append("clear"), raising=False
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty"))
    give_back(CPU)
    assert not done
    give_back(torch.device("cuda"))
    assert done == ["clear", "empty"]


@pytest.mark.gpu
def test_moving_a_model_away_frees_the_gpu(model):
    gpu = torch.device("cuda")
    big = nn.Linear(4096, 4096).to(gpu)  # 64 MiB
    expected = big.weight.detach().cpu().clone()
    optimizer = torch.optim.AdamW(big.parameters(), fused=True)
    big(torch.ones(1, 4096, device=gpu)).sum().backward()
    optimizer.zero_grad(set_to_none=True)
    held = torch.cuda.memory_reserved()
    move(everything(big), CPU)
    give_back(gpu)
    assert torch.cuda.memory_reserved() <= held - 60 * 2**20
    assert big.weight.device == CPU
    assert torch.equal(big.weight, expected)
    move(everything(big), gpu)
    assert big.weight.is_cuda
    assert torch.equal(big.weight.cpu(), expected)
    big(torch.ones(1, 4096, device=gpu)).sum().backward()
    optimizer.step()


def test_a_device_is_chosen_by_name_and_availability(monkeypatch):
    assert resolve_device("cpu") == CPU
    with pytest.raises(ConfigError, match=r"hardware\.device 'tpu' is unknown"):
        resolve_device("tpu")
    with pytest.raises(ConfigError, match=r"model\.dtype 'float16' is unknown"):
        resolve_dtype("float16", CPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(ConfigError, match=r"hardware\.device is cuda and torch finds no CUDA"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "")
    assert resolve_device("auto").type == "cuda"


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [
        ("cuda", {}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ("cuda", {"PYTORCH_ALLOC_CONF": "a:1"}, {"PYTORCH_ALLOC_CONF": "a:1"}),
        ("cuda", {"PYTORCH_CUDA_ALLOC_CONF": "a:1"}, {"PYTORCH_CUDA_ALLOC_CONF": "a:1"}),
        ("cpu", {}, {}),
    ],
)
def test_expandable_segments_are_on_unless_the_user_set_the_allocator(
    monkeypatch, device, given, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.setenv(name, "")  # so that what the test leaves is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert named_device(device).type == device
    assert {name: os.environ[name] for name in names if name in os.environ} == given
    assert resolve_device(device).type == device
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


@pytest.mark.parametrize(("given", "expected"), [(None, "128"), ("7", "7")])
def test_code_is_kept_for_few_shapes_of_products_on_a_cpu(monkeypatch, given, expected):
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    resolve_device("cpu")
    assert [os.environ[name] for name in names] == [expected, expected]


@pytest.mark.gpu
def test_the_allocator_of_a_gpu_uses_expandable_segments():
    code = (
        "from rlforge.models.devices import resolve_device; import torch;"
        "x = torch.ones(1, device=resolve_device('cuda'));"
        "print(any(s.get('is_expandable') for s in torch.cuda.memory_snapshot()))"
    )
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.parametrize(
    ("name", "capability", "expected"),
    [
        ("auto", None, torch.float32),
        ("auto", (7, 5), torch.float32),
        ("auto", (8, 0), torch.bfloat16),
        ("auto", (10, 0), torch.bfloat16),
        ("float32", (9, 0), torch.float32),
        ("bfloat16", None, torch.bfloat16),
    ],
)
def test_auto_is_bfloat16_on_gpus_that_compute_in_it(name, capability, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    device = CPU if capability is None else torch.device("cuda")
    assert resolve_dtype(name, device) is expected
