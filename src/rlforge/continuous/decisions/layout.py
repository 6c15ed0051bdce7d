"""The files of a store.

    store.json                       the version of the layout
    run.lock                         held by the writer
    open.sqlite                      decisions of the windows that are being written
    windows/WINDOW-CRC.parquet       the decisions of a closed window

A window lies in ``open.sqlite`` or in a file; where an interruption left both, the former counts.
CRC is the file's CRC-32, by which damage is found. There is no other index, and each file appears
whole, by a rename.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rlforge.continuous.decisions.columns import DECISIONS
from rlforge.errors import StoreError
from rlforge.system.files import atomic_path, readable_size, says_full_disk
from rlforge.types import value

#: Version of the layout and of the columns.
SCHEMA_VERSION = 3
ABOUT = "store.json"
_FILE = re.compile(r"(?P<window>\d{4}(-\d\d){3}(\.\d\d){1,2})-(?P<crc>[0-9a-f]{8})\.parquet")
#: Rows of a group, which a reader of one agent skips or decodes whole. Files sorted by agent with
#: groups of 512 take it half the time that those of 2,048 do, and 4 % more room.
GROUP_ROWS = 512
#: Columns with repeated values; the others are long texts that differ.
_DICTIONARY = ["agentId", "windowId", "metadata.provider", "completion.policyUid"]


@value
class WindowFile:
    """The parquet file of a closed window."""

    path: Path
    window_id: str
    crc: int


@value
class StoreLayout:
    """The paths of the store in folder ``root``."""

    root: Path

    @property
    def open_windows(self) -> Path:
        """The database of the windows that are being written."""
        return self.root / "open.sqlite"

    @property
    def windows(self) -> Path:
        """Folder of the closed windows."""
        return self.root / "windows"

    def files(self) -> list[WindowFile]:
        """The files of closed windows, in order of time."""
        return [
            WindowFile(
                path=path, window_id=match["window"].replace(".", ":"), crc=int(match["crc"], 16)
            )
            for path in sorted(self.windows.glob("*.parquet"))
            if (match := _FILE.fullmatch(path.name))
        ]

    def version(self) -> int:
        """The version of the layout. Raises StoreError unless ``root`` is a store."""
        file = self.root / ABOUT
        try:
            return int(json.loads(file.read_text(encoding="utf-8"))["schema_version"])
        except FileNotFoundError:
            if not self.root.exists():
                raise StoreError(f"no trajectory store {self.root}") from None
            raise StoreError(f"{self.root} is no trajectory store: it has no {ABOUT}") from None
        except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
            raise StoreError(f"{file} is damaged: {error}") from error

    def check(self) -> None:
        """Raise StoreError unless ``root`` is a store that this rlforge reads."""
        if (version := self.version()) != SCHEMA_VERSION:
            anew = "no release wrote it: begin a new store (store.path)"
            mend = "update rlforge" if version > SCHEMA_VERSION else anew
            raise StoreError(
                f"{self.root / ABOUT}: the store's layout is version {version} and this rlforge "
                f"reads version {SCHEMA_VERSION}; {mend}"
            )


def write_window(layout: StoreLayout, window_id: str, tables: Iterable[pa.Table]) -> Path:
    """Write the file of a closed window, on disk when this returns; returns its path.

    tables: its rows in order of agent and time, ``GROUP_ROWS`` at a time.
    """
    sink = pa.BufferOutputStream()
    options = {"compression": "zstd", "use_dictionary": _DICTIONARY}
    with pq.ParquetWriter(sink, DECISIONS, **options) as writer:
        for table in tables:
            writer.write_table(table, GROUP_ROWS)
    content = sink.getvalue()
    # Without colons, which some systems refuse in names.
    name = f"{window_id.replace(':', '.')}-{zlib.crc32(content):08x}.parquet"
    with atomic_path(path := layout.windows / name, durable=True) as work:
        work.write_bytes(content)
    return path


@contextlib.contextmanager
def full_disk_explained(target: Path) -> Iterator[None]:
    """Turn the error of a full disk, while ``target`` is written, into a clear StoreError."""
    try:
        yield
    except Exception as error:
        if not says_full_disk(error):
            raise
        folder = next(path for path in (target, *target.absolute().parents) if path.exists())
        free = readable_size(shutil.disk_usage(folder).free)
        raise StoreError(
            f"no space on disk for {target}: {free} free; free some; what was written before is "
            "kept"
        ) from error
