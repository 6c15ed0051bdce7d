"""Windows of time, fixed and without overlap."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from rlforge.errors import RlforgeError

_FORMS = ("%Y-%m-%d-%H:%M", "%Y-%m-%d-%H:%M:%S")


@lru_cache(maxsize=4096)
def window_start(window_id: str) -> float:
    """The start of a window in seconds since 1970 UTC; RlforgeError for what is no id."""
    for form in _FORMS:
        try:
            start = datetime.strptime(window_id, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        # Else one window would have two names, such as 10:0 and 10:00.
        if _id_at(start) == window_id:
            return start.timestamp()
    raise RlforgeError(f"window id {window_id!r} is not a time; want a form like 2024-11-13-10:00")


def calendar_date(timestamp: float) -> datetime:
    """The date of a time in seconds since 1970 UTC; RlforgeError if there is none."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (ValueError, OverflowError, OSError):
        raise RlforgeError(f"timestamp {timestamp} is not a time of the calendar") from None


def _id_at(start: datetime) -> str:
    # strftime leaves out the leading zeros of years before 1000.
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
        # Whole seconds, because ids show no parts of one.
        self.seconds = round(minutes * 60)

    def id_of(self, timestamp: float) -> str:
        """The window that holds ``timestamp``; RlforgeError for a time outside the calendar."""
        # Checked first, so that the error names the time that was given.
        calendar_date(timestamp)
        return _id_at(calendar_date(timestamp // self.seconds * self.seconds))

    def span(self, window_id: str) -> tuple[float, float]:
        """The start of a window and that of the next."""
        start = window_start(window_id)
        return start, start + self.seconds

    def after(self, window_id: str) -> str:
        return self.id_of(self.span(window_id)[1])
