"""Stores of older layouts, rewritten.

In version 1 a window was a folder with files ``KIND-FIRST-LAST-CRC.parquet`` of decisions and of
outcomes, and what was being written lay in segments of a log. Rows may occur twice, in a segment
and a file, or in a file and one that it was merged into. Version 2 differs from the present one in
the rows of the database only: it had compressed JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rlforge.system.files import sync
from rlforge.tracking.files import write_json
from rlforge.trajectories.columns import DECISIONS
from rlforge.trajectories.layout import ABOUT, SCHEMA_VERSION, StoreLayout, write_window
from rlforge.trajectories.open_windows import errors_explained

log = logging.getLogger(__name__)

_FOLDER = re.compile(r"\d{4}(-\d\d){3}(\.\d\d){1,2}")
_FILE = re.compile(r"(decisions|outcomes)-\d{8}-\d{8}-([0-9a-f]{8})\.parquet")
_MAGIC = b"\xf5RLF"
#: Magic, kind, length of the payload, CRC-32 of kind and payload; little-endian.
_HEAD = struct.Struct("<4sBII")
#: Kinds of frames with rows, and how much less the kind of the frame with their schema is.
_ROWS = {3: "decisions", 4: "outcomes"}
_TO_SCHEMA = 2

_Rows = dict[str, dict[str, dict[str, Any]]]
"""Rows of a window by kind and id."""


def upgrade(root: Path) -> bool:
    """Rewrite the store in ``root`` if it is of an older version; returns whether it was.

    Damaged files are named in a warning and left where they are. After an interruption, the next
    call begins again.
    """
    layout = StoreLayout(root=root)
    version = layout.version()
    if version < SCHEMA_VERSION:
        log.info("%s has version %s of the store's layout and is rewritten", root, version)
        if version == 1:
            _rewrite_folders(layout)
        else:
            _close_windows(layout)
        write_json(root / ABOUT, {"schema_version": SCHEMA_VERSION})
        sync(root / ABOUT)
        sync(root)
    _delete_old(layout)
    return version < SCHEMA_VERSION


# ---------------------------------------------------------------- version 2


def _close_windows(layout: StoreLayout) -> None:
    """Move all windows of the database into files."""
    with (
        errors_explained(layout.open_windows),
        contextlib.closing(sqlite3.connect(layout.open_windows)) as database,
    ):
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'decisions'").fetchone():
            return
        query = "SELECT * FROM decisions ORDER BY windowId, agentId, timestamp, id"
        for window_id, packed in itertools.groupby(database.execute(query), lambda row: row[0]):
            before = [file for file in layout.files() if file.window_id == window_id]
            rows = [_unpacked(*row) for row in packed]
            path = write_window(layout, window_id, [pa.Table.from_pylist(rows, schema=DECISIONS)])
            for file in before:  # the last writer was interrupted while it moved the window
                if file.path != path and zlib.crc32(file.path.read_bytes()) == file.crc:
                    file.path.unlink()
        database.execute("DROP TABLE decisions")


def _unpacked(
    window_id: str,
    one: str,
    agent_id: str,
    timestamp: float,
    complete: int,
    facts: str,
    texts: bytes,
    following: bytes | None,
) -> dict[str, Any]:
    """A row of the database, in the order of its columns."""
    state, observation, completion = json.loads(_text(texts))
    return {
        **json.loads(facts),
        "windowId": window_id,
        "id": one,
        "agentId": agent_id,
        "timestamp": timestamp,
        "complete": bool(complete),
        "state": state,
        "nextState": None if following is None else _text(following),
        "observation": observation,
        "completion": completion,
    }


def _text(compressed: bytes) -> str:
    """A text of the database: its length in four bytes, then its content compressed."""
    size = int.from_bytes(compressed[:4], "little")
    return bytes(pa.decompress(compressed[4:], size, "zstd", asbytes=True)).decode()


# ---------------------------------------------------------------- version 1


def _rewrite_folders(layout: StoreLayout) -> None:
    for file in layout.files():  # of an interrupted call
        file.path.unlink()
    rest = _read_log(layout.root / "log")
    for folder in _folders(layout):
        window_id = folder.name.replace(".", ":")
        _add_files(folder, rows := rest.pop(window_id, {}))
        _write(layout, window_id, rows)
    for window_id, rows in rest.items():
        _write(layout, window_id, rows)


def _write(layout: StoreLayout, window_id: str, rows: _Rows) -> None:
    outcomes = rows.get("outcomes", {})
    decisions = [
        {**row, **(outcomes[one] | {"complete": True} if one in outcomes else {})}
        for one, row in rows.get("decisions", {}).items()
    ]
    if decisions:
        decisions.sort(key=lambda row: (row["agentId"], row["timestamp"], row["id"]))
        write_window(layout, window_id, [pa.Table.from_pylist(decisions, schema=DECISIONS)])


def _folders(layout: StoreLayout) -> list[Path]:
    """Those of the windows, in order of time."""
    return sorted(path for path in layout.windows.iterdir() if _FOLDER.fullmatch(path.name))


def _is_damaged(path: Path, match: re.Match[str]) -> bool:
    return zlib.crc32(path.read_bytes()) != int(match[2], 16)


def _add_files(folder: Path, rows: _Rows) -> None:
    for path in sorted(folder.iterdir()):
        if match := _FILE.fullmatch(path.name):
            if _is_damaged(path, match):
                log.warning("%s is damaged and stays where it is", path)
                continue
            _add(rows, match[1], pq.ParquetFile(path).read())


def _add(rows: _Rows, kind: str, table: pa.Table | pa.RecordBatch) -> None:
    rows.setdefault(kind, {}).update({row["id"]: row for row in table.to_pylist()})


def _read_log(folder: Path) -> dict[str, _Rows]:
    """The rows of all segments, by window."""
    windows: dict[str, _Rows] = {}
    for path in sorted(folder.glob("*.log")) if folder.is_dir() else []:
        schemas: dict[int, pa.Schema] = {}
        for kind, payload in _frames(path.read_bytes()):
            if kind not in _ROWS:
                schemas[kind] = pa.ipc.read_schema(pa.py_buffer(payload))
                continue
            schema = schemas[kind - _TO_SCHEMA]
            batch = pa.ipc.read_record_batch(pa.py_buffer(payload), schema)
            for row in batch.to_pylist():
                of_kind = windows.setdefault(row["windowId"], {}).setdefault(_ROWS[kind], {})
                of_kind[row["id"]] = row
    return windows


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and payload of each frame that is whole, in order."""
    place = 0
    while (place := data.find(_MAGIC, place)) >= 0 and place + _HEAD.size <= len(data):
        _, kind, length, crc = _HEAD.unpack_from(data, place)
        payload = data[place + _HEAD.size : place + _HEAD.size + length]
        if len(payload) == length and zlib.crc32(payload, kind) == crc:
            yield kind, payload
            place += _HEAD.size + length
        else:
            place += 1


def _delete_old(layout: StoreLayout) -> None:
    """Delete what the old layout held; damaged files stay."""
    shutil.rmtree(layout.root / "log", ignore_errors=True)
    for folder in _folders(layout):
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match is None or not _is_damaged(path, match):
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
