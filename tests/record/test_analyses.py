"""Estimates of mean rewards, and analyses on disk."""

import random

import pytest

from rlforge.errors import RlforgeError
from rlforge.record.analyses import (
    Analysis,
    Estimate,
    Moment,
    estimate,
    read_analyses,
    write_analysis,
)

SURE, UNSURE = Estimate(mean=1.0, half=0.0, games=1), Estimate(mean=0.25, half=0.5, games=16)


def analysis(game_id):
    moved = {"turn": 1, "player": 0, "policy": "step-3", "action": "[4]", "decisive": True}
    values = {"before": UNSURE, "after": SURE, "own_before": UNSURE, "own_after": SURE}
    moment = Moment(best="[5]", best_reward=SURE, **moved, **values)
    about = {"env_id": "TicTacToe-v0-train", "player": 0, "seats": ("step-3", "minimax")}
    played = {"rewards": {0: 1.0, 1: -1.0}, "moments": (moment,), "games": 16}
    return Analysis(game_id=game_id, **about, **played)


@pytest.mark.parametrize("won", [0.02, 0.3, 0.5, 0.9, 0.99])
def test_intervals_hold_the_mean_as_often_as_they_say(won):
    draw, trials, held = random.Random(0), 2000, 0
    for _ in range(trials):
        rewards = [1.0 if draw.random() < won else -1.0 for _ in range(64)]
        found = estimate(rewards, (-1.0, 1.0))
        held += found.low <= 2 * won - 1 <= found.high
    assert held / trials > 0.92
    assert estimate([3.0], (-2.0, 3.0)).low < 0  # one game says little


def test_what_is_written_is_read_back_and_replaced(tmp_path):
    first = analysis("eval-80-step-80-000012")
    file = write_analysis(tmp_path, first)
    assert file.name == "eval-80-step-80-000012.json"
    other = analysis("../a game: of a dataset/3")
    assert write_analysis(tmp_path, other).parent == file.parent
    write_analysis(tmp_path, first)
    found = read_analyses(tmp_path)
    assert len(found) == 2
    assert first in found
    assert other in found
    assert found[0].moments[0].change == 0.75


def test_a_damaged_analysis_is_named(tmp_path):
    write_analysis(tmp_path, analysis("a")).write_text("{")
    with pytest.raises(RlforgeError, match=r"a\.json is damaged"):
        read_analyses(tmp_path)
    assert read_analyses(tmp_path / "another run") == []
