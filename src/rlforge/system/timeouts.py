"""Time-outs that stand still while those who are waited for may not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

TimeLimit = Callable[[float], AbstractAsyncContextManager[asyncio.Timeout]]
"""Limits a block to so many seconds, as ``asyncio.timeout`` does."""


class Clock:
    """Counts the time of many limits, and none of it between ``stop`` and ``go_on``.

    All calls come from one event loop.
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, float] = {}
        self._stopped = False

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """``asyncio.timeout`` by this clock."""
        async with asyncio.timeout(None if self._stopped else seconds) as limit:
            self._left[limit] = seconds
            try:
                yield limit
            finally:
                del self._left[limit]

    def stop(self) -> None:
        """From now on no time passes."""
        now = asyncio.get_running_loop().time()
        self._stopped = True
        for limit in self._left:
            deadline = limit.when()
            if deadline is not None and not limit.expired():
                self._left[limit] = deadline - now
                limit.reschedule(None)

    def go_on(self) -> None:
        """Time passes again: each limit has what was left of it."""
        now = asyncio.get_running_loop().time()
        self._stopped = False
        for limit, seconds in self._left.items():
            if limit.when() is None:
                limit.reschedule(now + seconds)
