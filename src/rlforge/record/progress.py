"""``Progress``: all that a display shows of a run, stored in ``progress.json``."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

from rlforge.record.results import Alarm, ApiUsage, ExactResult, LadderRow, MatchRow, PoolEntry
from rlforge.record.signals import Signal
from rlforge.system.hardware import GpuLoad
from rlforge.types import EvalResult, value

#: Evaluations per opponent in the small curve of the display.
HISTORY = 24
#: Seconds over which the rates of a display are taken.
RATE_SECONDS = 60.0
#: Updates whose mean duration gives the time left.
PACE_UPDATES = 50

RunStatus = Literal["running", "done", "failed", "interrupted", "killed"]


@value
class WinRateRow:
    """The latest evaluation against an opponent, the first (``start_…``), and newest win rates."""

    env_id: str
    opponent: str
    step: int
    games: int
    win_rate: float
    draw_rate: float
    loss_rate: float
    ci95: tuple[float, float]
    start_step: int
    start_win_rate: float
    history: tuple[float, ...]

    @classmethod
    def after(cls, result: EvalResult, before: WinRateRow | None) -> WinRateRow:
        """The row after ``result``; before: None for the first."""
        history = before.history if before else ()
        return cls(
            env_id=result.env_id,
            opponent=result.opponent,
            step=result.step,
            games=result.games,
            win_rate=result.win_rate,
            draw_rate=result.draw_rate,
            loss_rate=result.loss_rate,
            ci95=result.ci95,
            start_step=before.start_step if before else result.step,
            start_win_rate=before.start_win_rate if before else result.win_rate,
            # Only the newest: progress.json, which has them, is written each second.
            history=(*history, result.win_rate)[-HISTORY:],
        )


@value
class ExactRow:
    """The latest exact measure in an environment, the first (``start``), and newest ones.

    env_id: as ``ExactResult.measured`` says.
    """

    env_id: str
    step: int
    nash_conv: float
    start_step: int
    start: float
    history: tuple[float, ...]

    @classmethod
    def after(cls, result: ExactResult, before: ExactRow | None) -> ExactRow:
        """The row after ``result``; before: None for the first."""
        history = before.history if before else ()
        return cls(
            env_id=result.measured,
            step=result.step,
            nash_conv=result.nash_conv,
            start_step=before.start_step if before else result.step,
            start=before.start if before else result.nash_conv,
            history=(*history, result.nash_conv)[-HISTORY:],
        )


@value
class CollectionRow:
    """Training games of an environment: means over the tracker's window; None: no value yet.

    Rates are shares of trained seats (win, draw), of their turns (format, invalid, truncated) and
    of games (failed). games: since the process started.
    """

    env_id: str
    games: int
    win_rate: float | None
    draw_rate: float | None
    reward: float | None
    format_success: float | None
    invalid_rate: float | None
    game_length: float | None
    completion_length: float | None
    truncated_rate: float | None
    failed_rate: float | None


@value
class EngineRow:
    """An engine: waiting and running requests, tokens per second and so far."""

    name: str
    queued: int
    running: int
    tok_s: float
    tokens: int = 0


@value
class WindowRow:
    """A finished window of continuous training.

    Attributes:
        reward: Mean over decisions of the policy.
        difference, low, high: From the control agents, with its interval.
        version: Version that came of the window.
        deployed: Whether the version serves; None: it is on trial, or there is none.
        reason: Why nothing was trained, or why the version does not serve.
        scores: Metrics of the scorer.
    """

    window_id: str
    decisions: int
    trained: int
    reward: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    win_rate: float | None = None
    version: str | None = None
    deployed: bool | None = None
    reason: str = ""
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> WindowRow:
        """A row from a line of windows.jsonl."""
        return cls(
            window_id=row["window_id"],
            decisions=row["trajectories"],
            trained=int(row["batch/trained_decisions"]),
            reward=row.get("policy_reward"),
            difference=row.get("reward_difference"),
            low=row.get("reward_difference_low"),
            high=row.get("reward_difference_high"),
            win_rate=row.get("win_rate"),
            version=row["version"],
            deployed=row["deployment_success"],
            reason=row["reason"],
            scores={
                name.removeprefix("scorer/"): float(score)
                for name, score in row.items()
                if name.startswith("scorer/") and score is not None
            },
        )


@value
class TraderRow:
    """Decisions of a kind of agent in the last window; None where nothing can be averaged.

    trades: with money at stake; win_rate and avg_pnl are of these.
    """

    name: str
    decisions: int
    trades: int
    refused: int
    win_rate: float | None
    avg_reward: float | None
    avg_pnl: float | None


@value
class Progress:
    """A run at one moment.

    Attributes:
        updated_at: Unix time.
        elapsed_s: With the earlier parts of a resumed run.
        games, tokens: Finished training games, and the tokens generated in them.
        games_per_s, tokens_per_s: Over the last minute.
        learner: Metrics of the last update, as in metrics.jsonl.
        shares: Shares of wall time, and further figures of the update.
        coverage: Share of distinct action n-grams, per environment.
        unit: Unit that ``update`` counts.
        window: The last one, in a line.
        activity: Phase of a run that plays no games.
    """

    run_name: str
    status: RunStatus
    updated_at: float
    elapsed_s: float
    update: int
    total_updates: int
    eta_s: float | None = None
    games: int = 0
    failed_games: int = 0
    tokens: int = 0
    samples: int = 0
    games_per_s: float = 0.0
    tokens_per_s: float = 0.0
    learner: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    coverage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    win_rates: tuple[WinRateRow, ...] = ()
    exact: tuple[ExactRow, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    signals: tuple[Signal, ...] = ()
    collection: tuple[CollectionRow, ...] = ()
    ladder: tuple[LadderRow, ...] = ()
    ratings: tuple[PoolEntry, ...] = ()
    matches: tuple[MatchRow, ...] = ()
    engines: tuple[EngineRow, ...] = ()
    gpus: tuple[GpuLoad, ...] = ()
    api: tuple[ApiUsage, ...] = ()
    unit: Literal["update", "window"] = "update"
    window: str = ""
    windows: tuple[WindowRow, ...] = ()
    traders: tuple[TraderRow, ...] = ()
    activity: str = ""

    @property
    def reached(self) -> str:
        """``UPDATE/TOTAL``; ``UPDATE`` in a run without end."""
        return f"{self.update}/{self.total_updates}" if self.total_updates else str(self.update)


class Pace:
    """Rates of rising counters and the time between updates; ``now`` is run time.

    Example:
        >>> pace = Pace(now=0.0, counts={"games": 0})
        >>> pace.update(now=50.0, counts={"games": 50})
        {'games': 1.0}
        >>> pace.update(now=60.0, counts={"games": 100})
        {'games': 5.0}
        >>> pace.seconds_for(updates=3, now=60.0)
        30.0
    """

    def __init__(self, now: float, counts: Mapping[str, float]) -> None:
        self._marks = deque([(now, dict(counts))])
        self._last_update = (now, dict(counts))
        self._update_times: deque[float] = deque(maxlen=PACE_UPDATES + 1)

    def rates(self, now: float, counts: Mapping[str, float]) -> dict[str, float]:
        """Growth per second of each counter over the last ``RATE_SECONDS``."""
        self._marks.append((now, dict(counts)))
        # The oldest mark lies just before the stretch, which is covered whole.
        while len(self._marks) > 2 and now - self._marks[1][0] >= RATE_SECONDS:
            self._marks.popleft()
        return _growth(self._marks[0], (now, counts))

    def update(self, now: float, counts: Mapping[str, float]) -> dict[str, float]:
        """Note an update; growth per second of each counter since the update before."""
        growth = _growth(self._last_update, (now, counts))
        self._last_update = (now, dict(counts))
        self._update_times.append(now)
        return growth

    def seconds_for(self, updates: int, now: float) -> float | None:
        """Seconds for ``updates`` more; None before the second update of this process."""
        if updates <= 0:
            return 0.0
        intervals = [later - earlier for earlier, later in pairwise(self._update_times)]
        if not intervals:
            return None
        each = statistics.fmean(intervals)
        # An evaluation or a burst of games puts one or two of few intervals far from the rest.
        if len(intervals) < 10:
            each = (each + statistics.median_low(intervals)) / 2
        # Time since the last update is part of the next one, which may be late: no less than 0.
        return max(updates * each - (now - self._update_times[-1]), 0.0)


def _growth(
    before: tuple[float, Mapping[str, float]], after: tuple[float, Mapping[str, float]]
) -> dict[str, float]:
    passed = after[0] - before[0]
    return {
        name: (count - before[1][name]) / passed if passed > 0 else 0.0
        for name, count in after[1].items()
    }
