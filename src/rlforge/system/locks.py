"""One process at a time owns a run directory, or whatever else a lock file stands for."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlforge.errors import RunError


class BusyError(Exception):
    """Another process holds the lock; the message names it."""


class Lock:
    """An exclusive lock, held from ``acquire`` to ``release``.

    The kernel releases it when its process ends, however it ends. The lock file names the holder
    and stays behind unlocked: deleting it would let two processes lock two files of one name.
    """

    def __init__(self, file: Path) -> None:
        """file: in a directory that exists when the lock is acquired."""
        self._file = file
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises BusyError where another holds it, or this one does already."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise BusyError(_holder(self._file)) from None
        holder = {"pid": os.getpid(), "host": socket.gethostname()}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        """Unlock; nothing happens where nothing is held."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


class RunLock(Lock):
    """The lock on a run directory, which must exist."""

    FILE = "run.lock"

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / self.FILE)
        self._run_dir = run_dir

    def acquire(self) -> None:
        """Lock the directory; RunError naming the holder if it is locked."""
        try:
            super().acquire()
        except BusyError as holder:
            raise RunError(
                f"{self._run_dir} is in use by {holder}; wait for it or stop it, then resume"
            ) from None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _holder(file: Path) -> str:
    """``process 12 on host``, as the holder wrote it, which it may be doing just now."""
    try:
        holder: Any = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return "another process"
    return f"process {holder['pid']} on {holder['host']}"
