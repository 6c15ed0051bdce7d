"""Standard output and error of runs, which go on whether or not anyone reads or keeps them."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT_BYTES = 4 * 2**20
"""Most bytes of a file of ``Output``, and of what came before it."""


class _Lossy(io.FileIO):
    """A descriptor that takes all that is written to it, and loses what it cannot write."""

    def write(self, data: Any, /) -> int:
        # The reader of a pipe has left, a terminal was closed, a disk is full.
        with contextlib.suppress(OSError):
            return super().write(data) or len(data)
        return len(data)


@contextlib.contextmanager
def lossy(*names: str) -> Iterator[None]:
    """In the block, writing to ``names`` of stdout and stderr does not fail.

    Streams that are no files of this process, as in a notebook, stay as they are.
    """
    with contextlib.ExitStack() as undo:
        for name in names:
            stream = getattr(sys, name)
            raw = _raw(stream)
            if isinstance(raw, io.FileIO) and not isinstance(raw, _Lossy):
                undo.enter_context(_replaced(name, stream))
        yield


def _raw(stream: Any) -> Any:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)  # with PYTHONUNBUFFERED there is no buffer


@contextlib.contextmanager
def _replaced(name: str, stream: io.TextIOWrapper) -> Iterator[None]:
    flush(stream)
    raw = _Lossy(stream.fileno(), "w", closefd=False)
    mine = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    setattr(sys, name, mine)
    try:
        yield
    finally:
        mine.flush()
        setattr(sys, name, stream)


def crashes_to_stderr() -> None:
    """Let a crash in native code print the stack of each thread to standard error, as Python does.

    Does nothing where that is no file, as in some notebooks and services.
    """
    faulthandler.disable()
    with contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):
        faulthandler.enable(sys.__stderr__)  # type: ignore[arg-type]  # None without a terminal


def flush(stream: Any) -> None:
    """Write what ``stream`` holds, if it still can."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.flush()


class Output(io.RawIOBase):
    """The file of what users' code prints, and ``NAME.1`` of what came before ``KEPT_BYTES``.

    Nothing that is written raises: what the disk does not take is lost, and a line says so.
    """

    def __init__(self, path: Path, *also: int) -> None:
        """Append to ``path``. also: descriptors of this process that lead there from now on."""
        self._path, self._also, self._process = path, also, os.getpid()
        self._lost, self._lock = 0, threading.RLock()
        self._file = self._open()
        self._lead()

    @property
    def name(self) -> str:
        return str(self._path)

    def fileno(self) -> int:
        return self._file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        content, size = bytes(data), len(data)
        with self._lock:
            if size > KEPT_BYTES // 2:
                cut = size - KEPT_BYTES // 2
                content = b"[%d bytes are cut here]\n%b" % (cut, content[cut:])
            self._size += len(content)
            if self._size > KEPT_BYTES:
                self._turn()
                self._size += len(content)
            self._append(content)
        return size

    def look(self) -> None:
        """Keep the size where native code or other processes print to the descriptors."""
        with self._lock, contextlib.suppress(OSError):
            self._size = os.fstat(self._file).st_size
            if self._size > KEPT_BYTES:
                self._turn()

    def text(self) -> io.TextIOWrapper:
        """A stream such as ``sys.stdout`` that writes each line to the file."""
        return io.TextIOWrapper(
            self, encoding="utf-8", errors="backslashreplace", line_buffering=True
        )

    def _append(self, content: bytes) -> None:
        try:
            if self._lost:
                os.write(self._file, b"[%d bytes are lost: the disk was full]\n" % self._lost)
                self._lost = 0
            os.write(self._file, content)
        except OSError:
            self._lost += len(content)

    def _turn(self) -> None:
        """Begin the file anew, where this process and not a child of it has opened it."""
        if os.getpid() != self._process:
            return
        before = self._path.with_name(f"{self._path.name}.1")
        with contextlib.suppress(OSError):
            os.replace(self._path, before)
            fresh = self._open()
            os.dup2(fresh, self._file, inheritable=False)
            os.close(fresh)
            self._lead()
            self._append(
                b"[what was printed before is in %b, older lines are gone]\n" % before.name.encode()
            )

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o666)
        self._size = os.fstat(file).st_size
        return file

    def _lead(self) -> None:
        for descriptor in self._also:
            os.dup2(self._file, descriptor)


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """In the block, what a command's code prints goes to ``path``; streams of others stay."""
    if not isinstance(_raw(sys.stderr), _Lossy):  # a notebook, or a program of the user
        yield
        return
    text = Output(path).text()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        yield


def keep(path: Path) -> Output:
    """Lead all that this process prints to ``path``, for good."""
    output = Output(path, 1, 2)
    sys.stdout = sys.stderr = output.text()
    return output
