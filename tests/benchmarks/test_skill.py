"""Time to skill is judged by bounds, and compared run by run."""

import importlib

import pytest


@pytest.fixture
def skill(on_path):
    return importlib.import_module("skill")


def test_a_level_is_passed_once_the_bound_of_the_interval_is_beyond_it(skill):
    wins = skill.LEVELS["simpletak"].passed
    assert not wins({"wins": 330, "games": 400})  # 82.5 %, from 78.5 %
    assert wins({"wins": 337, "games": 400})
    losses = skill.LEVELS["tictactoe"].passed
    assert not losses({"losses": 40, "games": 400})  # 10 %, to 13.3 %
    assert losses({"losses": 34, "games": 400})


def test_commits_are_compared_in_pairs_of_runs_that_both_passed(skill):
    def reached(wall_s, cpu_s):
        return {"skill": skill.Reached(wall_s, cpu_s)}

    ours = [reached(60, 100), reached(50, 90), {}]
    theirs = [reached(120, 125), {}, reached(90, 90)]
    assert skill.ratios(ours, theirs, "skill") == {"wall": [0.5], "cpu": [0.8]}
    figures = skill.summary(ours)
    assert (figures["runs"], figures["passed"]) == (3, 2)
    assert figures["skill"]["wall"]["median_s"] == 55
