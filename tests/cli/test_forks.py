"""``rlforge fork`` and ``rlforge analyse`` on a run with one game."""

import dataclasses
import json

import pytest
from tests.harness.composed import composed

from rlforge import load_run, play_game
from rlforge.config.compose import to_yaml
from rlforge.record.game_files import GameWriter
from rlforge.show.report import write_report

PERFECT = ("--seat", "0=minimax", "--seat", "1=minimax")


@pytest.fixture
def run_dir(small_model, tmp_path):
    """A run with the game ``lost``: O plays 8 in turn 4 and lets X complete 0, 1, 2."""
    model = ["model=hf", f"model.name={small_model}", "model.prompt_template=board"]
    config = composed("env=tictactoe", *model, "model.action_extraction=bracket").config
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    moves = iter(("[0]", "[4]", "[1]", "[8]", "[2]"))

    def person(view):
        return next(moves)

    record = play_game("tictactoe", person)
    writer = GameWriter(folder)
    writer.add([dataclasses.replace(record, spec=dataclasses.replace(record.spec, game_id="lost"))])
    writer.close()
    return folder


def test_fork_shows_results_and_what_was_played(rlforge, run_dir):
    file = run_dir / "fork.json"
    given = ("--turn", "4", "--samples", "6", *PERFECT, "--json", file)
    code, out, _ = rlforge("fork", run_dir, "lost", *given)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "6 continuations from turn 4" in out
    found = json.loads(file.read_text())
    assert found["rewards"]["0"]["mean"] == 0
    assert list(found["by_action"]) == ["[2]"]


def test_fork_takes_an_action(rlforge, run_dir):
    given = ("--turn", "4", "--samples", "4", *PERFECT, "--action", "8")
    code, out, _ = rlforge("fork", run_dir, "lost", *given)
    assert code == 0
    assert "4 continuations with [8] at turn 4" in out
    assert "+1.00" in out


def test_analyse_names_the_turn_and_the_report_draws_it(rlforge, run_dir):
    code, out, err = rlforge("analyse", run_dir, "lost", "--samples", "6", *PERFECT)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    said = " ".join(out.split())
    assert "turn 4: player 1 (person) loses 1.00 with [8]; [2] leads to +0.00" in said
    assert "analyses/lost.json" in err
    page = write_report(run_dir).read_text()
    assert "Analysed games" in page
    assert "lost, for player 0 (minimax)" in page


def test_the_same_from_python(run_dir):
    run, seats = load_run(run_dir), {0: "minimax", 1: "minimax"}
    games = run.fork("lost", 4, action="[8]", seats=seats, samples=3)
    assert [game.rewards for game in games] == [{0: 1.0, 1: -1.0}] * 3
    rows = run.analyse("lost", seats=seats, samples=6)
    rows = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
    assert [row["turn"] for row in rows if row["decisive"]] == [4]
    assert len(rows) == 5


@pytest.mark.parametrize("seat", ["minimax", "x=minimax", "1="])
def test_a_seat_needs_a_number(rlforge, run_dir, seat):
    answer = rlforge("analyse", run_dir, "lost", "--seat", seat)
    assert answer.code == 2
    assert "write the number of a seat and a name" in answer.err
