"""Keys and values of running sequences, and the attention of one new token over them.

Sequences of one batch are aligned at their ends; the attention mask hides the unused positions of
shorter ones. So sliding-window layers see true distances.

Each layer shows a window of a larger buffer: the first rows, and the positions up to the token read
last. New rows take the places of rows that left, so that all are copied only when the buffer is too
small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: The name of ``grouped_attention`` in transformers' registries.
_GROUPED = "rlforge_grouped"


class RowLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [rows, heads, length, head_dim] each: a window of its buffer."""

    # transformers' own layer copies everything for every token; this one writes into spare
    # positions. Those out of a sliding window are kept, so that rows stay aligned; the model's mask
    # hides them.

    keys: Tensor
    values: Tensor
    #: Keys and values with their spare rows and positions.
    buffers: tuple[Tensor, Tensor]
    #: The position in the buffer after the token read last.
    _stop: int

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        new = key_states.shape[-2]
        if not self.is_initialized:
            self.begin(key_states, value_states, new)
            return self.keys, self.values
        rows, length = self.keys.shape[0], self.keys.shape[-2]
        if self._stop + new > self.buffers[0].shape[-2]:
            self.resize(self.buffer_rows, length, spare=new)
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, self._stop : self._stop + new] = states
        self._stop += new
        self.show(rows, length + new)
        return self.keys, self.values

    def begin(self, keys: Tensor, values: Tensor, stop: int) -> None:
        """Take buffers whose first ``stop`` positions are in use."""
        self.lazy_initialization(keys, values)
        self.buffers, self._stop = (keys, values), stop
        self.show(keys.shape[0], stop)

    @property
    def buffer_rows(self) -> int:
        """Rows of the buffer."""
        return int(self.buffers[0].shape[0])

    def show(self, rows: int, length: int) -> None:
        """Put the first ``rows`` and the last ``length`` positions in use."""
        window = slice(self._stop - length, self._stop)
        self.keys, self.values = (buffer[:rows, :, window] for buffer in self.buffers)

    def reserve(self, rows: int, length: int, most_rows: int) -> None:
        """Grow the buffer to ``rows`` of ``length``; the part in use stays as it is."""
        used_rows, used = self.keys.shape[0], self.keys.shape[-2]
        if rows > self.buffer_rows or length > self._stop:
            # An eighth more: a batch which grows row by row is seldom copied.
            spacious = max(rows, self.buffer_rows, min(rows + rows // 8, most_rows))
            self.resize(spacious, max(length, used))
        # Hidden positions are multiplied by weight zero and must be finite.
        for buffer in self.buffers:
            buffer[:used_rows, :, self._stop - max(length, used) : self._stop - used] = 0

    def write(self, rows: Tensor, keys: Tensor, values: Tensor, window: int) -> None:
        """Put ``keys`` and ``values`` into ``rows`` of the buffer, ends aligned.

        Positions of the last ``window`` before the new ones become zero.
        """
        start, middle = self._stop - window, self._stop - keys.shape[-2]
        for buffer, new in zip(self.buffers, (keys, values), strict=True):
            buffer[:, :, start:middle].index_fill_(0, rows, 0)
            buffer[:, :, middle : self._stop].index_copy_(0, rows, new)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows in use over others."""
        for held in (self.keys, self.values):
            held.index_copy_(0, targets, held[sources])

    def shrink(self) -> None:
        """Take a smaller buffer when more than a fifth of the rows is not in use."""
        rows = self.keys.shape[0]
        if self.buffer_rows > rows + rows // 4:
            self.resize(rows, self.keys.shape[-2])

    def resize(self, rows: int, stop: int, spare: int = 0) -> None:
        """Copy the part in use to a new buffer, which has it up to ``stop`` and ``spare`` more."""
        used_rows, used = self.keys.shape[0], self.keys.shape[-2]
        # A quarter more, so that tokens are seldom copied.
        length = (stop + spare) + (stop + spare) // 4 + 16
        buffers = []
        for held in (self.keys, self.values):
            buffer = held.new_empty((rows, held.shape[1], length, held.shape[3]))
            buffer[:used_rows, :, stop - used : stop] = held
            buffers.append(buffer)
        self.buffers, self._stop = (buffers[0], buffers[1]), stop
        self.show(used_rows, used)


def new_cache() -> Cache:
    """Make an empty cache, whose layers appear at the first forward pass."""
    return Cache(layer_class_to_replicate=RowLayer)


#: Keys and values of one sequence, outside of a batch: per layer two of [heads, length, head_dim].
Row = Sequence[tuple[Tensor, Tensor]]


def copy_row(cache: Cache, row: int, length: int, first: int | None = None) -> Row:
    """Copy the last ``length`` positions of ``row``, or the ``first`` of these."""
    stop = None if first in (None, length) else first - length
    return [
        (layer.keys[row, :, -length:stop].clone(), layer.values[row, :, -length:stop].clone())
        for layer in cache.layers
    ]


def cache_of(rows: Sequence[tuple[Row, int]], spare: int) -> Cache:
    """Make a cache with a row for each of ``rows``, of which it holds the first so many positions.

    At least one row has positions; ``spare`` positions are added by the next pass.
    """
    cache, width = new_cache(), max(length for _, length in rows)
    first = next(row for row, length in rows if length)
    alike: dict[tuple[int, int], list[int]] = {}  # many rows may be the same shared one
    for index, (row, length) in enumerate(rows):
        alike.setdefault((id(row) if length else 0, length), []).append(index)
    device = first[0][0].device
    places = [
        (rows[indexes[0]], torch.as_tensor(indexes, device=device)) for indexes in alike.values()
    ]
    for number, shapes in enumerate(first):
        cache.layers.append(RowLayer())
        buffers = tuple(
            like.new_empty(len(rows), like.shape[0], width + spare, like.shape[2])
            for like in shapes
        )
        for (row, length), indexes in places:
            for which, buffer in enumerate(buffers):
                # Hidden positions are multiplied by weight zero and must be finite.
                buffer[indexes, :, : width - length] = 0
                if length:
                    buffer[indexes, :, width - length : width] = row[number][which][:, :length]
        cache.layers[number].begin(buffers[0], buffers[1], width)
    return cache


def trim(cache: Cache, length: int) -> None:
    """Drop all but the last ``length`` positions."""
    for layer in cache.layers:
        layer.show(layer.keys.shape[0], length)


def join_rows(
    cache: Cache,
    other: Cache,
    taken: Sequence[int],
    places: Sequence[int],
    *,
    length: int,
    most_rows: int,
) -> None:
    """Put rows of another cache into this one; rows in use are intact even after a failure.

    Args:
        cache: The cache to change.
        other: The cache that has the rows; it may be the same.
        taken: Rows of ``other``.
        places: Unused rows of ``cache``, or those after its last one.
        length: How many of the last positions to put there.
        most_rows: Most rows that the batch can ever have.
    """
    layers = list(zip(cache.layers, other.layers, strict=True))
    rows = max(layers[0][0].keys.shape[0], max(places) + 1)
    window = max(cache.get_seq_length(), length)
    for mine, _ in layers:
        mine.reserve(rows, window, most_rows)
    # Made once: each copy to a GPU waits for the computation under way.
    sources, targets = (_index(cache, numbers) for numbers in (taken, places))
    for mine, theirs in layers:
        new = (held[:, :, -length:][sources] for held in (theirs.keys, theirs.values))
        mine.write(targets, *new, window=window)
    for mine, _ in layers:
        mine.show(rows, window)


def keep_rows(cache: Cache, rows: Sequence[int]) -> list[int]:
    """Keep ``rows`` and drop all others; returns the new order, as indices of old rows.

    Kept rows are intact even after a failure. Only those after the first ``len(rows)`` move.
    """
    count, kept = len(rows), set(rows)
    holes = [row for row in range(count) if row not in kept]
    moved = [row for row in rows if row >= count]
    order = [row if row in kept else -1 for row in range(count)]
    for hole, row in zip(holes, moved, strict=True):
        order[hole] = row
    if moved:
        sources, targets = (_index(cache, numbers) for numbers in (moved, holes))
        for layer in cache.layers:
            layer.copy(sources, targets)
    for layer in cache.layers:
        layer.show(count, layer.keys.shape[-2])
    return order


def shrink(cache: Cache) -> None:
    """Free the rows that are no longer in use, once they are more than a fifth."""
    for layer in cache.layers:
        layer.shrink()


def _index(cache: Cache, rows: Sequence[int]) -> Tensor:
    return torch.as_tensor(rows, device=cache.layers[0].keys.device)


def share_keys(model: Any) -> None:
    """Let ``model`` use ``grouped_attention`` if it uses torch's own attention ("sdpa")."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(_GROUPED)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [B, H, T, D], key and value [B, G, L, D].

    attention_mask [B, 1, T, L] is true (or 0) where a key is seen; None to see all. Returns
    [B, T, H, D].
    """
    batch, heads, positions, _ = query.shape
    groups = key.shape[1]
    per_head = attention_mask is not None and attention_mask.shape[1] > 1
    if positions > 1 or heads == groups or per_head or options.get("position_bias") is not None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return result
    # Several query heads read the same keys (Ainslie et al. 2023, "GQA"). Under a mask transformers
    # repeats these for every head. The heads of a group see the same keys and mask, so with one new
    # token they take the place of query positions.
    out = scaled_dot_product_attention(
        query.view(batch, groups, heads // groups, -1),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
    )
    return out.reshape(batch, 1, heads, out.shape[-1]), None


AttentionInterface.register(_GROUPED, grouped_attention)
AttentionMaskInterface.register(_GROUPED, sdpa_mask)
