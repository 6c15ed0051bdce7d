"""Atomic writes: a reader finds the old file or the new one, never a part of either."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path


def atomic_write(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace ``path`` by ``content``, text as UTF-8, in one step; see ``atomic_path``.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     atomic_write(Path(folder) / "pool.json", "{}")
        ...     (Path(folder) / "pool.json").read_text()
        '{}'
    """
    with atomic_path(path, durable=durable) as work:
        work.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def atomic_path(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path for the block to write to, which is renamed to ``path`` when the block succeeds.

    It is a hidden one in the same folder, which must exist, and ends in ``.tmp``. The block may
    make a directory, unless ``path`` is one with files. durable: sync content and name to disk;
    files of a directory are the block's to sync.
    """
    # Each writer has a path of its own, else two writers of one file would mix their content.
    work = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield work
        if durable:
            sync(work)
        os.replace(work, path)
        if durable:
            sync(path.parent)
    finally:
        if work.is_dir():
            shutil.rmtree(work, ignore_errors=True)
        else:
            # An error of the clean-up must not hide that of the block.
            with contextlib.suppress(OSError):
                work.unlink()


def usual_modes(folder: Path) -> None:
    """Give the weights in ``folder`` the mode that the umask gives to new files."""
    # safetensors makes its files with mode 0600, whatever the umask.
    probe = folder / f".{secrets.token_hex(4)}.tmp"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def sync(path: Path) -> None:
    """Put on disk what was written to a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def says_full_disk(error: BaseException | None) -> bool:
    """Whether ``error`` was caused by a full disk or quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        # safetensors and torch raise errors of their own that only quote the system's message.
        if os.strerror(errno.ENOSPC) in str(error):
            return True
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def sha256_of(file: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def readable_size(count: int) -> str:
    """``count`` bytes with their unit.

    Example:
        >>> readable_size(3 * 2**19)
        '1.5 MiB'
    """
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
