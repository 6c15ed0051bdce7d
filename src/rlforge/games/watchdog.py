"""A time limit for Python code of others, in any thread."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")

#: Seconds between checks of the watchdog's thread; a limit is kept to within this time.
_POLL_S = 0.1

_set_async_exc = ctypes.pythonapi.PyThreadState_SetAsyncExc
_set_async_exc.argtypes = (ctypes.c_ulong, ctypes.py_object)


# No ``Exception``, so that an ``except Exception`` in the watched code does not catch it.
class _ExpiredError(CancelledError):
    """Raised inside the watched code."""


def _take_delivery(thread_id: int) -> None:
    """Swallow an exception that was sent to this thread and may not have arrived yet."""
    try:
        # Revoking the exception (with NULL) leaves CPython 3.11 polling for it for ever: a thread
        # that is traced, by a debugger or coverage, then hangs.
        _set_async_exc(thread_id, _ExpiredError)
        while True:
            time.sleep(0)
    except _ExpiredError:
        return


@dataclass(slots=True)
class _Watch:
    limit_s: float
    deadline: float
    fired: bool = False


class Watchdog:
    """Interrupts Python code that runs for too long, though no loop inside C code.

    Example:
        >>> Watchdog().run(lambda: 6 * 7, limit_s=1.0)
        42
    """

    def __init__(self) -> None:
        # One thread watches all callers, so that a watched call takes only a microsecond longer.
        self._watches: dict[int, _Watch] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def run(self, function: Callable[[], _T], limit_s: float) -> _T:
        """Call ``function``; TimeoutError when it takes longer than ``limit_s``."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._patrol, name="game-watchdog", daemon=True
                    )
                    self._thread.start()
        thread_id = threading.get_ident()
        watch = _Watch(limit_s, time.monotonic() + limit_s)
        self._watches[thread_id] = watch
        try:
            try:
                return function()
            finally:
                self._leave(thread_id)
        except _ExpiredError:
            # The exception may have cut off the first ``_leave``: leave once more.
            self._leave(thread_id)
            raise TimeoutError(f"did not return within {limit_s:g} s") from None

    def _leave(self, thread_id: int) -> None:
        with self._lock:
            watch = self._watches.pop(thread_id, None)
        if watch is not None and watch.fired:
            _take_delivery(thread_id)

    def _after_fork(self) -> None:
        # Threads do not survive a fork, and one of them may have held the lock.
        self._watches.clear()
        self._lock = threading.Lock()
        self._thread = None

    def _patrol(self) -> None:
        while True:
            time.sleep(_POLL_S)
            now = time.monotonic()
            for thread_id, watch in list(self._watches.items()):
                if now <= watch.deadline:
                    continue
                with self._lock:
                    if self._watches.get(thread_id) is watch:
                        watch.fired = True
                        # Code that swallows the exception gets another one after the next limit.
                        watch.deadline = now + watch.limit_s
                        _set_async_exc(thread_id, _ExpiredError)
