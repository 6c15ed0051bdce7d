"""The sentinel's tests of signals: what they notice and how soon, and what they let pass."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tests import factories

from rlforge.config.sentinel import SentinelConfig
from rlforge.lab.sentinel.signals import Sentinel, ShiftTest
from rlforge.record.results import ExactResult
from rlforge.types import EvalResult

UPDATES = 400
COLLAPSE = 200


def course(seed: int, *, start: float, end: float, updates: float, noise: float) -> np.ndarray:
    """Exponential decay in ``updates``, with noise of which half goes on to the next one."""
    draw = np.random.default_rng(seed).normal(size=UPDATES) * noise * math.sqrt(0.75)
    error = np.zeros(UPDATES)
    for step in range(1, UPDATES):
        error[step] = error[step - 1] / 2 + draw[step]
    return end + (start - end) * np.exp(-np.arange(UPDATES) / updates) + error


def alarms(signals: list[dict[str, float]], **config: float) -> list[tuple[int, str, int]]:
    """Updates at which the sentinel gave an alarm, the signal, and since when."""
    sentinel = Sentinel(SentinelConfig(**config))
    return [
        (alarm.step, alarm.signal, alarm.since)
        for step, metrics in enumerate(signals)
        for alarm in sentinel.learned(step, metrics)
    ]


def evaluation(step: int, wins: int, games: int = 200, opponent: str = "base") -> EvalResult:
    about = {"env_id": "kuhn_poker", "opponent": opponent, "draws": 0, "losses": games - wins}
    return factories.evaluation(step, wins, games, **about)


def test_learning_that_goes_well_gives_no_alarm() -> None:
    for seed in range(10):
        entropy = course(seed, start=1.2, end=0.15, updates=40, noise=0.01)
        constant = course(seed + 50, start=0.05, end=0.7, updates=60, noise=0.04)
        gap = course(seed + 90, start=0.0, end=0.3, updates=150, noise=0.08)
        rows = [
            {"entropy": float(e), "no_advantage_share": float(c), "seat_gap": float(g)}
            for e, c, g in zip(entropy, constant, gap, strict=True)
        ]
        assert alarms(rows) == [], seed


@pytest.mark.parametrize(
    ("name", "signal", "usual", "noise", "change"),
    [
        ("entropy", "entropy", 0.4, 0.02, -0.3),
        ("no_advantage_share", "no_advantage", 0.2, 0.04, 0.6),
        ("seat_gap", "seat_gap", 0.05, 0.1, 0.5),
        ("seat_gap", "seat_gap", 0.05, 0.1, -0.5),
    ],
)
def test_a_change_within_ten_updates_is_noticed_within_twenty_and_dated(
    name: str, signal: str, usual: float, noise: float, change: float
) -> None:
    for seed in range(10):
        values = course(seed, start=usual, end=usual, updates=1, noise=noise)
        values[COLLAPSE:] += change * np.minimum(np.arange(UPDATES - COLLAPSE) / 10, 1)
        found = alarms([{name: float(value)} for value in values])
        assert found, seed
        step, named, since = found[0]
        assert named == signal
        assert COLLAPSE <= since <= step < COLLAPSE + 20, (seed, found)


def test_one_odd_batch_is_no_collapse() -> None:
    values = course(0, start=0.4, end=0.4, updates=1, noise=0.02)
    values[COLLAPSE] = 0.02
    assert alarms([{"entropy": float(value)} for value in values]) == []


def test_a_score_is_compared_with_the_best_of_its_own_opponent() -> None:
    sentinel = Sentinel(SentinelConfig())
    for step, wins in enumerate((100, 140, 170, 180, 178, 181)):
        assert sentinel.evaluated(evaluation(20 * step, wins)) == []
        assert sentinel.evaluated(evaluation(20 * step, 40, opponent="minimax")) == []
    (alarm,) = sentinel.evaluated(evaluation(120, 90))
    assert (alarm.signal, alarm.about) == ("score", "kuhn_poker against base")
    assert (alarm.since, alarm.good) == (120, 100)
    assert alarm.observed == pytest.approx(0.45)
    assert 0.7 < alarm.expected < 0.91
    assert sentinel.evaluated(evaluation(140, 90)) == []  # noticed once: the course is new


def test_scores_of_few_games_need_more_of_them() -> None:
    few, many = Sentinel(SentinelConfig()), Sentinel(SentinelConfig())
    for step in range(4):
        few.evaluated(evaluation(step, 8, games=10))
        many.evaluated(evaluation(step, 320, games=400))
    assert few.evaluated(evaluation(4, 5, games=10)) == []
    assert many.evaluated(evaluation(4, 200, games=400))


def test_exploitability_that_rises_from_its_best_is_noticed() -> None:
    sentinel = Sentinel(SentinelConfig())

    def measured(step: int, nash_conv: float) -> list[str]:
        about = {"step": step, "policy_uid": f"step-{step}", "env_id": "kuhn_poker"}
        found = {"nash_conv": nash_conv, "gains": (nash_conv, 0.0), "values": (0.0, 0.0)}
        legal = {"decisions": 12, "illegal": 0.0, "illegal_most": 0.0}
        result = ExactResult(**about, **found, **legal)
        return [alarm.signal for alarm in sentinel.measured(result)]

    for step, value in enumerate((0.9, 0.4, 0.25, 0.2, 0.22, 0.19)):
        assert measured(step, value) == []
    assert next(name for step in range(6, 9) for name in measured(step, 0.5)) == "exploitability"


def test_losing_to_own_past_is_noticed_and_even_play_is_not() -> None:
    sentinel = Sentinel(SentinelConfig())
    games, points = 0, 0.0
    for step in range(50):
        games, points = games + 40, points + 20
        assert sentinel.met_past(step, games, points) == []
        assert sentinel.met_past(step, games, points) == []  # no new games
    found = []
    for step in range(50, 70):
        games, points = games + 40, points + 10
        found += sentinel.met_past(step, games, points)
    assert (found[0].signal, found[0].since) == ("past", 50)
    assert found[0].step < 60
    assert found[0].observed == 0.25


def test_only_what_is_watched_gives_alarms() -> None:
    sentinel = Sentinel(SentinelConfig(watch=["entropy"]))
    for step in range(4):
        sentinel.evaluated(evaluation(step, 180))
    assert sentinel.evaluated(evaluation(4, 20)) == []


def test_a_sentinel_goes_on_where_its_state_was_taken() -> None:
    values = course(3, start=0.4, end=0.4, updates=1, noise=0.02)
    values[COLLAPSE:] -= 0.3
    whole, first = Sentinel(SentinelConfig()), Sentinel(SentinelConfig())

    def feed(sentinel: Sentinel, steps: range) -> list[int]:
        found = []
        for step in steps:
            found += sentinel.learned(step, {"entropy": float(values[step]), "seat_gap": 0.1})
            found += sentinel.met_past(step, 10 * step, 5.0 * step)
            found += sentinel.evaluated(evaluation(step, 100))
        return [alarm.step for alarm in found]

    expected = feed(whole, range(UPDATES))
    before = feed(first, range(COLLAPSE + 2))
    second = Sentinel(SentinelConfig())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + feed(second, range(COLLAPSE + 2, UPDATES)) == expected
    assert expected


def test_false_alarms_of_plain_noise_are_as_rare_as_asked_for() -> None:
    draw = np.random.default_rng(5)
    seen = 0
    for _ in range(20):
        test = ShiftTest("course", change=0.25, rarity=1000, warmup=20, rate=0.03)
        seen += sum(test.add(step, draw.normal(0, 0.15)) is not None for step in range(2000))
    assert seen <= 40  # 40,000 observations
