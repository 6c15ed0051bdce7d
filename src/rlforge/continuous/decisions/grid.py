"""Windows of time, fixed and without overlap, and the clock that stamps decisions."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from rlforge.errors import RlforgeError

_FORMS = ("%Y-%m-%d-%H:%M", "%Y-%m-%d-%H:%M:%S")


@lru_cache(maxsize=4096)
def window_start(window_id: str) -> float:
    """When a window starts, in seconds since 1970 UTC; RlforgeError for what is no window's id."""
    for form in _FORMS:
        try:
            start = datetime.strptime(window_id, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if _id_at(start) == window_id:
            return start.timestamp()
    raise RlforgeError(f"window id {window_id!r} is not a time; want a form like 2024-11-13-10:00")


def calendar_date(timestamp: float) -> datetime:
    """The date of a time in seconds since 1970 UTC. Raises RlforgeError if there is none."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (ValueError, OverflowError, OSError):
        raise RlforgeError(f"timestamp {timestamp} is not a time of the calendar") from None


def _id_at(start: datetime) -> str:
    # Not strftime: it leaves out the leading zeros of years before 1000.
    text = f"{start:%m-%d-%H:%M:%S}" if start.second else f"{start:%m-%d-%H:%M}"
    return f"{start.year:04d}-{text}"


class WindowGrid:
    """Windows of ``minutes`` each, one after the other since 1970 UTC.

    Example:
        >>> grid = WindowGrid(60)
        >>> grid.id_of(1731495599.9)
        '2024-11-13-10:00'
        >>> grid.after("2024-11-13-10:00")
        '2024-11-13-11:00'
    """

    def __init__(self, minutes: float) -> None:
        self.seconds = round(minutes * 60)

    def id_of(self, timestamp: float) -> str:
        """The window that holds ``timestamp``; RlforgeError for a time outside the calendar."""
        calendar_date(timestamp)
        return _id_at(calendar_date(timestamp // self.seconds * self.seconds))

    def span(self, window_id: str) -> tuple[float, float]:
        """Start and end of a window; the end is the start of the next."""
        start = window_start(window_id)
        return start, start + self.seconds

    def after(self, window_id: str) -> str:
        """The window that follows."""
        return self.id_of(self.span(window_id)[1])


log = logging.getLogger(__name__)

#: Most seconds of one sleep: the clock may be set meanwhile.
_LOOK_EVERY_S = 30.0
#: Steps back of at most so many seconds are not logged: a clock being adjusted makes them.
_TOLERANCE_S = 1.0


class WallClock:
    """The machine's clock, in seconds since 1970 UTC. Each jump back is logged once."""

    def __init__(self, read: Callable[[], float] = time.time) -> None:
        self._read = read
        self._latest = -math.inf

    def now(self) -> float:
        """The time."""
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
        """Return once ``now()`` is ``moment`` or later."""
        # Setting the clock raises no event that could be awaited.
        while (left := moment - self.now()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _LOOK_EVERY_S))
