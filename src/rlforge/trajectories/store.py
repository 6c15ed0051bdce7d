"""The trajectory store: every decision on disk before ``append`` returns.

Decisions and outcomes are appended to a log and synced; full segments of the log move into parquet
files by window (``layout``, ``compaction``). A process that is killed loses no row whose ``append``
has returned, and the next writer continues where it stopped.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rlforge.config.continuous import StoreConfig
from rlforge.errors import StoreError
from rlforge.system.files import sync
from rlforge.system.locks import RunLock
from rlforge.tracking.files import write_json
from rlforge.trajectories.columns import decision_row, outcome_row
from rlforge.trajectories.compaction import clean, compact_segment, merge_small
from rlforge.trajectories.layout import ABOUT, SCHEMA_VERSION, StoreLayout, full_disk_explained
from rlforge.trajectories.reader import StoreReader
from rlforge.trajectories.records import Decision, DecisionOutcome
from rlforge.trajectories.wal import GroupCommit, SegmentWriter, rows_frame

#: Ids kept in memory. Beyond that, ids of the least recently written windows are read again.
_MOST_IDS = 1_000_000
_MOST_WINDOWS = 64

_Row = Mapping[str, Any]
#: Agent and window of a decision.
_Place = tuple[str, str]


class WindowIds:
    """The ids in each window that is being written."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._by_window: OrderedDict[str, set[str]] = OrderedDict()

    def of(self, window_id: str) -> set[str]:
        """The ids of the decisions in a window."""
        if window_id not in self._by_window:
            index = self._reader.index(window_id)
            self._by_window[window_id] = {row["id"] for row in index}
        self._by_window.move_to_end(window_id)
        return self._by_window[window_id]

    def add(self, rows: Iterable[_Row]) -> None:
        """Add rows that are being written; ``of`` was called for their windows."""
        for row in rows:
            self._by_window[row["windowId"]].add(row["id"])
        while len(self._by_window) > _MOST_WINDOWS or (
            len(self._by_window) > 1 and sum(map(len, self._by_window.values())) > _MOST_IDS
        ):
            self._by_window.popitem(last=False)

    def remove(self, rows: Iterable[_Row]) -> None:
        """Remove rows that could not be written."""
        for row in rows:
            self._by_window.get(row["windowId"], set()).discard(row["id"])


class OpenDecisions:
    """Decisions whose outcome is not known yet, with their agent and window."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._places: OrderedDict[str, _Place] = OrderedDict()
        self._taken: set[str] = set()

    def add(self, rows: Iterable[_Row]) -> None:
        """Add decisions that are being written; complete ones are skipped."""
        for row in rows:
            if not row["complete"]:
                self._places[row["id"]] = row["agentId"], row["windowId"]
        while len(self._places) > _MOST_IDS:
            self._places.popitem(last=False)

    def remove(self, rows: Iterable[_Row]) -> None:
        """Remove rows that could not be written."""
        for row in rows:
            self._places.pop(row["id"], None)

    def take(self, ids: Collection[str]) -> dict[str, _Place]:
        """Those of ``ids`` that are open, to be completed: ``done`` or ``give_back`` must follow.

        Raises StoreError, and takes none, if one is not in the store.
        """
        sought = {one for one in ids if one not in self._places and one not in self._taken}
        complete = self._search(sought) if sought else set()
        taken = {
            one: self._places[one] for one in ids if one not in complete and one not in self._taken
        }
        for one in taken:
            del self._places[one]
        self._taken |= taken.keys()
        return taken

    def done(self, taken: Mapping[str, _Place]) -> None:
        """Their outcomes were written."""
        self._taken -= taken.keys()

    def give_back(self, taken: Mapping[str, _Place]) -> None:
        """Their outcomes could not be written."""
        self._taken -= taken.keys()
        self._places.update(taken)

    def _search(self, sought: set[str]) -> set[str]:
        """Look for ids on disk, newest windows first; returns those that are complete."""
        left, complete = set(sought), set()
        for window_id in reversed(self._reader.window_ids()):
            index = self._reader.index(window_id)
            # The other open decisions of the window are likely to be completed next.
            self.add(row for row in index if row["id"] not in self._taken)
            complete |= {row["id"] for row in index if row["complete"] and row["id"] in left}
            left -= {row["id"] for row in index}
            if not left:
                return complete
        raise StoreError(
            f"no decision {min(left)!r} in {self._reader.layout.root}; its outcome cannot be kept"
        )


log = logging.getLogger(__name__)


def store_folder(config: StoreConfig, run_dir: Path) -> Path:
    """The folder of a run's store."""
    return run_dir / "store" if config.path is None else Path(config.path)


class TrajectoryStore(StoreReader):
    """The store in the folder ``root``, created if missing, open for reading and writing.

    One process writes at a time; its threads may append concurrently and share the syncs of the
    disk (from an event loop: ``asyncio.to_thread``). Raises RunError naming the process that
    writes to it already, StoreError as ``StoreReader`` does, ConfigError for invalid settings.

    Example:
        >>> import tempfile
        >>> from rlforge.trajectories.records import Metadata
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

    def __init__(self, root: Path | str, config: StoreConfig | None = None) -> None:
        config = config or StoreConfig()
        self._config = config
        root = Path(root)
        with full_disk_explained(root):
            _prepare(root)
        super().__init__(root)
        self._writer_lock = RunLock(root)
        self._writer_lock.acquire()
        self._closed = False
        self._segment: SegmentWriter | None = None
        self._commit = GroupCommit(self._write)
        self._state = threading.Lock()
        self._ids = WindowIds(self)
        self._open = OpenDecisions(self)
        try:
            with full_disk_explained(root):
                clean(self.layout)
                self._next = _next_number(self.layout)
                self._compact_closed()
        except BaseException:
            self._writer_lock.release()
            raise

    def append(self, decisions: Sequence[Decision]) -> int:
        """Write decisions; they are on disk when this returns.

        Returns how many were new: a decision whose id its window holds already is skipped, so that
        a caller that was interrupted may repeat the call. Raises RlforgeError, and writes none of
        them, if one cannot be stored or the disk is full.
        """
        rows = {decision.id: decision_row(decision) for decision in decisions}
        with self._state:
            for window_id in {row["windowId"] for row in rows.values()}:
                known = self._ids.of(window_id)
                rows = {
                    decision_id: row
                    for decision_id, row in rows.items()
                    if row["windowId"] != window_id or decision_id not in known
                }
            if not rows:
                return 0
            fresh = list(rows.values())
            frame = rows_frame("decisions", fresh)
            self._ids.add(fresh)
            self._open.add(fresh)
            # Queued under the lock, so that no outcome precedes its decision in the log.
            ticket = self._commit.enter(frame)
        try:
            self._commit.wait(ticket)
        except BaseException:
            with self._state:
                self._ids.remove(fresh)
                self._open.remove(fresh)
            raise
        return len(fresh)

    def complete(self, outcomes: Sequence[DecisionOutcome]) -> int:
        """Write the outcomes of decisions written before; they are on disk when this returns.

        Returns how many were new: the outcome of a complete decision is skipped. Raises as
        ``append`` does, and StoreError if a decision is not in the store.
        """
        by_id = {outcome.decision_id: outcome for outcome in outcomes}
        with self._state:
            taken = self._open.take(by_id)
            if not taken:
                return 0
        try:
            rows = [
                outcome_row(by_id[decision_id], agent_id, window_id)
                for decision_id, (agent_id, window_id) in taken.items()
            ]
            self._commit.wait(self._commit.enter(rows_frame("outcomes", rows)))
        except BaseException:
            with self._state:
                self._open.give_back(taken)
            raise
        with self._state:
            self._open.done(taken)
        return len(rows)

    def compact(self) -> None:
        """Move all rows of the log into parquet files. Raises StoreError on a full disk."""
        with self._commit.paused(), full_disk_explained(self.layout.root):
            self._close_segment()
            self._compact_closed()

    def close(self) -> None:
        """Compact, and let another process write. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.compact()
        finally:
            self._writer_lock.release()
            super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, frames: Sequence[bytes]) -> None:
        """Append to the log; ``GroupCommit`` lets one thread at a time in here."""
        with full_disk_explained(self.layout.root):
            if self._segment is None:
                self._segment = SegmentWriter(self.layout.segment(self._next))
                self._next += 1
            try:
                self._segment.write(frames)
            except OSError:
                # After a failed sync the content of the file is unknown: continue in another one.
                self._close_segment()
                raise
        if self._segment.size >= self._config.segment_mb * 2**20:
            self._close_segment()
            try:
                self._compact_closed()
            except OSError as error:
                # The rows are safe in the log and are read from there: try again later.
                log.warning("%s: the log cannot be compacted now: %s", self.layout.root, error)

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _compact_closed(self) -> None:
        compression, least = self._config.compression, self._config.merge_files
        for number in self.layout.segments():
            for window_id in compact_segment(self.layout, number, compression):
                merge_small(self.layout, window_id, least, compression)


def _prepare(root: Path) -> None:
    """Make the folders of a new store; an existing store is left as it is."""
    layout = StoreLayout(root=root)
    if root.exists() and (not root.is_dir() or (root / ABOUT).exists() or _strangers(root)):
        return
    layout.log.mkdir(parents=True, exist_ok=True)
    layout.windows.mkdir(exist_ok=True)
    write_json(root / ABOUT, {"schema_version": SCHEMA_VERSION})
    for path in (root / ABOUT, root, root.parent):
        sync(path)


def _strangers(root: Path) -> list[Path]:
    """Files that a store without ``store.json`` cannot have: ``root`` is another folder."""
    own = ("log", "windows", RunLock.FILE)
    return [path for path in root.iterdir() if path.name not in own and path.suffix != ".tmp"]


def _next_number(layout: StoreLayout) -> int:
    files = (file for window_id in layout.window_ids() for file in layout.all_files(window_id))
    used = [*layout.segments(), *(file.last for file in files)]
    return max(used, default=0) + 1
