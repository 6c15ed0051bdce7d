"""Win rate, reward and profit, of the policy and of scripted traders."""

from __future__ import annotations

import math
from collections.abc import Callable

from rlforge.continuous.performance import by_player, performance
from rlforge.trajectories.records import Decision, Result

Make = Callable[..., Decision]


def result(pnl: float, investment: float = 10.0) -> Result:
    return Result(pnl=pnl, investment=investment, hold_time_minutes=5.0, win_rate=0.5)


def test_figures_by_hand(make_decision: Make) -> None:
    decisions = [
        make_decision(0, reward=0.6, result=result(4.0)),
        make_decision(1, reward=-0.2, result=result(-1.0)),
        make_decision(2, reward=0.2, result=result(0.0, investment=0.0)),
        make_decision(3, reward=None),
    ]
    found = performance(decisions)
    assert (found.decisions, found.trades) == (3, 2)
    assert (found.win_rate, found.avg_pnl) == (0.5, 1.5)
    assert math.isclose(found.avg_reward, 0.2)


def test_means_over_no_decision_are_nan(make_decision: Make) -> None:
    found = performance([make_decision(reward=None)])
    assert math.isnan(found.win_rate)
    assert math.isnan(found.avg_reward)


def test_players_are_the_policy_first_and_scripted_kinds(make_decision: Make) -> None:
    decisions = [
        make_decision(0, "value-1", tokens=None, provider="scripted:value"),
        make_decision(1, "noise-1", tokens=None, provider="scripted:noise"),
        make_decision(2, "noise-2", tokens=None, provider="scripted:noise"),
        make_decision(3),
    ]
    found = by_player(decisions)
    assert list(found) == ["policy", "scripted:noise", "scripted:value"]
    assert found["scripted:noise"].decisions == 2
