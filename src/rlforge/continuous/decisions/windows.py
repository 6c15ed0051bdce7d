"""The windows of a store: their decisions, and whether they may be trained on."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterable, Sequence
from datetime import timedelta

from rlforge.continuous.config.continuous import WindowConfig
from rlforge.continuous.decisions.records import Decision, TrainingWindow, WindowGrid, by_agent
from rlforge.continuous.decisions.store import StoreReader
from rlforge.types import value

log = logging.getLogger(__name__)


@value
class AgentActivity:
    """Counts of one agent's decisions in a window.

    actions: other than NO_OP, refused ones included. rewarded, reward_sum: without refused ones.
    """

    agent_id: str
    learns: bool
    decisions: int
    actions: int
    complete: int
    rewarded: int
    reward_sum: float


def activity_of(decisions: Iterable[Decision]) -> list[AgentActivity]:
    return [
        AgentActivity(
            agent_id=agent,
            learns=any(decision.metadata.learns for decision in own),
            decisions=len(own),
            actions=sum(d.refused or d.action.get("type") != "NO_OP" for d in own),
            complete=sum(decision.complete for decision in own),
            rewarded=sum(d.reward is not None and not d.refused for d in own),
            reward_sum=math.fsum(d.reward for d in own if d.reward is not None and not d.refused),
        )
        for agent, own in sorted(by_agent(decisions).items())
    ]


def counts(agent: AgentActivity, config: WindowConfig) -> bool:
    """Whether an agent that learns decided and acted enough to be one of ``window.min_agents``."""
    decided = agent.decisions >= config.min_trajectories_per_agent
    return agent.learns and decided and agent.actions >= config.min_actions


def average_reward(activity: Sequence[AgentActivity]) -> float:
    """The average over the learning agents' rewarded and accepted decisions; 0 without any."""
    # Refused answers do not count, else they could keep a window from teaching against them.
    learning = [agent for agent in activity if agent.learns]
    rewarded = sum(agent.rewarded for agent in learning)
    return math.fsum(agent.reward_sum for agent in learning) / rewarded if rewarded else 0.0


def missing(
    activity: Sequence[AgentActivity], config: WindowConfig, left_seconds: float = 0.0
) -> tuple[str, ...]:
    """The reasons why a window is not ready. left_seconds: to its end and grace period."""
    reasons = []
    if left_seconds > 0:
        late = left_seconds <= (config.grace_seconds or 0.0)
        wait = "waits for late decisions" if late else "is open"
        reasons.append(f"it {wait} for another {timedelta(seconds=round(left_seconds))}")
    if not activity:
        return (*reasons, "it has no decisions")
    enough = sum(counts(agent, config) for agent in activity)
    if enough < config.min_agents:
        reasons.append(
            f"{enough} of {config.min_agents} learning agents have "
            f"{config.min_trajectories_per_agent} decisions and {config.min_actions} actions"
        )
    decisions = sum(agent.decisions for agent in activity)
    open_ones = decisions - sum(agent.complete for agent in activity)
    # The tolerance is for rounding: 0.55 * 100 is above 55.
    if decisions - open_ones < config.completeness * decisions - 1e-9:
        share = "" if config.completeness == 1 else f"; {config.completeness:.0%} must be known"
        reasons.append(f"{open_ones} of {decisions} decisions have no known outcome{share}")
    average, threshold = average_reward(activity), config.avg_reward_threshold
    accepted = any(agent.learns and agent.rewarded for agent in activity)
    # Sums of the same rewards in another order differ by rounding; a window without accepted
    # answers is learned from, to make them acceptable.
    if threshold is not None and accepted and average < threshold - 1e-9:
        reasons.append(f"average reward {average:.4g} is below {threshold:g}")
    return tuple(reasons)


class Windows:
    """The windows of ``reader`` by the rules of ``config``.

    now: the time by the clock of the decisions; without it every window has ended. rewards: the
    least and the largest; decisions with others are left out.
    """

    def __init__(
        self,
        reader: StoreReader,
        config: WindowConfig,
        rewards: tuple[float, float] = (-math.inf, math.inf),
    ) -> None:
        self._reader = reader
        self._config = config
        self._rewards = rewards
        self.grid = WindowGrid(config.minutes)

    def ids(self) -> list[str]:
        return self._reader.window_ids()

    def due_at(self, window_id: str) -> float:
        """The time at which a window is over, ``window.grace_seconds`` included."""
        return self.grid.span(window_id)[1] + (self._config.grace_seconds or 0.0)

    def may_stay_open(self, window_id: str) -> int | None:
        """How many decisions may lack an outcome when a window is read; None: none is awaited."""
        if self._config.grace_seconds is not None or self._config.mode == "rolling":
            # A grace period is over by then, and a rolling window takes no open decisions.
            return None
        decisions = len(self._reader.rows(window_id, brief=True))
        return math.floor((1 - self._config.completeness) * decisions + 1e-9)

    def get(
        self, window_id: str, now: float | None = None, *, brief: bool = False
    ) -> TrainingWindow:
        """One window, empty and not ready where it has no decisions. brief: see ``StoreReader``."""
        decisions = self._reader.decisions(window_id, brief=brief)
        return self._window(window_id, decisions, now)

    def batch(self, window_id: str, now: float | None = None) -> TrainingWindow:
        """The decisions to train on after the end of a window, by ``window.mode``."""
        if self._config.mode == "windowed":
            return self.get(window_id, now)
        end = self.grid.span(window_id)[1]
        wanted = self._config.rolling_decisions
        decisions = self._reader.newest(wanted, before=end, complete=True)
        window = self._window(window_id, decisions, now)
        # The decisions may reach back into earlier windows.
        if decisions:
            window = dataclasses.replace(window, start_time=decisions[0].timestamp)
        if len(decisions) == wanted:
            return window
        few = f"{len(decisions)} of {wanted} complete decisions are there"
        return dataclasses.replace(window, ready=False, reasons=(few, *window.reasons))

    def _window(
        self, window_id: str, decisions: Sequence[Decision], now: float | None
    ) -> TrainingWindow:
        low, high = self._rewards
        kept = [one for one in decisions if one.reward is None or low <= one.reward <= high]
        if left_out := len(decisions) - len(kept):
            log.warning(
                "%s: %d of %d decisions are left out, whose rewards lie outside of [%g, %g]",
                *(window_id, left_out, len(decisions), low, high),
            )
        start, end = self.grid.span(window_id)
        activity = activity_of(kept)
        left = 0.0 if now is None else self.due_at(window_id) - now
        reasons = missing(activity, self._config, left)
        return TrainingWindow(
            id=window_id,
            start_time=start,
            end_time=end,
            agents=tuple(agent.agent_id for agent in activity),
            decisions=tuple(kept),
            avg_reward=average_reward(activity),
            ready=not reasons,
            reasons=reasons,
        )
