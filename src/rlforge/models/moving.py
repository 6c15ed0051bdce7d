"""Weights and states on their way between a device and the host."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage


def move(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Move ``tensors`` to ``device`` in place; those that share memory share it there, too.

    Each stays the same object, so that modules and optimizers which hold it notice nothing. What
    lies beside them in the same storage moves along.
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
    """The same bytes on ``device``; ``storage`` itself where it is there already."""
    if storage.device.type == device.type:
        return storage
    moved: UntypedStorage = storage.to(device=device)
    return moved


def give_back(device: torch.device) -> None:
    """Return the memory of ``device`` that this process holds and does not use."""
    if device.type == "cuda":
        # cuBLAS keeps some 32 MiB for each thread that multiplied; it takes them again when asked.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
