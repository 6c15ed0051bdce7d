"""The decisions of a run on the Hugging Face hub, once a day."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.dataset import export_dataset
from rlforge.continuous.decisions.store import StoreReader
from rlforge.errors import RlforgeError, counted
from rlforge.record.files import read_json, write_json
from rlforge.system.hub import push_folder

log = logging.getLogger(__name__)

_DAY = 24 * 3600.0


class DailyPush:
    """Replaces the dataset ``store.push``, if any, once a day from ``store.push_hour`` on."""

    def __init__(
        self,
        config: StoreConfig,
        reader: StoreReader,
        run_dir: Path,
        push: Callable[..., None] = push_folder,
    ) -> None:
        self._config, self._reader, self._run_dir, self._push = config, reader, run_dir, push
        self._file = run_dir / "pushed.json"
        self._until: float | None = (read_json(self._file) or {}).get("until")

    async def after_window(self, begin: float, end: float) -> None:
        """Push where the hour came since the last push, or else since ``begin``."""
        if self._until is None:
            self._until = begin
        if self._config.push is None or self._days(end) == self._days(self._until):
            return
        try:
            rows = await asyncio.to_thread(self._replace, self._config.push)
        # A failure of the hub must not end a run.
        except (RlforgeError, OSError) as error:
            log.warning("%s; it is tried again after the next window", error)
            return
        self._until = end
        write_json(self._file, {"until": end, "decisions": rows})

    def _days(self, moment: float) -> int:
        # The number of pushes that were due by then.
        return int((moment - self._config.push_hour * 3600) // _DAY)

    def _replace(self, repo: str) -> int:
        with tempfile.TemporaryDirectory() as folder:
            dataset = Path(folder) / "dataset"
            rows = export_dataset(self._reader, dataset, run_dir=self._run_dir)
            self._push(
                dataset,
                repo,
                counted(rows, "decision"),
                # Private, until its owner makes it public on the hub.
                public=False,
                say=log.info,
                kind="dataset",
                kept=False,
            )
        return rows
