"""Choosing a device, moving weights between it and the host, recognising a lost one."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage

from rlforge.errors import ConfigError

_DTYPES = ("float32", "bfloat16")

#: The variable with the settings of torch's allocator, and its name before torch 2.9.
_ALLOCATOR_SETTINGS, _OLD_ALLOCATOR_SETTINGS = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"

#: cudaErrorMemoryAllocation: the one CUDA error that leaves the device usable.
_OUT_OF_MEMORY = 2


def resolve_device(name: str) -> torch.device:
    """``named_device``, with torch's allocator set up; call it before torch computes there.

    On a GPU torch then reuses freed memory for tensors of other sizes (expandable segments): caches
    grow and batches differ, and blocks of old sizes would otherwise fill the card. A setting of the
    user is kept.
    """
    device = named_device(name)
    if device.type == "cuda" and _OLD_ALLOCATOR_SETTINGS not in os.environ:
        os.environ.setdefault(_ALLOCATOR_SETTINGS, "expandable_segments:True")
    return device


def named_device(name: str) -> torch.device:
    """``auto`` (a CUDA device if there is one), ``cpu`` or ``cuda``; changes no setting.

    Raises ConfigError for ``cuda`` without a CUDA device.

    Example:
        >>> named_device("cpu")
        device(type='cpu')
    """
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
    """``float32``, ``bfloat16`` or ``auto``: bfloat16 on GPUs that compute in it, else float32.

    GPUs do from compute capability 8.0 on; CPUs without such instructions are some 20 times slower
    in bfloat16 than in float32.
    """
    if name == "auto":
        good = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if good else torch.float32
    if name not in _DTYPES:
        raise ConfigError(f"model.dtype {name!r} is unknown; there are auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def move(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move ``tensors`` to ``device`` in place; those that share memory share it there, too.

    Each stays the same object, so modules and optimizers keep their references. Whole storages
    move, with other tensors in them.
    """
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
        # cuBLAS keeps some 32 MiB for each thread that multiplied; it allocates them again on use.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def is_lost(error: BaseException) -> bool:
    """Whether ``error`` means that no later call to the device can succeed in this process.

    After a failed assertion or an illegal access in a kernel, CUDA reports the same error for ever.
    Lack of memory leaves the device usable.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return False
    code = getattr(error, "error_code", None)
    return isinstance(error, torch.AcceleratorError) and code != _OUT_OF_MEMORY


def exact_kernels() -> None:
    """Let torch take kernels in this process that give the same result each time, or fail."""
    # cuBLAS reads it when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
