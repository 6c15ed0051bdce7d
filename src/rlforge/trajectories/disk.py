"""What a full disk comes to: one message, with the room there is."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from rlforge.errors import StoreError
from rlforge.system.files import readable_size, says_full_disk


@contextlib.contextmanager
def full_disk_explained(target: Path) -> Iterator[None]:
    """Turn a full disk, met while ``target`` is written, into a StoreError; all else passes."""
    try:
        yield
    except Exception as error:
        if not says_full_disk(error):
            raise
        folder = next(path for path in (target, *target.absolute().parents) if path.exists())
        free = readable_size(shutil.disk_usage(folder).free)
        raise StoreError(
            f"no space on disk for {target}: {free} free; free some; what was written before is "
            "kept"
        ) from error
