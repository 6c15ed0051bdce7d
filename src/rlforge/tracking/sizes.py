"""What a run directory takes on disk, and the keys that limit it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from rlforge.tracking.files import open_run
from rlforge.types import value

#: Parts that grow with a run -> the keys that end or limit it.
_LIMITS = {
    "checkpoints": ("learner.keep_checkpoints",),
    "store": ("store.keep_windows",),
    "scores": ("store.keep_windows",),
    "games": ("collector.save_games",),
    "batches": ("buffer.save_batches",),
    "deployments": ("deployment.keep",),
}


@value
class PartSize:
    """A file or folder of a run directory.

    size: bytes. limits: keys of the configuration that keep it small; empty: it stays small.
    """

    name: str
    size: int
    files: int
    limits: tuple[str, ...]


@value
class RunSize:
    """The parts of a run directory, largest first; free: bytes left on its disk."""

    parts: tuple[PartSize, ...]
    free: int

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


def run_size(run_dir: Path) -> RunSize:
    """Measure a run, also one that is under way. Raises RlforgeError where there is none."""
    open_run(run_dir)
    parts = []
    for path in run_dir.iterdir():
        sizes = []
        for file in path.rglob("*") if path.is_dir() else (path,):
            with contextlib.suppress(FileNotFoundError):  # the run deleted it meanwhile
                if file.is_file() and not file.is_symlink():
                    sizes.append(file.stat().st_size)
        limits = _LIMITS.get(path.name, ())
        size = PartSize(name=path.name, size=sum(sizes), files=len(sizes), limits=limits)
        parts.append(size)
    return RunSize(
        parts=tuple(sorted(parts, key=lambda part: (-part.size, part.name))),
        free=shutil.disk_usage(run_dir).free,
    )
