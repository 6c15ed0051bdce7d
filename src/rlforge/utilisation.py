"""Who worked when: the share of wall time of engines, learner, and of neither of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

Span = tuple[float, float]
"""Start and end of work, in seconds of the wall clock."""


def union_length(spans: Iterable[Span]) -> float:
    """Seconds covered by at least one span."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


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


class Utilisation:
    """Collects spans of work since ``started`` and sums them up."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._learner: list[Span] = []
        self._engines: list[Span] = []

    def learner_worked(self, span: Span) -> None:
        """The learner computed during ``span``."""
        self._learner.append(span)

    def engines_worked(self, spans: Iterable[Span]) -> None:
        """Engines computed during ``spans``."""
        self._engines.extend(spans)

    def shares(self, now: float) -> dict[str, float]:
        """``engine_share``, ``learner_share`` and ``idle_share`` (neither) of the time so far."""
        wall = max(now - self._started, 1e-9)

        def clipped(spans: Iterable[Span]) -> list[Span]:
            return [(max(a, self._started), min(b, now)) for a, b in spans if b > self._started]

        engine, learner = clipped(self._engines), clipped(self._learner)
        return {
            "engine_share": union_length(engine) / wall,
            "learner_share": union_length(learner) / wall,
            "idle_share": max(0.0, 1.0 - union_length(engine + learner) / wall),
        }
