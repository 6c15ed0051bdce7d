"""Names of model files, the cache of models that rlforge makes, loading without progress bars."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from rlforge.errors import ConfigError
from rlforge.system.files import atomic_path
from rlforge.system.folders import obstacle

#: Names as Hugging Face and PEFT have them.
MODEL_CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"

#: A critic's weights in the folder of its adapter or tiny model: weight [1, H] and bias [1].
VALUE_HEAD = "value_head.safetensors"

#: Folder of a version with the average of the run's weights.
AVERAGE = "average"


def cache_dir() -> Path:
    """``$RLFORGE_CACHE``, or ``~/.cache/rlforge/models``."""
    return Path(os.path.expanduser(os.environ.get("RLFORGE_CACHE") or "~/.cache/rlforge/models"))


def made_once(name: str, make: Callable[[Path], None], progress: Callable[[str], None]) -> Path:
    """The cached folder ``name``, which is complete; ``make(folder)`` fills it on first use.

    progress: called with a line where another process is at it. Raises ConfigError where the cache
    cannot be written.
    """
    target = cache_dir() / name
    if os.path.isdir(target):
        return target
    if (problem := obstacle(cache_dir())) is not None:
        raise ConfigError(
            f"the cache of models {cache_dir()}: {problem}; set RLFORGE_CACHE to a folder of yours"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # A second process waits for the first instead of repeating the work.
    with _locked(target.with_name(f"{name}.lock"), f"another process is making {name}", progress):
        if not target.is_dir():
            with atomic_path(target) as work:
                work.mkdir()
                make(work)
    return target


@contextlib.contextmanager
def _locked(file: Path, held: str, progress: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock ``file`` in the block; progress: called with ``held`` where it must wait."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        # The file is that of another user of this cache: who may read it can lock it as well.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"{held}: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """In the block, transformers shows no progress bars; downloads still show theirs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
