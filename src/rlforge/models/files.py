"""Names of model files, the cache of models that rlforge makes, loading without progress bars."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rlforge.system.files import atomic_path

#: Names as Hugging Face and PEFT have them.
MODEL_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

#: A critic's weights in the directory of its adapter or tiny model: weight [1, H] and bias [1].
VALUE_HEAD = "value_head.safetensors"

#: Folder in that of a version with the average of the run's weights.
AVERAGE = "average"

#: Environment variable that names another cache directory.
CACHE_VARIABLE = "RLFORGE_CACHE"


def cache_dir() -> Path:
    """``$RLFORGE_CACHE``, or ``~/.cache/rlforge/models``."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "rlforge" / "models"


def made_once(name: str, make: Callable[[Path], None], progress: Callable[[str], None]) -> Path:
    """The cached directory ``name``; ``make(directory)`` fills it when it does not exist.

    It is filled under another name and renamed when complete, so an existing directory is complete.
    A lock makes a second process wait for the first instead of repeating the work; ``progress`` is
    called with a line about that.
    """
    target = cache_dir() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.with_name(f"{name}.lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress(f"another process is making {name}: waiting for it")
        lock.acquire()
    try:
        if not target.is_dir():
            with atomic_path(target) as work:
                work.mkdir()
                make(work)
    finally:
        lock.release()
    return target


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switches transformers' progress bars off in the block; downloads still show theirs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
