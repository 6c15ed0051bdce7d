"""Time-outs that do not count while the engines are paused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

#: Limits a block to a number of seconds, None: to none, as ``asyncio.timeout`` does.
TimeLimit = Callable[[float | None], AbstractAsyncContextManager[asyncio.Timeout]]


class Clock:
    """Makes time limits, in one event loop, that stand still between ``stop`` and ``go_on``.

    Example:
        >>> async def ask() -> str:
        ...     clock = Clock()
        ...     async with clock.timeout(0.001):
        ...         clock.stop()
        ...         await asyncio.sleep(0.005)
        ...         return "no time-out"
        >>> asyncio.run(ask())
        'no time-out'
    """

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, float | None] = {}
        self._stopped = False

    @asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Limit a block as ``asyncio.timeout`` does, by this clock."""
        async with asyncio.timeout(None if self._stopped else seconds) as limit:
            self._left[limit] = seconds
            try:
                yield limit
            finally:
                del self._left[limit]

    def stop(self) -> None:
        """Pause all limits."""
        now = asyncio.get_running_loop().time()
        self._stopped = True
        for limit in self._left:
            deadline = limit.when()
            if deadline is not None and not limit.expired():
                self._left[limit] = deadline - now
                limit.reschedule(None)

    def go_on(self) -> None:
        """Resume all limits with the time they had left."""
        now = asyncio.get_running_loop().time()
        self._stopped = False
        for limit, seconds in self._left.items():
            if limit.when() is None and seconds is not None:
                limit.reschedule(now + seconds)
