"""From log segments to parquet files by window, and from many small files to one."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlforge.system.files import atomic_path, sync
from rlforge.trajectories.layout import DataFile, StoreLayout, file_name, live
from rlforge.trajectories.wal import read_segment

log = logging.getLogger(__name__)

#: Compressed bytes up to which files of one window are merged: merging more would delay writers.
_MERGE_BYTES = 8 << 20
#: Rows of a group, which a reader of one agent skips or decodes whole. Files sorted by agent with
#: groups of 512 take it half the time that those of 2,048 do, and 4 % more room.
_GROUP_ROWS = 512
#: Columns with repeated values; the others are long texts that differ.
_DICTIONARY = ["agentId", "windowId", "metadata.provider", "completion.policyUid"]


def compact_segment(layout: StoreLayout, number: int, compression: str) -> set[str]:
    """Move the rows of a closed segment into the folders of their windows; returns those windows.

    May be repeated after an interruption: windows that have their rows are skipped. A segment with
    damage in it is kept as ``NUMBER.damaged``. Raises OSError as the disk does.
    """
    path = layout.segment(number)
    content = read_segment(path)
    windows: set[str] = set()
    for kind, rows in content.tables.items():
        for window_id in pc.unique(rows["windowId"]).to_pylist():
            windows.add(window_id)
            files = layout.files(window_id)
            if not any(f.kind == kind and f.covers(number) and not f.damage() for f in files):
                of_window = rows.filter(pc.equal(rows["windowId"], window_id))
                _write(layout.folder(window_id), kind, number, number, of_window, compression)
    if content.unfinished:
        log.info("%s ends in %d bytes that were never acknowledged", path, content.unfinished)
    if content.damaged:
        aside = path.with_suffix(".damaged")
        log.warning("%s: %d bytes are damaged; kept as %s", path, content.damaged, aside.name)
        path.rename(aside)
    else:
        path.unlink()
    sync(layout.log)
    return windows


def merge_small(layout: StoreLayout, window_id: str, least: int, compression: str) -> None:
    """Merge the newest files of a window if at least ``least`` of one kind are small.

    Raises OSError as the disk does; the files are then as they were.
    """
    for kind in ("decisions", "outcomes"):
        files = _newest_small([f for f in layout.files(window_id) if f.kind == kind])
        # A damaged file stays as it is: readers name it in a warning.
        if len(files) < least or any(file.damage() for file in files):
            continue
        tables = [pq.ParquetFile(file.path).read() for file in files]
        merged = pa.concat_tables(tables, promote_options="default")
        first, last = files[0].first, files[-1].last
        _write(layout.folder(window_id), kind, first, last, merged, compression)
        for file in files:
            file.path.unlink()


def clean(layout: StoreLayout) -> None:
    """Delete leftovers of an interrupted writer: unfinished files, and files merged into others."""
    for window_id in layout.window_ids():
        for unfinished in layout.folder(window_id).glob(".*.tmp"):
            unfinished.unlink()
        files = layout.all_files(window_id)
        kept = {file.path for file in live(files)}
        for file in files:
            if file.path not in kept:
                file.path.unlink()


def _newest_small(files: Sequence[DataFile]) -> list[DataFile]:
    chosen: list[DataFile] = []
    room = _MERGE_BYTES
    for file in reversed(files):
        room -= file.path.stat().st_size
        if room < 0:
            break
        chosen.insert(0, file)
    return chosen


def _write(
    folder: Path, kind: str, first: int, last: int, rows: pa.Table, compression: str
) -> None:
    order = [("agentId", "ascending"), *([("timestamp", "ascending")] * (kind == "decisions"))]
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.sort_by(order),
        sink,
        compression=compression,
        row_group_size=_GROUP_ROWS,
        use_dictionary=[name for name in _DICTIONARY if name.split(".")[0] in rows.column_names],
    )
    content = sink.getvalue()
    if not folder.is_dir():
        folder.mkdir(parents=True)
        sync(folder.parent)
    path = folder / file_name(kind, first, last, zlib.crc32(content))
    with atomic_path(path, durable=True) as work:
        work.write_bytes(content)
