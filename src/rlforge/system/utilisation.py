"""Shares of wall time in which engines worked, the learner worked, and neither did."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

#: Start and end of work, in seconds of the wall clock.
Span = tuple[float, float]

#: Most seconds between the start of an engine's span and its report; polls are seconds apart.
LATEST_REPORT_S = 600.0


class WorkLog:
    """Spans of one worker that were not taken yet; one thread adds them, another takes them."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def take(self) -> list[Span]:
        """All spans since the last call; those less than 1 ms apart are joined."""
        joined: list[Span] = []
        for _ in range(len(self._spans)):
            start, end = self._spans.popleft()
            if joined and start - joined[-1][1] < 1e-3:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined


class Covered:
    """The seconds after ``since`` that at least one span covers; spans may come in any order.

    Example:
        >>> covered = Covered(since=0.0)
        >>> for span in ((5.0, 7.0), (1.0, 3.0), (2.0, 4.0)):
        ...     covered.add(span)
        >>> covered.seconds(until=10.0), covered.seconds(until=6.0)
        (5.0, 4.0)
    """

    def __init__(self, since: float) -> None:
        self._settled = since
        # Bisection needs the spans after ``_settled`` in order, and those that touch joined.
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._seconds = 0.0

    def add(self, span: Span) -> None:
        """``span`` is covered; its part before the settled spans' end is ignored."""
        start, end = max(span[0], self._settled), span[1]
        if end <= start:
            return
        first, beyond = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if first < beyond:
            self._seconds -= sum(self._ends[first:beyond]) - sum(self._starts[first:beyond])
            start = min(start, self._starts[first])
            end = max(end, self._ends[beyond - 1])
        self._starts[first:beyond], self._ends[first:beyond] = [start], [end]
        self._seconds += end - start

    def seconds(self, until: float) -> float:
        """Seconds covered before ``until``."""
        late = bisect_right(self._ends, until)
        after = zip(self._starts[late:], self._ends[late:], strict=True)
        return self._seconds - sum(end - max(start, until) for start, end in after)

    def settle(self, before: float) -> None:
        """Keep only the sum of spans that ended ``before``: no later ``add`` touches them."""
        done = bisect_right(self._ends, before)
        if done:
            self._settled = self._ends[done - 1]
            del self._starts[:done], self._ends[:done]


class Utilisation:
    """Sums up spans of work since ``started``; those of the learner arrive in order.

    Example:
        >>> utilisation = Utilisation(started=0.0)
        >>> utilisation.engines_worked([(0.0, 5.0)])
        >>> utilisation.learner_worked((4.0, 7.5))
        >>> utilisation.shares(now=10.0)
        {'engine_share': 0.5, 'learner_share': 0.35, 'idle_share': 0.25}
    """

    def __init__(self, started: float) -> None:
        self._started = self._learned = started
        self._learner, self._engines, self._either = (Covered(started) for _ in range(3))

    def learner_worked(self, span: Span) -> None:
        self._learned = max(self._learned, span[1])
        for covered in (self._learner, self._either):
            covered.add(span)

    def engines_worked(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self._engines.add(span)
            self._either.add(span)

    def shares(self, now: float) -> dict[str, float]:
        """``engine_share``, ``learner_share`` and ``idle_share`` (neither) until ``now``."""
        wall = max(now - self._started, 1e-9)
        # No later span begins before this time; a sum of older spans saves memory in long runs.
        for covered in (self._learner, self._engines, self._either):
            covered.settle(min(now - LATEST_REPORT_S, self._learned))
        return {
            "engine_share": self._engines.seconds(now) / wall,
            "learner_share": self._learner.seconds(now) / wall,
            "idle_share": max(0.0, 1.0 - self._either.seconds(now) / wall),
        }
