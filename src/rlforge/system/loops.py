"""Waiting for coroutines in scripts, threads and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


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

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await work

    def run() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="rlforge-loop")
    thread.start()
    while True:
        try:
            return result.result()
        except KeyboardInterrupt:
            if result.done():
                raise
            if interrupt is None or not interrupt():
                for cancel in cancels:
                    cancel()
                thread.join()
                raise
