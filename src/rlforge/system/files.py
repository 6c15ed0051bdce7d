"""Files: written in one step, so that a reader finds the old one or the new, and read.

``reading`` names the file, what is wrong with it and the mend, whatever a decoder raises.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import secrets
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlforge.errors import DamagedError, RlforgeError, first_line

#: What a user can do about a damaged file of a run that it can be read without.
WITHOUT_IT = "put a copy in its place, or move it away to go on without what it says"


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
    name = path.name if len(os.fsencode(path.name)) < 240 else ""  # file systems take 255 bytes
    work = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        yield work
        if work.is_dir():
            usual_modes(work)
        if durable:
            sync(work)
        os.replace(work, path)
        if durable:
            sync(path.parent)
    except OSError as error:
        # The hidden name says nothing to a user, and a full disk has none.
        if error.filename is None or str(error.filename) == str(work):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if work.is_dir():
            shutil.rmtree(work, ignore_errors=True)
        else:
            # An error of the clean-up must not hide that of the block.
            with contextlib.suppress(OSError):
                work.unlink()


def is_kept(path: Path) -> bool:
    """Whether ``write_out`` writes into ``path``, a link, a pipe or a device, and replaces none."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def write_out(path: Path, text: str) -> None:
    """Write ``text`` to a file that a user names, which may be a link, a pipe or a device."""
    # A surrogate, as in an answer of a model or in the name of a folder, has no UTF-8.
    content = text.encode(errors="replace")
    if is_kept(path):
        with path.open("wb") as file:  # in its place there would be a plain file
            file.write(content)
    else:
        atomic_write(path, content)


def new_folder(path: Path) -> Path:
    """Make ``path``, or where it exists the first of PATH.1, PATH.2 …; returns the one made."""
    # Only the attempt tells: between a look and the making another process may make it.
    for number in itertools.count():
        folder = path.with_name(f"{path.name}.{number}") if number else path
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("numbers do not end")


def files_below(folder: Path) -> list[Path]:
    """The files of a folder and its folders, without folders that vanish meanwhile."""
    # ``Path.rglob`` raises for these.
    paths = (Path(here, name) for here, _, names in os.walk(folder) for name in names)
    return [path for path in paths if path.is_file()]


def usual_modes(folder: Path) -> None:
    """Give all files in ``folder`` the mode that umask and folder give to new ones."""
    # Libraries choose their own: safetensors makes its files for their owner alone.
    probe = folder / f".{secrets.token_hex(4)}.tmp"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for file in files_below(folder):
        if stat.S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)


def open_database(file: Path, **options: Any) -> sqlite3.Connection:
    """Connect to the database ``file`` as ``sqlite3.connect``; a new one gets the usual mode."""
    # SQLite would make a file that a group cannot write. Its journals take the mode of the file,
    # and its errors say what is wrong where this cannot be made.
    with contextlib.suppress(OSError):
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    database: sqlite3.Connection = sqlite3.connect(file, **options)
    return database


@contextlib.contextmanager
def reading(file: Path, mend: str = WITHOUT_IT) -> Iterator[None]:
    """Raise DamagedError, with the mend, for whatever a block that decodes ``file`` raises.

    Errors of rlforge and of the system, which name the file and say more, pass through.
    """
    try:
        yield
    except (RlforgeError, FileNotFoundError):
        raise
    except Exception as error:
        # Decoders raise errors of any type for bytes that they do not expect. pyarrow's include
        # OSErrors without a number; those of the system it tells in other words.
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(file)) from error
        raise DamagedError(f"{file} is damaged ({_damage(file, error)}); {mend}") from error


def _damage(file: Path, error: Exception) -> str:
    if file.is_file() and not file.stat().st_size:
        return "it is empty"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    return " ".join(first_line(error).split())


def unreadable(path: Path) -> str:
    """``FILE: Permission denied`` where that is so of ``path`` or a file in it; else empty."""
    # safetensors and transformers say of such files that they do not exist.
    try:
        files = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
        denied = [file for file in files if file.exists() and not _may_read(file)]
    except PermissionError:
        denied = [path]
    return f"{denied[0]}: {os.strerror(errno.EACCES)}" if denied else ""


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK, effective_ids=True)


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
