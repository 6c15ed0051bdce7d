"""How fast a run goes: rates over the last minute, rates between updates, time left."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

#: Seconds over which the rates of a display are taken.
RATE_SECONDS = 60.0


class Pace:
    """Watches rising counters (games, tokens) and the times of updates, all in run seconds."""

    def __init__(self, now: float, counts: Mapping[str, float]) -> None:
        """Start at ``now`` with ``counts``; a resumed run starts where its earlier part ended."""
        self._marks = deque([(now, dict(counts))])
        self._last_update = (now, dict(counts))
        self._update_times = deque([now], maxlen=11)

    def rates(self, now: float, counts: Mapping[str, float]) -> dict[str, float]:
        """Growth per second of each counter over the last ``RATE_SECONDS``."""
        self._marks.append((now, dict(counts)))
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_SECONDS:
            self._marks.popleft()
        return _growth(self._marks[0], (now, counts))

    def update(self, now: float, counts: Mapping[str, float]) -> dict[str, float]:
        """Note an update; growth per second of each counter since the one before."""
        growth = _growth(self._last_update, (now, counts))
        self._last_update = (now, dict(counts))
        self._update_times.append(now)
        return growth

    def seconds_for(self, updates: int, now: float) -> float | None:
        """Seconds until ``updates`` more are done at the pace of the last ten; None before any."""
        if updates <= 0:
            return 0.0
        if len(self._update_times) < 2:
            return None
        first, last = self._update_times[0], self._update_times[-1]
        each = (last - first) / (len(self._update_times) - 1)
        return max(updates * each - (now - last), 0.0)


def _growth(
    before: tuple[float, Mapping[str, float]], after: tuple[float, Mapping[str, float]]
) -> dict[str, float]:
    passed = after[0] - before[0]
    return {
        name: (count - before[1][name]) / passed if passed > 0 else 0.0
        for name, count in after[1].items()
    }
