"""Runs that can learn nothing: what they print, record, and how they end."""

import pytest

from rlforge.record.files import read_json
from rlforge.show.why import explain

CUT = ("env.train=[{id: TicTacToe-v0-train, max_turns: 1}]", "learner.total_updates=4")


@pytest.mark.ray
def test_a_run_whose_games_are_all_cut_says_so_at_its_end(train, tmp_path):
    ended = train(*CUT, f"run_dir={tmp_path / 'run'}")
    assert ended.code == 0
    [line] = [line for line in ended.err.splitlines() if line.startswith("done, ")]
    assert line.startswith("done, but nothing was learned: all games of TicTacToe-v0-train are cut")
    assert "raise max_turns in env.train" in line
    first = read_json(tmp_path / "run/summary.json")["signals"][0]
    assert (first["name"], first["step"], first["weight"]) == ("turn_limit", 1, "final")


@pytest.mark.ray
def test_such_a_run_stops_after_its_second_batch_where_it_is_asked_to(train, tmp_path):
    ended = train(*CUT, "on_no_signal=stop", f"run_dir={tmp_path / 'run'}")
    assert ended.code == 1
    last = ended.err.splitlines()[-1]
    assert last.startswith("rlforge: nothing can be learned, and on_no_signal=stop: all games")
    summary = read_json(tmp_path / "run/summary.json")
    assert (summary["status"], summary["updates"]) == ("failed", 2)


@pytest.mark.ray
def test_a_run_whose_games_give_no_sample_stops_before_its_first_update(train, tmp_path):
    second = ("policies={main: {seats: [1]}}", "pool=fixed", "pool.fixed_opponents=[random_legal]")
    ended = train(*CUT, *second, "on_no_signal=stop", f"run_dir={tmp_path / 'run'}")
    assert ended.code == 1
    assert "signal at update 0, turn_limit: all games of" in ended.err
    assert "nothing can be learned, and on_no_signal=stop" in ended.err.splitlines()[-1]
    summary = read_json(tmp_path / "run/summary.json")
    assert (summary["status"], summary["updates"]) == ("failed", 0)
    why = explain(tmp_path / "run")
    assert why.verdict == "nothing was learned since update 0: turn_limit, no_batch"
    assert {game.why for game in why.games} == {"turn_limit: turn limit at turn 1"}
