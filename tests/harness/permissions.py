"""Modes of files under a umask, and the view of another user."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Of a user without rights, on every Linux.
NOBODY = 65534


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(*folders: Path) -> dict[str, int]:
    """The mode of every file below ``folders``."""
    files = (file for folder in folders for file in folder.rglob("*") if file.is_file())
    return {str(file): stat.S_IMODE(file.stat().st_mode) for file in files}


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's, deleted at the end."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """In the block this process has no more rights than any user: root can read all files."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)
