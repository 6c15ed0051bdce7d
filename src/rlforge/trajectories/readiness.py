"""Whether a window may be trained on, and what is missing in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rlforge.config.windows import WindowConfig
from rlforge.tracking.formatting import duration, number
from rlforge.trajectories.records import Decision
from rlforge.types import value


@value
class AgentActivity:
    """What one agent did in one window.

    actions: decisions with an action other than NO_OP. complete: those whose outcome is known.
    rewarded, reward_sum: number and sum of known rewards. newest: latest timestamp.
    """

    window_id: str
    agent_id: str
    decisions: int
    actions: int
    complete: int
    rewarded: int
    reward_sum: float
    newest: float


def activity_of(decisions: Iterable[Decision], window_id: str) -> list[AgentActivity]:
    """The activity in ``decisions``, taken as one window's, by agent."""
    by_agent: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_agent.setdefault(decision.agent_id, []).append(decision)
    return [
        AgentActivity(
            window_id=window_id,
            agent_id=agent,
            decisions=len(own),
            actions=sum(decision.action.get("type") != "NO_OP" for decision in own),
            complete=sum(decision.complete for decision in own),
            rewarded=sum(decision.reward is not None for decision in own),
            reward_sum=math.fsum(d.reward for d in own if d.reward is not None),
            newest=max(decision.timestamp for decision in own),
        )
        for agent, own in sorted(by_agent.items())
    ]


def counts(agent: AgentActivity, config: WindowConfig) -> bool:
    """Whether an agent has done enough in its window to count among ``window.min_agents``."""
    return (
        agent.decisions >= config.min_trajectories_per_agent and agent.actions >= config.min_actions
    )


def average_reward(activity: Sequence[AgentActivity]) -> float:
    """Over all decisions with a reward; 0 where there are none."""
    rewarded = sum(agent.rewarded for agent in activity)
    return math.fsum(agent.reward_sum for agent in activity) / rewarded if rewarded else 0.0


def missing(
    activity: Sequence[AgentActivity], config: WindowConfig, left_seconds: float = 0.0
) -> tuple[str, ...]:
    """Why a window is not ready, one sentence each; empty: it is.

    left_seconds: how long it, or its time of grace, still lasts.
    """
    reasons = []
    if left_seconds > 0:
        late = left_seconds <= config.grace_seconds
        wait = "waits for late decisions" if late else "is open"
        reasons.append(f"it {wait} for another {duration(left_seconds)}")
    if not activity:
        return (*reasons, "it has no decisions")
    enough = sum(counts(agent, config) for agent in activity)
    if enough < config.min_agents:
        reasons.append(
            f"{enough} of {config.min_agents} agents have "
            f"{config.min_trajectories_per_agent} decisions and {config.min_actions} actions"
        )
    decisions = sum(agent.decisions for agent in activity)
    open_ones = decisions - sum(agent.complete for agent in activity)
    if decisions - open_ones < config.completeness * decisions - 1e-9:
        share = "" if config.completeness == 1 else f"; {config.completeness:.0%} must be known"
        reasons.append(f"{open_ones} of {decisions} decisions have no known outcome{share}")
    average, threshold = average_reward(activity), config.avg_reward_threshold
    # Sums of the same rewards in another order differ in the last digits.
    if threshold is not None and average < threshold - 1e-9:
        reasons.append(f"average reward {number(average)} is below {threshold:g}")
    return tuple(reasons)
