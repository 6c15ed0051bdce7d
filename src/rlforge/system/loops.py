"""Waiting for coroutines in scripts, threads and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

CANCEL_PATIENCE_S = 10.0
"""Seconds after which ``wait_for`` leaves cancelled work that does not end."""


def wait_for(work: Coroutine[Any, Any, T], interrupt: Callable[[], bool] | None = None) -> T:
    """The result of ``work``: ``asyncio.run``, also where this thread's event loop is running.

    There, as in a notebook, ``work`` runs in a loop and thread of its own while the caller waits.
    On Ctrl-C ``interrupt`` is called, in the waiting thread; where it returns False, or is None,
    the work is cancelled and KeyboardInterrupt raised.

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
    result: Future[T] = Future()
    cancels: list[Callable[[], object]] = []
    ending = False

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        if ending:
            task.cancel()
        return await work

    def run() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:
            result.set_exception(error)

    def on_interrupt() -> None:
        nonlocal ending
        if not ending and (interrupt is None or not interrupt()):
            ending = True  # shells send a signal twice: the second must not end the clean-up
            raise KeyboardInterrupt

    # The context tells IPython which cell the output of the thread belongs to.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="rlforge-loop", daemon=True)
    with _interrupts(on_interrupt):
        try:
            thread.start()
            wait([result])
        except BaseException:
            ending = True
            for cancel in cancels:
                with contextlib.suppress(RuntimeError):  # the loop has just been closed
                    cancel()
            wait([result], CANCEL_PATIENCE_S)
            raise
    thread.join()
    return result.result()


@contextlib.contextmanager
def _interrupts(call: Callable[[], None]) -> Iterator[None]:
    """Call ``call`` on Ctrl-C, in the main thread; elsewhere nothing.

    The handler of a running loop would cancel the task that waits and not interrupt the wait.
    SIGTERM counts as Ctrl-C where its handler is that of Ctrl-C.
    """
    replaced: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
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
