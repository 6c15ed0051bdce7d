"""Whether all weights are finite, read from their files tensor by tensor."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from rlforge.errors import ConfigError, first_line
from rlforge.system.files import unreadable

#: Numbers that are looked at together.
_PART = 2**24


def check_finite(path: Path) -> str:
    """How many weights an adapter or a model has, in words; ConfigError for one not finite."""
    tensors = numbers = 0
    for file, name, tensor in _tensors(path):
        if (bad := _not_finite(tensor)) > 0:
            raise ConfigError(f"{file}: {name} holds {bad:,} numbers that are not finite")
        tensors, numbers = tensors + 1, numbers + math.prod(tensor.shape)
    return f"{numbers:,} numbers in {tensors} tensors"


def _not_finite(tensor: Any) -> int:
    # A sum takes a fifth of the time of a look at each number, and is finite only if all are.
    if isinstance(tensor, np.ndarray):
        return 0 if np.isfinite(tensor.sum(dtype=np.float64)) else int((~np.isfinite(tensor)).sum())
    if not tensor.is_floating_point():
        return 0
    bad = 0
    for part in tensor.reshape(-1).split(_PART):
        # Torch cannot sum numbers of 8 bits.
        wide = part if part.element_size() > 1 else part.float()
        if not bool(wide.sum().isfinite()):
            bad += int((~wide.isfinite()).sum())
    return bad


def _tensors(path: Path) -> Iterator[tuple[Path, str, Any]]:
    """File, name and value of every tensor, one at a time."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    # Transformers loads PyTorch's own format only where it finds no safetensors.
    old = () if any(path.glob("*model*.safetensors")) else sorted(path.glob("*_model*.bin"))
    try:
        for file in files:
            with safe_open(file, framework="np") as opened:
                names = [*opened.keys()]
                plain = all(opened.get_slice(name).get_dtype() == "F32" for name in names)
            # Torch, which alone has all other types, takes a second to import.
            with safe_open(file, framework="np" if plain else "pt") as opened:
                for name in names:
                    yield file, name, opened.get_tensor(name)
        for file in old:
            import torch

            held = torch.load(file, map_location="cpu", mmap=is_zipfile(file), weights_only=True)
            yield from ((file, name, held[name]) for name in held if torch.is_tensor(held[name]))
    except (SafetensorError, OSError, RuntimeError, pickle.UnpicklingError) as error:
        damage = f"{file} is damaged or truncated: {first_line(error)}"
        raise ConfigError(unreadable(file) or damage) from error
