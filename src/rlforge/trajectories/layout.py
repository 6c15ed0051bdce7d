"""The files of a store.

    store.json                                the version of the layout
    run.lock                                  held by the writer
    log/NUMBER.log                            segments of new decisions (``wal``)
    windows/WINDOW/KIND-FIRST-LAST-CRC.parquet

FIRST and LAST are the numbers of the segments whose rows of that window and kind the file holds, so
the name of a merged file says which others it replaces, and a segment that was moved into parquet
but not deleted yet is not read twice. CRC is the file's CRC-32, by which damage is found. There is
no other index, and each file appears whole, by a rename.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlforge.errors import StoreError
from rlforge.system.files import readable_size, says_full_disk
from rlforge.types import value

#: Version of the layout and of the columns. A store of a later version is refused; columns that an
#: earlier one lacks take their defaults as they are read.
SCHEMA_VERSION = 1
ABOUT = "store.json"
_FILE = re.compile(
    r"(?P<kind>decisions|outcomes)-(?P<first>\d{8})-(?P<last>\d{8})-(?P<crc>[0-9a-f]{8})\.parquet"
)
_LOG = re.compile(r"\d{8}\.log")
_WINDOW = re.compile(r"\d{4}-\d\d-\d\d-\d\d\.\d\d(\.\d\d)?")
_CHUNK = 1 << 20


@value
class DataFile:
    """A parquet file: rows of one ``kind`` and window from segments ``first`` to ``last``."""

    path: Path
    kind: str
    first: int
    last: int
    crc: int

    def covers(self, segment: int) -> bool:
        """Whether the rows of that segment are in it."""
        return self.first <= segment <= self.last

    def damage(self) -> str | None:
        """Read the file and say what is wrong with it; None: nothing.

        Raises FileNotFoundError when a merge has replaced it meanwhile.
        """
        crc = size = 0
        with self.path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                crc = zlib.crc32(chunk, crc)
                size += len(chunk)
        if crc == self.crc:
            return None
        return f"its {readable_size(size)} are not what was written"


def file_name(kind: str, first: int, last: int, crc: int) -> str:
    """The name of a ``DataFile``."""
    return f"{kind}-{first:08d}-{last:08d}-{crc:08x}.parquet"


@value
class StoreLayout:
    """The paths of the store in folder ``root``."""

    root: Path

    @property
    def log(self) -> Path:
        """Folder of the segments."""
        return self.root / "log"

    @property
    def windows(self) -> Path:
        """Folder of the windows."""
        return self.root / "windows"

    def folder(self, window_id: str) -> Path:
        """Folder of one window; without the colons that some systems refuse."""
        return self.windows / window_id.replace(":", ".")

    def segment(self, number: int) -> Path:
        """The log segment of that number."""
        return self.log / f"{number:08d}.log"

    def segments(self) -> list[int]:
        """Numbers of the existing segments, in order."""
        if not self.log.is_dir():
            return []
        return sorted(int(path.stem) for path in self.log.iterdir() if _LOG.fullmatch(path.name))

    def window_ids(self) -> list[str]:
        """Windows that have a folder, in order of time."""
        if not self.windows.is_dir():
            return []
        names = (path.name for path in self.windows.iterdir() if _WINDOW.fullmatch(path.name))
        return sorted(name.replace(".", ":") for name in names)

    def files(self, window_id: str) -> list[DataFile]:
        """The parquet files of a window that no other replaces, oldest segments first."""
        return live(self.all_files(window_id))

    def all_files(self, window_id: str) -> list[DataFile]:
        """The parquet files of a window, those that a merge has replaced included."""
        folder = self.folder(window_id)
        matches = ((path, _FILE.fullmatch(path.name)) for path in _listed(folder))
        return [
            DataFile(
                path=path,
                kind=match["kind"],
                first=int(match["first"]),
                last=int(match["last"]),
                crc=int(match["crc"], 16),
            )
            for path, match in matches
            if match is not None
        ]

    def check(self) -> None:
        """Raise StoreError unless ``root`` is a store that this rlforge reads."""
        file = self.root / ABOUT
        try:
            version = int(json.loads(file.read_text(encoding="utf-8"))["schema_version"])
        except FileNotFoundError:
            if not self.root.exists():
                raise StoreError(f"no trajectory store {self.root}") from None
            raise StoreError(f"{self.root} is no trajectory store: it has no {ABOUT}") from None
        except (ValueError, KeyError, TypeError, NotADirectoryError) as error:
            raise StoreError(f"{file} is damaged: {error}") from error
        if version != SCHEMA_VERSION:
            mend = "update rlforge" if version > SCHEMA_VERSION else "export it with the older one"
            raise StoreError(
                f"{self.root} has version {version} of the store's layout and this rlforge reads "
                f"version {SCHEMA_VERSION}; {mend}"
            )


def live(files: Iterable[DataFile]) -> list[DataFile]:
    """Those of ``files`` that no other one of the same kind covers, in order of segments."""
    kept: list[DataFile] = []
    newest: dict[str, int] = {}
    for file in sorted(files, key=lambda file: (file.kind, file.first, -file.last)):
        if file.last > newest.get(file.kind, -1):
            kept.append(file)
            newest[file.kind] = file.last
    return kept


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


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
