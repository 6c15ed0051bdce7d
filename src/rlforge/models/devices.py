"""Choosing a device, moving weights between it and the host, recognising a lost one."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from rlforge.errors import ConfigError

#: Shapes of matrix products for which oneDNN, and torch's layer above it, keep compiled code. Both
#: keep 1024 unless it is set, and batches of games have ever new shapes: a learner of the tiny
#: model would grow by 450 MB within 20 updates, at the same speed.
KEPT_SHAPES = 128


def resolve_device(name: str) -> torch.device:
    """``named_device``, with torch's memory set up; call it before torch computes there."""
    device = named_device(name)
    if device.type == "cpu":
        for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(variable, str(KEPT_SHAPES))
    # The user's own setting is kept, also by the variable's name before torch 2.9.
    if device.type == "cuda" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Otherwise cached blocks of old sizes would fill the card, because batches differ.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return device


def named_device(name: str) -> torch.device:
    """``auto`` (a CUDA device if there is one), ``cpu`` or ``cuda``; ConfigError without it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise ConfigError(f"hardware.device {name!r} is unknown; there are auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "hardware.device is cuda and torch finds no CUDA device; install a CUDA build of "
            "torch, or set hardware=cpu"
        )
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """``float32``, ``bfloat16`` or ``auto``: bfloat16 on GPUs that compute in it, else float32."""
    if name == "auto":
        # A CPU without instructions for bfloat16 is some 20 times slower in it.
        good = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if good else torch.float32
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if name not in dtypes:
        raise ConfigError(f"model.dtype {name!r} is unknown; there are auto, {', '.join(dtypes)}")
    return dtypes[name]


def move(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move ``tensors`` to ``device`` in place, with the whole storages that they share."""
    # Each tensor stays the same object: modules and optimizers hold references to it.
    sharing: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        sharing.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    for together in sharing.values():
        storage = copied(together[0].untyped_storage(), device)
        for tensor in together:
            view = torch.empty(0, dtype=tensor.dtype, device=device)
            tensor.data = view.set_(
                storage, tensor.storage_offset(), tensor.size(), tensor.stride()
            )


def copied(storage: UntypedStorage, device: torch.device) -> UntypedStorage:
    """The same bytes on ``device``; ``storage`` itself if it is there already."""
    if storage.device.type == device.type:
        return storage
    moved: UntypedStorage = storage.to(device=device)
    return moved


def give_back(device: torch.device) -> None:
    """Release the memory of ``device`` that this process holds and does not use."""
    if device.type == "cuda":
        # cuBLAS holds some 32 MiB for each thread that multiplied; it allocates them again later.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def is_lost(error: BaseException) -> bool:
    """Whether ``error`` means that no later call to the device can succeed in this process."""
    # After an illegal access in a kernel every later call to CUDA fails. Lack of memory, of code 2
    # (cudaErrorMemoryAllocation), passes.
    return (
        isinstance(error, torch.AcceleratorError)
        and not isinstance(error, torch.OutOfMemoryError)
        and getattr(error, "error_code", None) != 2
    )


def exact_kernels() -> None:
    """Let torch in this process take kernels that give the same result each time, or fail."""
    # cuBLAS reads the variable at its start; without it torch refuses deterministic products.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
