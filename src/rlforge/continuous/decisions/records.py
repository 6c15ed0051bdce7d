"""Decisions of agents, their outcomes, and the windows of time that hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from rlforge.continuous.config.market import MODELS
from rlforge.errors import RlforgeError
from rlforge.types import Completion, value

Item = TypeVar("Item")

Json = Mapping[str, Any]
"""A JSON object."""


SCRIPTED, CONTROL = "scripted:", "control"
"""Begin the providers of decisions of scripted traders, and of the version that never learns."""

PROBLEM = "problem"
"""Key in an action that the market refused: the reason. An answer without action is a NO_OP."""

_FORMS = ("%Y-%m-%d-%H:%M", "%Y-%m-%d-%H:%M:%S")


@value
class Metadata:
    """How a decision was made.

    provider: ``scripted:NAME``, ``control``, the name of the run's model, that of another one as
    ``openai:MODEL``, or ``human``. confidence: 0 to 1.
    """

    provider: str
    reasoning: str = ""
    confidence: float = 1.0

    @property
    def learns(self) -> bool:
        """Whether the agent learns; other traders and the control do not."""
        return not self.provider.startswith((SCRIPTED, CONTROL, *MODELS))


@value
class Result:
    """The financial outcome of a decision; RlforgeError for numbers that no trade has.

    pnl, investment: in the market's currency. win_rate: share of the agent's settled trades so far,
    this one included, with a profit.
    """

    pnl: float
    investment: float
    hold_time_minutes: float
    win_rate: float

    def __post_init__(self) -> None:
        sizes = (self.investment, self.hold_time_minutes)
        sound = math.isfinite(self.pnl) and all(0 <= size < math.inf for size in sizes)
        if not (sound and 0 <= self.win_rate <= 1):
            raise RlforgeError(
                f"{self} is no result: investment and hold_time_minutes are 0 or more, "
                "win_rate is between 0 and 1, and all numbers are finite"
            )


@value
class Decision:
    """One action of one agent, with the state before and after it.

    id: unique, and ascending over the agent's decisions. timestamp: seconds since 1970 UTC. state,
    next_state, action: JSON. reward, next_state, result: None until the outcome is known.
    observation, completion: a language model's prompt and answer.

    Example:
        >>> decision = Decision(
        ...     id="agent-1-000001", agent_id="agent-1", window_id="2024-11-13-10:00",
        ...     state={"cash": 100.0}, action={"type": "NO_OP"}, timestamp=1731492000.0,
        ...     metadata=Metadata(provider="human"),
        ... )
        >>> decision.complete
        False
    """

    id: str
    agent_id: str
    window_id: str
    state: Json
    action: Json
    timestamp: float
    metadata: Metadata
    reward: float | None = None
    next_state: Json | None = None
    result: Result | None = None
    observation: str = ""
    completion: Completion | None = None

    @property
    def complete(self) -> bool:
        return self.reward is not None and self.next_state is not None

    @property
    def refused(self) -> bool:
        """Whether the answer named no action, or none that was accepted."""
        return PROBLEM in self.action


def grouped(items: Iterable[Item], key: Callable[[Item], str]) -> dict[str, list[Item]]:
    """The items of each key, keys in order of their first one."""
    found: dict[str, list[Item]] = {}
    for one in items:
        found.setdefault(key(one), []).append(one)
    return found


def by_agent(decisions: Iterable[Decision]) -> dict[str, list[Decision]]:
    return grouped(decisions, lambda one: one.agent_id)


@value
class DecisionOutcome:
    """The outcome of a decision that was written before."""

    decision_id: str
    reward: float
    next_state: Json
    result: Result


@value
class TrainingWindow:
    """The decisions from ``start_time`` up to, not including, ``end_time`` (seconds UTC).

    decisions: in order of time. avg_reward: 0 if none has a reward. reasons: why it is not ready.

    Example:
        >>> window = TrainingWindow(
        ...     id="2024-11-13-10:00", start_time=1731492000.0, end_time=1731495600.0, agents=(),
        ...     decisions=(), avg_reward=0.0, ready=False, reasons=("no decisions",),
        ... )
        >>> window.end_time - window.start_time
        3600.0
    """

    id: str
    start_time: float
    end_time: float
    agents: tuple[str, ...]
    decisions: tuple[Decision, ...]
    avg_reward: float
    ready: bool
    reasons: tuple[str, ...] = ()

    @property
    def known(self) -> float | None:
        """The share of decisions whose outcome is known; None without any."""
        known = sum(decision.complete for decision in self.decisions)
        return known / len(self.decisions) if self.decisions else None


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
