"""Windows of a store: which decisions are trained on, and why a window is not ready."""

import pytest

from rlforge.continuous.config.continuous import WindowConfig
from rlforge.continuous.decisions.records import Metadata
from rlforge.continuous.decisions.store import TrajectoryStore
from rlforge.continuous.decisions.windows import (
    Windows,
    activity_of,
    average_reward,
    counts,
    missing,
)

from .conftest import TEN

HOUR = 3600.0
TEN_ID, ELEVEN_ID = "2024-11-13-10:00", "2024-11-13-11:00"


@pytest.fixture
def store(tmp_path, make):
    """Three agents, five decisions each in the window of ten; two agents in that of eleven."""
    with TrajectoryStore(tmp_path / "store") as opened:
        opened.append([make.whole(n, f"agent-{a}") for a in range(3) for n in range(5)])
        opened.append([make.whole(n, f"agent-{a}") for a in range(2) for n in range(60, 65)])
        yield opened


def test_a_training_window_has_the_documented_fields(store):
    window = Windows(store, WindowConfig()).get(TEN_ID)
    assert (window.id, window.start_time, window.end_time) == (TEN_ID, TEN, TEN + HOUR)
    assert window.agents == ("agent-0", "agent-1", "agent-2")
    assert (len(window.decisions), window.known) == (15, 1.0)
    brief = Windows(store, WindowConfig()).get(TEN_ID, brief=True)
    assert activity_of(brief.decisions) == activity_of(window.decisions)
    assert brief.decisions[0].state == {}
    assert [d.timestamp for d in window.decisions] == sorted(d.timestamp for d in window.decisions)
    assert (window.avg_reward, window.ready, window.reasons) == (0.5, True, ())
    assert Windows(store, WindowConfig()).batch(TEN_ID) == window


def test_a_window_that_is_not_ready_says_why_until_late_decisions_are_written(store, make):
    windows = Windows(store, WindowConfig(avg_reward_threshold=0.6))
    window = windows.get(ELEVEN_ID)
    assert not window.ready
    assert window.reasons == (
        "2 of 3 learning agents have 5 decisions and 5 actions",
        "average reward 0.5 is below 0.6",
    )
    empty = Windows(store, WindowConfig()).get("2024-11-13-12:00")
    assert (empty.decisions, empty.agents, empty.ready) == ((), (), False)
    assert empty.reasons == ("it has no decisions",)
    store.append([make.whole(n, "late", reward=1.0) for n in range(60, 65)])
    assert windows.get(ELEVEN_ID).ready


def test_a_window_is_open_until_its_end_and_grace_are_over(store):
    windows = Windows(store, WindowConfig(grace_seconds=60))
    assert windows.get(TEN_ID, now=TEN + 60).reasons == ("it is open for another 1:00:00",)
    assert windows.get(TEN_ID, now=TEN + HOUR + 30).reasons == (
        "it waits for late decisions for another 0:00:30",
    )
    assert windows.get(TEN_ID, now=TEN + HOUR + 60).ready
    assert windows.due_at(TEN_ID) == TEN + HOUR + 60


def test_rolling_batches_are_the_newest_complete_decisions(store, make):
    store.append([make(66, "open"), make.whole(130, "after")])
    config = WindowConfig(mode="rolling", rolling_decisions=20, min_agents=2)
    batch = Windows(store, config).batch(ELEVEN_ID)
    assert (batch.id, batch.ready, len(batch.decisions)) == (ELEVEN_ID, True, 20)
    assert {d.window_id for d in batch.decisions} == {TEN_ID, ELEVEN_ID}
    assert not {"open", "after"} & set(batch.agents)
    assert (batch.start_time, batch.end_time) == (batch.decisions[0].timestamp, TEN + 2 * HOUR)
    windows = Windows(store, WindowConfig(mode="rolling", rolling_decisions=26))
    assert windows.batch(ELEVEN_ID).reasons == ("25 of 26 complete decisions are there",)
    assert windows.batch("2024-11-13-09:00").reasons == (
        "0 of 26 complete decisions are there",
        "it has no decisions",
    )


def test_a_window_may_be_read_with_as_many_open_outcomes_as_completeness_allows(store):
    decisions = len(Windows(store, WindowConfig()).get(TEN_ID).decisions)
    for settings, expected in (
        ({}, 0),
        ({"completeness": 0.9}, decisions // 10),
        ({"completeness": 0.0}, decisions),
        ({"grace_seconds": 0.0}, None),
        ({"mode": "rolling"}, None),
    ):
        assert Windows(store, WindowConfig(**settings)).may_stay_open(TEN_ID) == expected


def window(make, agents=3, each=5, **changes):
    return [make.whole(i, f"agent-{a}", **changes) for a in range(agents) for i in range(each)]


def reasons(decisions, left=0.0, **config):
    return missing(activity_of(decisions), WindowConfig(**config), left)


def test_an_agent_with_few_decisions_does_not_count_and_does_no_harm(make):
    assert reasons(window(make)) == ()
    two = window(make, agents=2)
    assert reasons(two) == ("2 of 3 learning agents have 5 decisions and 5 actions",)
    assert reasons(two, min_agents=2) == ()
    few = [*window(make), make.whole(0, "late")]
    assert reasons(few) == ()
    assert reasons(few, min_agents=4) == ("3 of 4 learning agents have 5 decisions and 5 actions",)
    assert reasons(few, min_agents=4, min_trajectories_per_agent=1, min_actions=1) == ()


def test_scripted_traders_do_not_count_and_refused_answers_are_no_obstacle(make):
    scripted = Metadata(provider="scripted:insider")
    assert reasons(window(make, metadata=scripted), avg_reward_threshold=None) == (
        "0 of 3 learning agents have 5 decisions and 5 actions",
    )
    # An answer without an action is a NO_OP with a problem.
    silent = {"type": "NO_OP", "problem": "Your answer held no JSON action."}
    poor = [make.whole(20 + i, "noise-1", metadata=scripted, reward=-0.875) for i in range(9)]
    for answers in (0, 1, 5):
        model = window(make, each=10 - answers, reward=-1.0, action=silent)
        model += window(make, each=answers, reward=0.3125)
        assert reasons([*model, *poor], avg_reward_threshold=0.3) == ()


def test_rewards_outside_of_the_bounds_are_left_out(store, make, caplog):
    """Their sum is no number."""
    store.append([make.whole(n, "liar", reward=reward) for n, reward in enumerate((1e308, 1e308))])
    window = Windows(store, WindowConfig(), rewards=(-1.0, 1.0)).batch(TEN_ID)
    assert (window.ready, len(window.decisions), window.avg_reward) == (True, 15, 0.5)
    assert "liar" not in window.agents
    assert "2 of 17 decisions are left out, whose rewards lie outside of [-1, 1]" in caplog.text


def test_every_reason_is_given(make):
    idle = [make.whole(i, "idle", action={"type": "NO_OP"}) for i in range(9)]
    idle += window(make, agents=2)
    assert reasons(idle) == ("2 of 3 learning agents have 5 decisions and 5 actions",)
    assert reasons(idle, min_actions=0) == ()
    open_ones = [*window(make), make(5), make(6)]
    said = "2 of 17 decisions have no known outcome"
    assert reasons(open_ones) == (said,)
    assert reasons(open_ones, completeness=0.95) == (f"{said}; 95% must be known",)
    assert reasons(open_ones, completeness=0.88) == ()
    low = window(make, reward=0.3)
    assert reasons(low, avg_reward_threshold=0.3) == reasons(low, avg_reward_threshold=None) == ()
    assert reasons(low, avg_reward_threshold=0.31) == ("average reward 0.3 is below 0.31",)
    assert reasons([make.whole(1, reward=0.1), make(2)], left=1, avg_reward_threshold=0.3) == (
        "it is open for another 0:00:01",
        "0 of 3 learning agents have 5 decisions and 5 actions",
        "1 of 2 decisions have no known outcome",
        "average reward 0.1 is below 0.3",
    )
    assert reasons([]) == ("it has no decisions",)


def test_activity_is_counted_by_agent(make):
    decisions = [make.whole(1, "b", reward=0.1), make(2, "b"), make.whole(3, "a", reward=0.4)]
    decisions.append(make.whole(4, "a", action={"type": "NO_OP"}, reward=0.5, next_state=None))
    a, b = activity_of(decisions)
    assert (a.agent_id, a.decisions, a.actions, a.complete, a.rewarded) == ("a", 2, 1, 1, 2)
    assert (b.decisions, b.actions, b.complete, b.reward_sum) == (2, 2, 1, 0.1)
    assert average_reward([a, b]) == pytest.approx(1.0 / 3)
    assert average_reward([]) == 0.0
    assert counts(a, WindowConfig(min_actions=1, min_trajectories_per_agent=2))
