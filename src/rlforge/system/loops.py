"""Waiting for coroutines in scripts, threads and notebooks, and for work in another thread."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds after which ``wait_for`` leaves cancelled work that does not end.
CANCEL_PATIENCE_S = 10.0

#: Seconds between two looks for a signal: one that arrives just before a thread blocks on a lock
#: does not wake it.
POLL_S = 0.2


def wait_for(work: Coroutine[Any, Any, T], interrupt: Callable[[], bool] | None = None) -> T:
    """``asyncio.run``, also where this thread's event loop is running, as in a notebook.

    There ``work`` runs in a thread of its own. On Ctrl-C ``interrupt`` is called in the waiting
    one; where it returns False, or is None, the work is cancelled and KeyboardInterrupt raised.

    Example:
        >>> async def double(number):
        ...     return 2 * number
        >>> wait_for(double(21))
        42
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop, result = runner.get_loop(), Future[T]()
    # A task that is made here has this thread's context, by which IPython assigns output to a cell.
    task = loop.create_task(work)
    # The time at which cancelled work is left; infinite until it is cancelled.
    left_at = float("inf")

    async def finished() -> T:
        return await task

    def run() -> None:
        with runner:
            _settle(result, lambda: runner.run(finished()))

    def cancel() -> None:
        nonlocal left_at
        left_at = time.monotonic() + CANCEL_PATIENCE_S
        # The loop is closed where the work has just ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(task.cancel)

    def on_interrupt() -> None:
        # Shells send a signal twice: the second must not end the clean-up.
        if left_at == float("inf") and (interrupt is None or not interrupt()):
            cancel()

    thread = threading.Thread(target=run, name="rlforge-loop", daemon=True)
    with _interrupts(on_interrupt):
        try:
            thread.start()
            while thread.is_alive() and time.monotonic() < left_at:
                thread.join(POLL_S)
        except BaseException:
            # A second cancellation would end the clean-up.
            if left_at == float("inf"):
                cancel()
            thread.join(CANCEL_PATIENCE_S)
            raise
    if left_at < float("inf"):
        raise KeyboardInterrupt
    return result.result()


@contextlib.contextmanager
def _interrupts(call: Callable[[], None]) -> Iterator[None]:
    """Call ``call`` on Ctrl-C, in the main thread; elsewhere nothing."""
    replaced: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            # The handler of a running loop would cancel the task that waits, but not end the wait.
            # SIGTERM counts as Ctrl-C where it has the handler of Ctrl-C.
            own = number is signal.SIGINT and callable(handler)
            if own or handler is signal.default_int_handler:
                replaced[number] = handler
    try:
        for number in replaced:
            signal.signal(number, lambda number, frame: call())
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


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
