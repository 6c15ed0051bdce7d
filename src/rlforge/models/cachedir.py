"""Where models that rlforge makes itself are kept: one directory each, made once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rlforge.system.files import atomic_path

#: Environment variable that names another cache directory.
CACHE_VARIABLE = "RLFORGE_CACHE"


def cache_dir() -> Path:
    """``$RLFORGE_CACHE``, or ``~/.cache/rlforge/models``."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "rlforge" / "models"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The cached directory ``name``; ``make(directory)`` fills it when it does not exist.

    It is filled under another name and renamed when complete, so a directory that exists is
    whole. A lock makes a second process wait for the first instead of doing the work again.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{name}.lock")):
        if target.is_dir():
            return target
        with atomic_path(target) as work:
            work.mkdir()
            make(work)
    return target
