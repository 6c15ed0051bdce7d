"""Python's garbage collector in processes that hold a model."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


def freeze_gc() -> None:
    """Exclude all objects made so far from garbage collection."""
    # Imports create hundreds of thousands of objects that stay. Each full collection would traverse
    # all of them, and the whole process would wait for it.
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def frozen_gc() -> Iterator[None]:
    """``freeze_gc`` until the block ends; nothing where this process has frozen objects already."""
    mine = gc.get_freeze_count() == 0
    if mine:
        freeze_gc()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()
