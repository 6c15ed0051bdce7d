"""Windows of time: fixed, side by side, without overlap."""

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
    """When a window starts, in seconds since 1970 UTC, as its id says.

    Raises RlforgeError for what is no window id.
    """
    for form in _FORMS:
        try:
            start = datetime.strptime(window_id, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if _id_at(start) == window_id:
            return start.timestamp()
    raise RlforgeError(f"window id {window_id!r} is no time; want a form like 2024-11-13-10:00")


def calendar_date(timestamp: float) -> datetime:
    """The date of a time in seconds since 1970 UTC. Raises RlforgeError where there is none."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (ValueError, OverflowError, OSError):
        raise RlforgeError(f"timestamp {timestamp} is no time of a calendar") from None


def _id_at(start: datetime) -> str:
    # Not strftime: it leaves out the leading zeros of years before 1000.
    text = f"{start:%m-%d-%H:%M:%S}" if start.second else f"{start:%m-%d-%H:%M}"
    return f"{start.year:04d}-{text}"


class WindowGrid:
    """Windows of ``minutes``, one after the other since 1970 UTC."""

    def __init__(self, minutes: float) -> None:
        self.seconds = round(minutes * 60)

    def id_of(self, timestamp: float) -> str:
        """The window that holds ``timestamp``, whenever it becomes known.

        Raises RlforgeError for a time that no calendar has.
        """
        calendar_date(timestamp)
        return _id_at(calendar_date(timestamp // self.seconds * self.seconds))

    def span(self, window_id: str) -> tuple[float, float]:
        """Start and end of a window; the end is the start of the next."""
        start = window_start(window_id)
        return start, start + self.seconds

    def after(self, window_id: str) -> str:
        """The window that follows."""
        return self.id_of(self.span(window_id)[1])

    def closed_by(self, now: float, grace_seconds: float = 0.0) -> str:
        """The newest window that is over at ``now``, its time of grace included."""
        open_since, _ = self.span(self.id_of(now - grace_seconds))
        return self.id_of(open_since - self.seconds)


log = logging.getLogger(__name__)

#: Seconds between looks at a wall clock that is waited for: it may be set while one sleeps.
_LOOK_EVERY_S = 30.0
#: Seconds by which a clock may step back without a word, as clocks that are slewed do.
_TOLERANCE_S = 1.0


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
