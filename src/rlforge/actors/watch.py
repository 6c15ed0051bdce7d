"""What successive looks at the engines tell: token rates, and that one began a new life."""

from __future__ import annotations

from rlforge.actors.engine import EngineReport


class EngineWatch:
    """Compares each engine's report with the one before."""

    def __init__(self, started: float) -> None:
        """started: when the first engine may have begun, in seconds of the wall clock."""
        self._started = started
        self._last: dict[int, tuple[float, EngineReport]] = {}

    def look(self, index: int, report: EngineReport, now: float) -> tuple[dict[str, float], bool]:
        """Queue, running sequences and tokens a second since the last look; whether it restarted.

        A restarted engine counts its tokens from nothing again.
        """
        then, before = self._last.get(index, (self._started, None))
        self._last[index] = (now, report)
        restarted = before is not None and before.life != report.life
        counted = 0 if before is None or restarted else before.stats.generated_tokens
        stats = report.stats
        rate = (stats.generated_tokens - counted) / max(now - then, 1e-9)
        return {"queued": stats.queued, "running": stats.running, "tok_s": rate}, restarted
