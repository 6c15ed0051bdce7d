"""Keys and values of running sequences: rows that join, leave and grow.

Sequences of one batch are aligned at their ends: shorter ones have unused positions on their
left, which the attention mask hides. Distances within a sequence are then true distances, so
sliding-window layers see the window they were trained with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RowLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [B, heads, length, head_dim], with room for more tokens.

    The stock layer copies everything for every token; this one writes into spare room, and grows
    that by a quarter when it is used up. Nothing is cut off behind a sliding window: the model's
    mask hides what is out of the window, and rows stay aligned.
    """

    keys: Tensor
    values: Tensor
    _key_room: Tensor
    _value_room: Tensor

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.set_rows(key_states, value_states)
            return self.keys, self.values
        start, stop = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if stop > self._key_room.shape[-2]:
            self._key_room = _with_room(self.keys, stop + stop // 4 + 16)
            self._value_room = _with_room(self.values, stop + stop // 4 + 16)
        self._key_room[..., start:stop, :] = key_states
        self._value_room[..., start:stop, :] = value_states
        self.keys = self._key_room[..., :stop, :]
        self.values = self._value_room[..., :stop, :]
        return self.keys, self.values

    def set_rows(self, keys: Tensor, values: Tensor) -> None:
        """Replaces what is held."""
        self.keys = self._key_room = keys
        self.values = self._value_room = values


def _with_room(rows: Tensor, length: int) -> Tensor:
    room = rows.new_empty((*rows.shape[:-2], length, rows.shape[-1]))
    room[..., : rows.shape[-2], :] = rows
    return room


def new_cache() -> Cache:
    """An empty cache for one batch; layers appear at the first forward pass."""
    return Cache(layer_class_to_replicate=RowLayer)


def select_rows(cache: Cache, rows: Sequence[int], skip: int) -> None:
    """Keeps ``rows``, in that order, and drops the first ``skip`` positions of all."""
    for layer in cache.layers:
        index = torch.as_tensor(rows, device=layer.keys.device)
        layer.set_rows(layer.keys[index, :, skip:], layer.values[index, :, skip:])


def join_rows(cache: Cache, other: Cache) -> None:
    """Appends the rows of ``other`` to ``cache``, ends aligned."""
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        mine.set_rows(_stack(mine.keys, theirs.keys), _stack(mine.values, theirs.values))


def _stack(upper: Tensor, lower: Tensor) -> Tensor:
    length = max(upper.shape[-2], lower.shape[-2])
    rows = upper.shape[0] + lower.shape[0]
    # Zeros, because hidden positions are multiplied by weight zero and must be finite.
    out = upper.new_zeros((rows, upper.shape[1], length, upper.shape[3]))
    out[: upper.shape[0], :, length - upper.shape[-2] :] = upper
    out[upper.shape[0] :, :, length - lower.shape[-2] :] = lower
    return out
