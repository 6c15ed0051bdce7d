"""Who worked when: the share of wall time of engines, learner, and of neither of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

Span = tuple[float, float]
"""Start and end of work, in seconds of the wall clock."""


LATEST_REPORT_S = 600.0
"""Engines are asked for their spans every few seconds: none is told of later than this."""


class WorkLog:
    """Spans of one worker, until somebody takes them; written and taken by different threads."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque()

    def add(self, span: Span) -> None:
        """The worker computed during ``span``."""
        self._spans.append(span)

    def take(self) -> list[Span]:
        """All spans since the last call, those with less than a millisecond between them joined."""
        joined: list[Span] = []
        for _ in range(len(self._spans)):
            start, end = self._spans.popleft()
            if joined and start - joined[-1][1] < 1e-3:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((start, end))
        return joined


class Covered:
    """Time since ``since`` that is covered by one span at least, of many that come in any order."""

    def __init__(self, since: float) -> None:
        self._settled = since
        # Spans after that, those that touch each other joined, in order.
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._seconds = 0.0

    def add(self, span: Span) -> None:
        """``span`` is covered; what of it lies before all that is settled no longer counts."""
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
        """What is covered before ``until``."""
        late = bisect_right(self._ends, until)
        after = zip(self._starts[late:], self._ends[late:], strict=True)
        return self._seconds - sum(end - max(start, until) for start, end in after)

    def settle(self, before: float) -> None:
        """Keep of spans that ended ``before`` only their sum: no span that touches them comes."""
        done = bisect_right(self._ends, before)
        if done:
            self._settled = self._ends[done - 1]
            del self._starts[:done], self._ends[:done]


class Utilisation:
    """Collects spans of work since ``started`` and sums them up.

    The learner's come in order, the engines' at most ``LATEST_REPORT_S`` after they began. What is
    older than that, and than the learner's last, is kept as a sum.
    """

    def __init__(self, started: float) -> None:
        self._started = self._learned = started
        self._learner, self._engines, self._either = (Covered(started) for _ in range(3))

    def learner_worked(self, span: Span) -> None:
        """The learner computed during ``span``."""
        self._learned = max(self._learned, span[1])
        for covered in (self._learner, self._either):
            covered.add(span)

    def engines_worked(self, spans: Iterable[Span]) -> None:
        """Engines computed during ``spans``."""
        for span in spans:
            self._engines.add(span)
            self._either.add(span)

    def shares(self, now: float) -> dict[str, float]:
        """``engine_share``, ``learner_share`` and ``idle_share`` (neither) of the time so far."""
        wall = max(now - self._started, 1e-9)
        for covered in (self._learner, self._engines, self._either):
            covered.settle(min(now - LATEST_REPORT_S, self._learned))
        return {
            "engine_share": self._engines.seconds(now) / wall,
            "learner_share": self._learner.seconds(now) / wall,
            "idle_share": max(0.0, 1.0 - self._either.seconds(now) / wall),
        }
