"""The trajectory store: every decision on disk before ``append`` returns.

Windows that are being written lie in a database (``open_windows``); the least recently written ones
move into parquet files (``layout``). The next writer continues where a killed one stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from rlforge.continuous.config.continuous import StoreConfig
from rlforge.continuous.decisions.columns import decision_row, outcome_row
from rlforge.continuous.decisions.layout import (
    ABOUT,
    GROUP_ROWS,
    SCHEMA_VERSION,
    StoreLayout,
    full_disk_explained,
    write_window,
)
from rlforge.continuous.decisions.open_windows import OpenWindows, Row
from rlforge.continuous.decisions.reader import StoreReader
from rlforge.continuous.decisions.records import Decision, DecisionOutcome
from rlforge.errors import StoreError
from rlforge.record.files import write_json
from rlforge.system.files import sync
from rlforge.system.locks import RunLock

log = logging.getLogger(__name__)

#: MiB of windows that are being written; beyond it the least recently written one is closed: its
#: decisions move from the database into a parquet file.
OPEN_MB = 32.0

_FIND = "SELECT windowId, id, complete FROM decisions WHERE id IN (SELECT unnest($ids))"


def store_folder(config: StoreConfig, run_dir: Path) -> Path:
    """The folder of a run's store."""
    return run_dir / "store" if config.path is None else Path(config.path)


class TrajectoryStore(StoreReader):
    """The store in the folder ``root``, created if missing, open for reading and writing.

    One process writes at a time; its threads may append concurrently (from an event loop:
    ``asyncio.to_thread``). Raises RunError naming the process that writes to it already, StoreError
    as ``StoreReader`` does, ConfigError for invalid settings.

    Example:
        >>> import tempfile
        >>> from rlforge.continuous.decisions.records import Metadata
        >>> decision = Decision(
        ...     id="noise-1-000001",
        ...     agent_id="noise-1",
        ...     window_id="2024-11-13-10:00",
        ...     state={"portfolio": {"balance": 1000.0}},
        ...     action={"type": "NO_OP"},
        ...     timestamp=1731492000.0,
        ...     metadata=Metadata(provider="scripted:noise"),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder, TrajectoryStore(folder) as store:
        ...     written = store.append([decision]), store.append([decision])
        ...     [stored] = store.decisions(agent_id="noise-1")
        >>> written, stored == decision
        ((1, 0), True)
    """

    def __init__(self, root: Path | str, open_mb: float = OPEN_MB) -> None:
        self._most_open = open_mb * 2**20
        self._closed = False
        self._lock = threading.RLock()
        root = Path(root)
        self._writer_lock = RunLock(root)
        with full_disk_explained(root):
            _prepare(StoreLayout(root=root))
            self._writer_lock.acquire()
            try:
                super().__init__(root)
                self._open = OpenWindows(self.layout.open_windows)
                for file in self.layout.files():
                    if file.window_id in self._open.sizes and self.is_sound(file):
                        file.path.unlink()  # the writer was interrupted while it moved the window
            except BaseException:
                self._writer_lock.release()
                raise

    def append(self, decisions: Sequence[Decision]) -> int:
        """Write decisions, on disk when this returns; returns how many were new to their windows.

        Raises RlforgeError, and writes none, if one cannot be stored or the disk is full.
        """
        rows = [decision_row(decision) for decision in decisions]
        with self._lock, full_disk_explained(self.layout.root):
            return self._insert(rows)

    def append_table(self, rows: pa.Table) -> int:
        """As ``append``, for checked rows with different ids; new windows become files at once."""
        new = 0
        with self._lock, full_disk_explained(self.layout.root):
            held = set(self.window_ids())
            for window_id in pc.unique(rows["windowId"]).to_pylist():
                part = rows.filter(pc.equal(rows["windowId"], window_id))
                if window_id in held:
                    new += self._insert(part.to_pylist())
                else:
                    order = [(name, "ascending") for name in ("agentId", "timestamp", "id")]
                    write_window(self.layout, window_id, [part.sort_by(order)])
                    new += len(part)
        return new

    def complete(self, outcomes: Sequence[DecisionOutcome]) -> int:
        """Write outcomes of decisions, on disk when this returns; returns how many had none.

        Raises as ``append`` does, and StoreError if a decision is not in the store.
        """
        rows = {row["id"]: row for row in map(outcome_row, outcomes)}
        with self._lock, full_disk_explained(self.layout.root):
            if left := rows.keys() - self._open.find(rows).keys():
                found = self._query(_FIND, None, texts=False, ids=list(left)).to_pylist()
                if unknown := left - {row["id"] for row in found}:
                    raise StoreError(
                        f"no decision {min(unknown)!r} in {self.layout.root}; its outcome cannot "
                        "be kept"
                    )
                for window_id in {row["windowId"] for row in found if not row["complete"]}:
                    self._reopen(window_id)
            new = self._open.complete(rows)
            self._close_some()
        return new

    def delete(self, window_ids: Collection[str]) -> None:
        """Delete windows with their decisions; those that are not there are skipped."""
        with self._lock:
            for window_id in self._open.sizes.keys() & set(window_ids):
                self._open.delete(window_id)
            for file in self.layout.files():
                if file.window_id in window_ids:
                    file.path.unlink()

    def compact(self) -> None:
        """Move all open windows into parquet files. Raises StoreError on a full disk."""
        with self._lock, full_disk_explained(self.layout.root):
            for window_id in list(self._open.sizes):
                self._close_window(window_id)

    def close(self) -> None:
        """Compact, and let another process write. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self.compact()
            finally:
                self._open.close()
                self._writer_lock.release()
                super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _insert(self, rows: Sequence[Row]) -> int:
        for window_id in {row["windowId"] for row in rows} - self._open.sizes.keys():
            closed = self._query("SELECT id FROM decisions", (window_id,), texts=False)
            known = set(closed["id"].to_pylist())
            rows = [r for r in rows if r["windowId"] != window_id or r["id"] not in known]
            if known and any(row["windowId"] == window_id for row in rows):
                self._reopen(window_id)
        new = self._open.insert(rows)
        self._close_some()
        return new

    def _reopen(self, window_id: str) -> None:
        """Move a closed window back into the database."""
        self._open.insert(self.rows((window_id,)).to_pylist())
        for file in self.layout.files():
            if file.window_id == window_id and self.is_sound(file):
                file.path.unlink()

    def _close_some(self) -> None:
        """Close the windows written least recently while the open ones are too large."""
        sizes = self._open.sizes
        while len(sizes) > 1 and sum(sizes.values()) > self._most_open:
            try:
                self._close_window(next(iter(sizes)))
            except OSError as error:
                # The rows are safe in the database and are read from there: try again later.
                log.warning("%s: no window can be closed now: %s", self.layout.root, error)
                return

    def _close_window(self, window_id: str) -> None:
        """Move an open window into a file."""
        write_window(self.layout, window_id, self._open.tables(window_id, GROUP_ROWS))
        self._open.delete(window_id)


def _prepare(layout: StoreLayout) -> None:
    """Make the folders of a new store; an existing store is left as it is, others are refused."""
    root, begun = layout.root, (layout.windows.name, RunLock.FILE)
    if root.exists() and not (
        root.is_dir() and all(p.name in begun or p.suffix == ".tmp" for p in root.iterdir())
    ):
        layout.version()
        return
    layout.windows.mkdir(parents=True, exist_ok=True)
    write_json(root / ABOUT, {"schema_version": SCHEMA_VERSION})
    for path in (root / ABOUT, root, root.parent):
        sync(path)
