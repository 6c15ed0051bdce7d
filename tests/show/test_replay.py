"""Finished games: which are listed, how one is shown, stepped through and drawn."""

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from rich.console import Console

import rlforge
from rlforge.errors import ConfigError
from rlforge.record.game_files import GameWriter, index_games
from rlforge.show.replay import boards, find_game, game_list, select, step_through, turns, write_svg
from rlforge.types import EnvSpec

TICTACTOE = EnvSpec(id="TicTacToe-v0-train")


def last_free(view):
    assert view.legal_actions is not None
    return view.legal_actions[-1]


def played(game_id, seed, *, purpose="train", focus=None):
    record = rlforge.play_game(TICTACTOE, "minimax", last_free, seed=seed)
    spec = dataclasses.replace(record.spec, game_id=game_id, purpose=purpose, focus=focus)
    return dataclasses.replace(record, spec=spec)


@pytest.fixture
def run_dir(tmp_path):
    writer = GameWriter(tmp_path)
    writer.add(played(f"train-{number}", number) for number in range(3))
    writer.add([played("eval-0", 3, purpose="eval", focus=1)])
    writer.close()
    return tmp_path


def shown(*pieces):
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        for piece in pieces:
            console.print(piece)
    return capture.get()


def test_the_newest_games_are_listed_a_line_each(run_dir):
    text = shown(game_list(run_dir, most=2))
    assert "4 finished games (3 train, 1 eval); the newest 2" in text
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["train-2", "eval-0"]
    assert "minimax v last_free" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("name", "value", "games"),
    [
        ("purpose", "eval", ["eval-0"]),
        ("opponent", "minimax", ["eval-0"]),
        ("opponent", "last_free", ["train-0", "train-1", "train-2"]),
        ("result", "loss", ["eval-0"]),
        ("result", "win", ["train-0", "train-1", "train-2"]),
        ("env", "TicTacToe-v0-train", ["train-0", "train-1", "train-2", "eval-0"]),
    ],
)
def test_filters_choose_games(run_dir, name, value, games):
    found = select(index_games(run_dir), {name: value})
    assert [game.spec.game_id for game in found] == games


def test_what_matches_no_game_is_named(run_dir):
    games = index_games(run_dir)
    with pytest.raises(ConfigError, match=r"none of the 4 .* --opponent minimx; did you mean mini"):
        select(games, {"purpose": "eval", "opponent": "minimx"})
    with pytest.raises(ConfigError, match="--purpose eval --result win together"):
        select(games, {"purpose": "eval", "result": "win"})
    with pytest.raises(ConfigError, match="--result failed; there are win, loss"):
        select(games, {"result": "failed"})


def test_latest_is_the_newest_game_that_the_filters_leave_and_an_unknown_one_names_others(run_dir):
    assert find_game(run_dir, "latest").spec.game_id == "eval-0"
    assert find_game(run_dir, "latest", {"purpose": "train"}).spec.game_id == "train-2"
    with pytest.raises(ConfigError, match="did you mean train-"):
        find_game(run_dir, "train-9")


def test_a_run_without_games_says_so(tmp_path):
    assert "no game is finished yet" in shown(game_list(tmp_path))
    with pytest.raises(ConfigError, match="no game is finished yet"):
        find_game(tmp_path, "latest")


def test_a_game_is_shown_turn_by_turn_to_its_end(run_dir):
    record = find_game(run_dir, "train-1")
    text = shown(*turns(record))
    for place, turn in enumerate(record.turns, start=1):
        assert f"{place}. player {turn.player_id} (" in text
        assert f"plays {turn.action}" in text
    assert text.rstrip().endswith("player 0 (minimax) wins\nfinished: +1 -1")


def test_the_board_after_each_turn_is_drawn_with_its_stones(run_dir):
    record = find_game(run_dir, "train-1")
    drawn = boards(record)
    assert len(drawn) == len(record.turns)
    for place, board in enumerate(drawn, start=1):
        cells = [cell.strip(" []") for row in board.splitlines() for cell in row.split("|")]
        for player, stone in ((0, "O"), (1, "X")):
            own = {int(t.action[1:-1]) for t in record.turns[:place] if t.player_id == player}
            assert {n for n, cell in enumerate(cells) if cell == stone} == own
        assert board.count("[") == 1, "the last stone is marked"


def test_a_game_without_a_grid_shows_what_is_new_in_every_turn():
    record = rlforge.play_game("kuhn", "random_legal", seed=1)
    assert boards(record) == []
    text = rlforge.transcript(record)
    assert text.count("Kuhn Poker uses a 3-card deck") == 2
    assert text.count("Your available actions are") == len(record.turns)


def test_a_game_that_cannot_be_played_again_has_no_boards(run_dir):
    record = find_game(run_dir, "train-1")
    other = dataclasses.replace(record.spec, env=EnvSpec(id="TicTacToe-v0-train", source="gone"))
    assert boards(dataclasses.replace(record, spec=other)) == []


def test_a_transcript_is_plain_text_that_shows_the_rules_once_to_each_player():
    text = rlforge.transcript(played("train-1", 1), width=60)
    assert text.startswith("TicTacToe-v0-train, game train-1, seed 1: minimax v\nlast_free\n")
    assert text.endswith("finished: +1 -1")
    assert text.count("Your goal is to win") == 2
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_a_game_is_stepped_through_forth_and_back(run_dir):
    record = find_game(run_dir, "train-1")
    keys: Iterator[str] = iter(["", "b", "b", "q"])
    console = Console(width=80, no_color=True)
    with console.capture() as capture:
        step_through(record, console, lambda: next(keys))
    count = len(record.turns)
    seen = [line.split(":")[0] for line in capture.get().splitlines() if line.startswith("turn ")]
    assert seen == [f"turn {place} of {count}" for place in (1, 2, 1, 1)]


def test_a_game_is_drawn_as_a_small_svg_with_a_frame_a_turn(run_dir):
    record = find_game(run_dir, "train-1")
    file = run_dir / "game.svg"
    write_svg(record, file)
    picture = ET.fromstring(file.read_text())
    frames = [part for part in picture.iter() if part.get("class") == "turn"]
    assert len(frames) == len(record.turns)
    assert "wins" in "".join(frames[-1].itertext()).replace("\xa0", " ")
    assert file.stat().st_size < 25_000 * len(frames)
    assert "http" not in file.read_text().replace("http://www.w3.org/2000/svg", "")
