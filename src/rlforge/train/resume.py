"""Taking a run up again: what is dropped, and which versions must still be there."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from rlforge.system.checkpoint import checkpoint_version, list_checkpoints, prune

log = logging.getLogger(__name__)

BEFORE_ALL = -1
"""The version to rewind to when nothing can be kept: even the start is measured again."""


class Retention:
    """Which saved versions of a run stay: ``keep`` of them beside all that may be asked for again.

    Games and evaluations load versions long after newer ones are out, where they were evicted from
    an engine or the engine was restarted; a resumed run draws its opponents from those that were
    active when its state was saved. keep: None keeps all.
    """

    def __init__(self, root: Path, keep: int | None) -> None:
        """root: the folder of the checkpoints."""
        self._root, self._keep = root, keep
        self._measured: Counter[str] = Counter()
        #: Uids that a run resumed from the newest saved state asks for.
        self.resumable: Collection[str] = ()

    async def during(self, evaluation: Callable[[], Awaitable[None]], uid: str) -> None:
        """Do ``evaluation``, which asks version ``uid`` until its end."""
        self._measured[uid] += 1
        try:
            await evaluation()
        finally:
            self._measured[uid] -= 1

    def prune(self, needed: Collection[str], published: int) -> None:
        """Delete what nobody may ask for any more.

        needed: uids that training games may ask for. published: the newest version that is out;
        versions after it are on their way.
        """
        if self._keep is None:
            return
        coming = {
            path.name
            for path in list_checkpoints(self._root)
            if checkpoint_version(path) >= published
        }
        measured = {uid for uid, number in self._measured.items() if number}
        prune(self._root, self._keep, protected={*needed, *coming, *measured, *self.resumable})


def rewind(run_dir: Path, version: int) -> None:
    """Drop the checkpoints and batches made after ``version``: they will be made again.

    A run that was killed may have gone on past its newest saved state. The tracker drops the lines
    of its own files (``Tracker.resume``). Games stay: each says which version played it.
    """
    for path in list_checkpoints(run_dir / "checkpoints"):
        if checkpoint_version(path) > version:
            log.info("dropping %s, made after the state that is resumed", path.name)
            shutil.rmtree(path)
    for path in (run_dir / "batches").glob("batch-*.parquet"):
        if int(path.stem.removeprefix("batch-")) > version:
            path.unlink()
