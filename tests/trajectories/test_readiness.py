"""Why a window is not ready, in words."""

from __future__ import annotations

from typing import Any

import pytest

from rlforge.config.windows import WindowConfig
from rlforge.trajectories.readiness import activity_of, average_reward, counts, missing


def window(make: Any, agents: int = 3, each: int = 5, **changes: Any) -> list[Any]:
    return [make.whole(i, f"agent-{a}", **changes) for a in range(agents) for i in range(each)]


def reasons(decisions: list[Any], left: float = 0.0, **config: Any) -> tuple[str, ...]:
    return missing(activity_of(decisions, "w"), WindowConfig(**config), left)


def test_the_documents_minimum_is_ready(make: Any) -> None:
    assert reasons(window(make)) == ()


def test_too_few_agents(make: Any) -> None:
    assert reasons(window(make, agents=2)) == ("2 of 3 agents have 5 decisions and 5 actions",)
    assert reasons(window(make, agents=2), min_agents=2) == ()


def test_an_agent_with_few_decisions_does_not_count_but_does_not_harm(make: Any) -> None:
    few = [*window(make), make.whole(0, "late")]
    assert reasons(few) == ()
    assert reasons(few, min_agents=4) == ("3 of 4 agents have 5 decisions and 5 actions",)
    assert reasons(few, min_agents=4, min_trajectories_per_agent=1, min_actions=1) == ()


def test_doing_nothing_is_no_action(make: Any) -> None:
    idle = window(make, agents=2) + [
        make.whole(i, "idle", action={"type": "NO_OP"}) for i in range(9)
    ]
    assert reasons(idle) == ("2 of 3 agents have 5 decisions and 5 actions",)
    assert reasons(idle, min_actions=0) == ()


def test_unknown_outcomes(make: Any) -> None:
    open_ones = [*window(make), make(5), make(6)]
    assert reasons(open_ones) == ("2 of 17 decisions have no known outcome",)
    assert reasons(open_ones, completeness=0.95) == (
        "2 of 17 decisions have no known outcome; 95% must be known",
    )
    assert reasons(open_ones, completeness=0.88) == ()


@pytest.mark.parametrize(("threshold", "ready"), [(0.3, True), (0.31, False), (None, True)])
def test_average_reward(make: Any, threshold: float | None, ready: bool) -> None:
    decisions = window(make, reward=0.3)
    said = reasons(decisions, avg_reward_threshold=threshold)
    assert said == (() if ready else ("average reward 0.3 is below 0.31",))


def test_time_left_and_grace(make: Any) -> None:
    assert reasons(window(make), left=720) == ("it is open for another 12:00",)
    assert reasons(window(make), left=30, grace_seconds=60) == (
        "it waits for late decisions for another 0:30",
    )


def test_every_reason_is_given(make: Any) -> None:
    assert reasons([make.whole(1, reward=0.1), make(2)], left=1) == (
        "it is open for another 0:01",
        "0 of 3 agents have 5 decisions and 5 actions",
        "1 of 2 decisions have no known outcome",
        "average reward 0.1 is below 0.3",
    )
    assert reasons([]) == ("it has no decisions",)


def test_activity_is_counted_by_agent(make: Any) -> None:
    decisions = [make.whole(1, "b", reward=0.1), make(2, "b"), make.whole(3, "a", reward=0.4)]
    decisions.append(make.whole(4, "a", action={"type": "NO_OP"}, reward=0.5, next_state=None))
    a, b = activity_of(decisions, "w")
    assert (a.agent_id, a.decisions, a.actions, a.complete, a.rewarded) == ("a", 2, 1, 1, 2)
    assert (b.decisions, b.actions, b.complete, b.reward_sum) == (2, 2, 1, 0.1)
    assert b.newest == decisions[1].timestamp
    assert average_reward([a, b]) == pytest.approx(1.0 / 3)
    assert average_reward([]) == 0.0
    assert counts(a, WindowConfig(min_actions=1, min_trajectories_per_agent=2))
