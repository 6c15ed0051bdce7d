"""Waiting for coroutines in scripts, threads and notebooks, and for work in another thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from rlforge.system.signals import heard, owned

T = TypeVar("T")

#: Seconds after which ``wait_for`` leaves cancelled work that does not end.
CANCEL_PATIENCE_S = 10.0

#: Seconds between two looks for a signal: one that arrives just before a thread blocks on a lock
#: does not wake it.
POLL_S = 0.2


def wait_for(work: Coroutine[Any, Any, T], interrupt: Callable[[], bool] | None = None) -> T:
    """``asyncio.run``, also where this thread's event loop is running, as in a notebook.

    There ``work`` runs in a thread of its own. A signal that ends commands (``system.signals``)
    calls ``interrupt``; where it returns False, or is None, the work is cancelled and
    KeyboardInterrupt raised.

    Example:
        >>> async def double(number):
        ...     return 2 * number
        >>> wait_for(double(21))
        42
    """
    with owned():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return _Waiting(work, interrupt).here()
        return _Waiting(work, interrupt).elsewhere()


class _Waiting(Generic[T]):
    """Work in a loop of its own, and what a signal does to it."""

    def __init__(self, work: Coroutine[Any, Any, T], interrupt: Callable[[], bool] | None) -> None:
        self._runner, self._interrupt = (
            asyncio.Runner(loop_factory=asyncio.new_event_loop),
            interrupt,
        )
        self._loop = self._runner.get_loop()
        # A task that is made here has this thread's context, by which IPython assigns output to a
        # cell.
        self._task = self._loop.create_task(work)
        #: The time at which cancelled work is left; infinite until it is cancelled.
        self._left_at = float("inf")

    def here(self) -> T:
        try:
            with heard(self._on_signal):
                return self._run()
        except BaseException:
            if self._left_at < float("inf"):
                raise KeyboardInterrupt from None
            raise

    def elsewhere(self) -> T:
        result = Future[T]()
        thread = threading.Thread(
            target=_settle, args=(result, self._run), name="rlforge-loop", daemon=True
        )
        with heard(self._on_signal):
            try:
                thread.start()
                while thread.is_alive() and time.monotonic() < self._left_at:
                    thread.join(POLL_S)
            except BaseException:
                # A second cancellation would end the clean-up.
                if self._left_at == float("inf"):
                    self._cancel()
                thread.join(CANCEL_PATIENCE_S)
                raise
        if self._left_at < float("inf"):
            raise KeyboardInterrupt
        return result.result()

    def _run(self) -> T:
        async def finished() -> T:
            return await self._task

        with self._runner:
            return self._runner.run(finished())

    def _on_signal(self) -> None:
        # Further ones must not end the clean-up, unless it hangs.
        hangs = time.monotonic() > self._left_at
        if hangs or (self._left_at == float("inf") and not (self._interrupt and self._interrupt())):
            self._cancel()

    def _cancel(self) -> None:
        self._left_at = time.monotonic() + CANCEL_PATIENCE_S
        # The loop is closed where the work has just ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)


class Interrupts:
    """Takes signals: the first one stops the work, a second, or one before ``connect``, ends it."""

    def __init__(self) -> None:
        self._stop: Callable[[], None] | None = None

    def connect(self, stop: Callable[[], None]) -> None:
        """Let the next signal call ``stop`` in the running loop."""
        loop = asyncio.get_running_loop()

        def ask() -> None:
            # The loop is closed where the work has just ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop)

        self._stop = ask

    def heard(self) -> bool:
        """Stop the work, for ``wait_for``; False where it ends at once."""
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        return stop is not None


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> list[T]:
    """The result of ``work``, alone in a list; empty where ``stop`` is set before its end.

    The work is cancelled then.

    Example:
        >>> async def double(number):
        ...     return 2 * number
        >>> asyncio.run(unless(asyncio.Event(), double(21)))
        [42]
    """
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return [working.result()] if working.done() else []
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def in_thread(work: Callable[[], T]) -> T:
    """The result of ``work``, or its exception, in a thread of its own that ends with it.

    Example:
        >>> in_thread(lambda: threading.current_thread() is threading.main_thread())
        False
    """
    # OpenMP threads that help a thread live as long as it does. With more of them than cores
    # libgomp lets all sleep between two operations, and small ones take two to three times as long.
    # So work that is done once, such as the loading of a model, adds none to the calling thread.
    result: Future[T] = Future()
    thread = threading.Thread(target=_settle, args=(result, work), name="rlforge-once", daemon=True)
    thread.start()
    try:
        return result.result()
    finally:
        if result.done():
            thread.join()


def _settle(result: Future[T], work: Callable[[], T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:
        # The error is raised where the result is asked for.
        result.set_exception(error)
