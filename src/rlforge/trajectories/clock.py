"""The time that decisions are stamped with: that of the wall, or a market's own."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

#: Seconds between looks at a wall clock that is waited for: it may be set while one sleeps.
_LOOK_EVERY_S = 30.0
#: Seconds by which a clock may step back without a word, as clocks that are slewed do.
_TOLERANCE_S = 1.0


class Clock(Protocol):
    """Seconds since 1970 UTC."""

    def now(self) -> float:
        """The time."""
        ...

    async def wait_until(self, moment: float) -> None:
        """Return once ``now()`` is ``moment`` or later."""
        ...


class WallClock:
    """The machine's clock.

    One that is set back is logged once for each jump, and believed: decisions from then on bear
    the earlier time and belong to the window of it; who waits goes on waiting for the moment.
    """

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self._latest = -math.inf

    def now(self) -> float:
        """The time, as the machine has it."""
        moment = self._read()
        if moment < self._latest - _TOLERANCE_S:
            log.warning(
                "the clock was set back by %.0f s; decisions go to the window of their time",
                self._latest - moment,
            )
            self._latest = moment
        self._latest = max(self._latest, moment)
        return moment

    async def wait_until(self, moment: float) -> None:
        """Sleep until then, looking up every half minute."""
        # There is no event to wait for: nobody is told when the wall clock is set.
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _LOOK_EVERY_S))


class SimulatedClock:
    """A clock that stands still until it is told to move; for one event loop."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        """The simulated time."""
        return self._now

    def set(self, moment: float) -> None:
        """Move to ``moment`` and wake who waited for it; a move back is logged and made."""
        if not math.isfinite(moment):
            raise ValueError(f"a clock cannot show {moment}")
        if moment < self._now:
            log.warning(
                "the simulated clock was set back by %.0f s; decisions go to the window of "
                "their time",
                self._now - moment,
            )
        self._now = moment
        still = []
        for due, future in self._waiting:
            if due > moment:
                still.append((due, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still

    def advance(self, seconds: float) -> None:
        """Move on by ``seconds``."""
        self.set(self._now + seconds)

    async def wait_until(self, moment: float) -> None:
        """Wait until someone has moved the clock that far."""
        while self._now < moment:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((moment, future))
            await future
