"""Keys and values of running sequences: rows that join, leave and grow.

Sequences of one batch are aligned at their ends: shorter ones have unused positions on their
left, which the attention mask hides. Distances within a sequence are then true distances, so
sliding-window layers see the window they were trained with.

Each layer holds a room larger than what is in use, and shows a window of it: the first rows, and
the positions up to the token read last. What joins is written into the room, in the place of rows
that left, so that all rows are copied only when the room is too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class RowLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values, [rows, heads, length, head_dim] each: a window of its room.

    The stock layer copies everything for every token; this one writes into spare room, and makes
    a new one, longer by a quarter, when that is used up. Nothing is cut off behind a sliding
    window: the model's mask hides what is out of the window, and rows stay aligned.
    """

    keys: Tensor
    values: Tensor
    _rooms: tuple[Tensor, Tensor]
    #: The position in the room behind the token read last.
    _stop: int

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        new = key_states.shape[-2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._rooms, self._stop = (key_states, value_states), new
            self.show(key_states.shape[0], new)
            return self.keys, self.values
        rows, length = self.keys.shape[0], self.keys.shape[-2]
        if self._stop + new > self._rooms[0].shape[-2]:
            self._move(self.room_rows, length, spare=new)
        for room, states in zip(self._rooms, (key_states, value_states), strict=True):
            room[:rows, :, self._stop : self._stop + new] = states
        self._stop += new
        self.show(rows, length + new)
        return self.keys, self.values

    @property
    def room_rows(self) -> int:
        """Rows that there is room for."""
        return int(self._rooms[0].shape[0])

    def show(self, rows: int, length: int) -> None:
        """Makes the first ``rows`` and the last ``length`` positions what is in use."""
        window = slice(self._stop - length, self._stop)
        self.keys, self.values = (room[:rows, :, window] for room in self._rooms)

    def reserve(self, rows: int, length: int, most_rows: int) -> None:
        """Makes room for ``rows`` of ``length``; what is in use stays as it is.

        New rooms have an eighth more rows, up to ``most_rows``, so that a batch which grows row
        by row is seldom copied.
        """
        used_rows, used = self.keys.shape[0], self.keys.shape[-2]
        if rows > self.room_rows or length > self._stop:
            spacious = max(rows, self.room_rows, min(rows + rows // 8, most_rows))
            self._move(spacious, max(length, used))
        # Hidden positions are multiplied by weight zero and must be finite.
        for room in self._rooms:
            room[:used_rows, :, self._stop - max(length, used) : self._stop - used] = 0

    def write(self, rows: Tensor, keys: Tensor, values: Tensor, window: int) -> None:
        """Puts ``keys`` and ``values`` into ``rows`` of the room, ends aligned.

        window: positions that will be in use; those before the new ones become zero.
        """
        start, middle = self._stop - window, self._stop - keys.shape[-2]
        for room, new in zip(self._rooms, (keys, values), strict=True):
            room[:, :, start:middle].index_fill_(0, rows, 0)
            room[:, :, middle : self._stop].index_copy_(0, rows, new)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copies rows in use over others."""
        for held in (self.keys, self.values):
            held.index_copy_(0, targets, held[sources])

    def shrink(self) -> None:
        """Takes a smaller room when more than a fifth of the rows is not in use."""
        rows = self.keys.shape[0]
        if self.room_rows > rows + rows // 4:
            self._move(rows, self.keys.shape[-2])

    def _move(self, rows: int, stop: int, spare: int = 0) -> None:
        """Copies what is in use to a new room, where it ends at ``stop``.

        It has space for ``spare`` positions after that, and for a quarter more.
        """
        used_rows, used = self.keys.shape[0], self.keys.shape[-2]
        length = (stop + spare) + (stop + spare) // 4 + 16
        rooms = []
        for held in (self.keys, self.values):
            room = held.new_empty((rows, held.shape[1], length, held.shape[3]))
            room[:used_rows, :, stop - used : stop] = held
            rooms.append(room)
        self._rooms, self._stop = (rooms[0], rooms[1]), stop
        self.show(used_rows, used)


def new_cache() -> Cache:
    """An empty cache for one batch; layers appear at the first forward pass."""
    return Cache(layer_class_to_replicate=RowLayer)


def trim(cache: Cache, length: int) -> None:
    """Drops all but the last ``length`` positions."""
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
    """Puts the rows ``taken`` of ``other``, their last ``length`` positions, at ``places``.

    These are rows of ``cache`` that nobody needs, or follow its last one. most_rows: that there
    ever will be. What others need is whole at every moment, also after a failure on the way.
    """
    layers = list(zip(cache.layers, other.layers, strict=True))
    rows = max(layers[0][0].keys.shape[0], max(places) + 1)
    window = max(cache.get_seq_length(), length)
    for mine, _ in layers:
        mine.reserve(rows, window, most_rows)
    # Made once: to a GPU each is a copy that waits for what it computes.
    sources, targets = (_index(cache, numbers) for numbers in (taken, places))
    for mine, theirs in layers:
        new = (held[:, :, -length:][sources] for held in (theirs.keys, theirs.values))
        mine.write(targets, *new, window=window)
    for mine, _ in layers:
        mine.show(rows, window)


def keep_rows(cache: Cache, rows: Sequence[int]) -> list[int]:
    """Keeps ``rows`` and drops all others; returns the new order, as indices of old rows.

    Only rows behind the first ``len(rows)`` move. What is kept is whole at every moment, also after
    a failure on the way.
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
    """Gives back the room of rows that are no longer in use, once that is much."""
    for layer in cache.layers:
        layer.shrink()


def _index(cache: Cache, rows: Sequence[int]) -> Tensor:
    return torch.as_tensor(rows, device=cache.layers[0].keys.device)
