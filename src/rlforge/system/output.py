"""Standard output and error of runs, which go on whether or not anyone reads them."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import sys
from collections.abc import Iterator
from typing import Any


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
            buffer = getattr(stream, "buffer", None)
            raw = getattr(buffer, "raw", buffer)  # with PYTHONUNBUFFERED there is no buffer
            if isinstance(raw, io.FileIO) and not isinstance(raw, _Lossy):
                undo.enter_context(_replaced(name, stream))
        yield


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
