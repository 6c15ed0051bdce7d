"""Tensors move in place: who holds them notices nothing, and who shared memory still does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import UntypedStorage, nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.models import moving
from rlforge.models.moving import give_back, move

CPU = torch.device("cpu")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Moving to the CPU copies from it, and spoils what is left behind; sizes of what was moved."""
    sizes: list[int] = []

    def copied(storage: UntypedStorage, device: torch.device) -> UntypedStorage:
        sizes.append(storage.nbytes())
        fresh = storage.clone()
        storage.fill_(255)  # as float32 or bfloat16 this is not a number
        return fresh

    monkeypatch.setattr(moving, "copied", copied)
    return sizes


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
    ).eval()


def everything(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_a_model_says_the_same_afterwards(model: Any, elsewhere: list[int]) -> None:
    ids = torch.arange(10)[None]
    with torch.no_grad():
        before = model(input_ids=ids).logits
        objects = everything(model)
        move(everything(model), CPU)
        assert torch.equal(model(input_ids=ids).logits, before)
    assert all(a is b for a, b in zip(objects, everything(model), strict=True))
    assert len(elsewhere) == len(objects)


def test_shared_memory_moves_once_and_stays_shared(model: Any, elsewhere: list[int]) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    row, column, alias = whole[1], whole[:, 2], nn.Parameter(whole.data, requires_grad=False)
    move([whole, row, column, alias], CPU)
    assert elsewhere == [48]
    whole[1, 2] = -1.0
    assert row.tolist() == [4.0, 5.0, -1.0, 7.0]
    assert column.tolist() == [2.0, -1.0, 10.0]
    assert alias[1, 2] == -1.0
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tensor_named_twice_and_an_empty_one_are_no_trouble(elsewhere: list[int]) -> None:
    tensor, empty, other = torch.ones(3), torch.empty(0), torch.empty(0, 4, dtype=torch.long)
    move([tensor, tensor, empty, other], CPU)
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    assert (empty.shape, other.shape, other.dtype) == ((0,), (0, 4), torch.long)


def test_what_is_there_already_keeps_its_memory(model: Any) -> None:
    before = [tensor.data_ptr() for tensor in everything(model)]
    move(everything(model), CPU)
    give_back(CPU)
    assert [tensor.data_ptr() for tensor in everything(model)] == before


def test_what_cublas_keeps_is_let_go_before_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
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
def test_a_gpu_is_rid_of_a_model_and_gets_it_back(model: Any) -> None:
    gpu = torch.device("cuda")
    big = nn.Linear(4096, 4096).to(gpu)  # 64 MiB
    expected = copy.deepcopy(big.weight.cpu())
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
