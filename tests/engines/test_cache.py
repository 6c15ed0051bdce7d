"""Rows of a cache hold their own keys and values while others join, leave, grow or fail."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import Cache

from rlforge.engines.cache import join_rows, keep_rows, new_cache, shrink, trim

LAYERS, HEADS, SIZE, MOST = 3, 2, 4, 12


class Book:
    """What a cache must hold: one list of key vectors per row and layer; values are keys plus 1."""

    def __init__(self, cache: Cache, rows: list[Tensor]) -> None:
        self.cache, self.rows = cache, rows

    @classmethod
    def read(cls, lengths: list[int], draw: torch.Generator) -> Book:
        """Prompts of ``lengths``, with rubbish where they are padded."""
        width, cache = max(lengths), new_cache()
        keys = torch.randn(LAYERS, len(lengths), HEADS, width, SIZE, generator=draw)
        for layer in range(LAYERS):
            cache.update(keys[layer], keys[layer] + 1, layer)
        return cls(cache, [keys[:, i, :, width - n :] for i, n in enumerate(lengths)])

    def grow(self, draw: torch.Generator) -> None:
        new = torch.randn(LAYERS, len(self.rows), HEADS, 1, SIZE, generator=draw)
        for layer in range(LAYERS):
            self.cache.update(new[layer], new[layer] + 1, layer)
        self.rows = [torch.cat([row, new[:, i]], dim=2) for i, row in enumerate(self.rows)]

    def check(self, ignored: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        for number, layer in enumerate(self.cache.layers):
            assert layer.keys.shape[0] == len(self.rows)
            assert layer.keys.isfinite().all()
            assert layer.values.isfinite().all()
            for i, row in enumerate(self.rows):
                if i not in ignored:
                    held = slice(layer.keys.shape[2] - row.shape[2], None)
                    assert torch.equal(layer.keys[i, :, held], row[number])
                    assert torch.equal(layer.values[i, :, held], row[number] + 1)

    def join(self, other: Book, taken: list[int], places: list[int]) -> None:
        length = max(other.rows[i].shape[2] for i in taken)
        join_rows(self.cache, other.cache, taken, places, length=length, most_rows=MOST)
        self.rows += [other.rows[taken[0]]] * (max(places) + 1 - len(self.rows))
        for place, i in zip(places, taken, strict=True):
            self.rows[place] = other.rows[i]


@pytest.fixture(autouse=True)
def rubbish(monkeypatch):
    """Memory that was never written is NaN, which stays NaN under an attention weight of zero."""
    fresh = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: fresh(*a, **k).fill_(torch.nan))


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_their_own_keys_and_values_after_any_history(seed):
    rng, draw = random.Random(seed), torch.Generator().manual_seed(seed)
    book = Book.read([rng.randint(1, 9) for _ in range(3)], draw)
    for _ in range(40):
        for _ in range(rng.randint(0, 6)):
            book.grow(draw)
        book.check()
        choice = rng.random()
        if choice < 0.6:
            other = Book.read([rng.randint(1, 30) for _ in range(rng.randint(1, 4))], draw)
            taken = sorted(rng.sample(range(len(other.rows)), rng.randint(1, len(other.rows))))
            gone = sorted(rng.sample(range(len(book.rows)), rng.randint(0, 1)))
            end = len(book.rows)
            places = [*gone, *range(end, end + len(taken))][: len(taken)]
            if max(places) < MOST:
                book.join(other, taken, places)
        elif choice < 0.9:
            kept = sorted(rng.sample(range(len(book.rows)), rng.randint(1, len(book.rows))))
            rows = book.rows
            book.rows = [rows[i] for i in keep_rows(book.cache, kept)]
            assert sorted(map(id, book.rows)) == sorted(id(rows[i]) for i in kept)
            shrink(book.cache)
        else:
            trim(book.cache, max(row.shape[2] for row in book.rows))
        book.check()


def test_a_join_in_free_places_copies_no_other_row():
    draw = torch.Generator().manual_seed(0)
    book = Book.read([5, 9, 7, 6], draw)
    book.grow(draw)
    rooms = [layer.keys.untyped_storage().data_ptr() for layer in book.cache.layers]
    for place in (2, 0, 3):
        book.join(Book.read([4, 3], draw), [0], [place])
        book.grow(draw)
        book.check()
    assert rooms == [layer.keys.untyped_storage().data_ptr() for layer in book.cache.layers]


def test_a_batch_that_grows_row_by_row_is_seldom_copied():
    draw = torch.Generator().manual_seed(0)
    book = Book.read([5] * 16, draw)
    rooms = set()
    for row in range(16, 64):
        other = Book.read([5], draw)
        join_rows(book.cache, other.cache, [0], [row], length=5, most_rows=64)
        rooms.add(book.cache.layers[0].keys.untyped_storage().data_ptr())
        assert book.cache.layers[0].buffer_rows <= min(64, (row + 1) * 9 // 8)
    assert len(rooms) < 16


def test_the_memory_of_rows_that_left_is_released():
    draw = torch.Generator().manual_seed(0)
    book = Book.read([5] * 10, draw)
    book.grow(draw)
    keep_rows(book.cache, range(8))
    shrink(book.cache)
    assert book.cache.layers[0].buffer_rows == 10
    keep_rows(book.cache, range(7))
    shrink(book.cache)
    assert book.cache.layers[0].buffer_rows == 7


class Shortage:
    """The first ``allowed`` calls of the tensor method succeed, later ones lack memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, allowed: int) -> None:
        self.allowed = allowed
        real = getattr(Tensor, method)

        def scarce(*args: Any, **options: Any) -> Any:
            self.allowed -= 1
            if self.allowed < 0:
                raise torch.OutOfMemoryError("no room")
            return real(*args, **options)

        monkeypatch.setattr(Tensor, method, scarce)


def _join(book: Book, other: Book) -> None:
    join_rows(book.cache, other.cache, [0, 1], [1, 4], length=40, most_rows=MOST)


@pytest.mark.parametrize("allowed", range(6))
@pytest.mark.parametrize(
    ("method", "act", "lost"),
    [
        ("new_empty", _join, {1}),  # the row that was to be replaced
        ("index_copy_", _join, {1}),
        ("index_copy_", lambda book, _: keep_rows(book.cache, [1, 2, 3]), {0}),
        ("new_empty", lambda book, _: shrink(book.cache), set()),
    ],
)
def test_what_fails_between_layers_leaves_other_rows_intact(
    monkeypatch, method, act, lost, allowed
):
    draw = torch.Generator().manual_seed(0)
    book, other = Book.read([5, 9, 7, 4], draw), Book.read([40, 3], draw)
    if not lost:  # there must be something to give back
        book.rows = [book.rows[i] for i in keep_rows(book.cache, [1, 3])]
    with monkeypatch.context() as context:
        Shortage(context, method, allowed)
        with pytest.raises(torch.OutOfMemoryError):
            act(book, other)
    book.check(ignored=lost)
    book.grow(draw)
    book.check(ignored=lost)
    if act is _join:
        book.join(other, [0, 1], [1, 4])
        book.check()
