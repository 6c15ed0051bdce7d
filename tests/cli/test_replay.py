"""``rlforge replay`` of a finished run."""

from pathlib import Path

import pytest

from rlforge.tracking.game_files import index_games


def test_a_game_is_listed_shown_and_exported(rlforge, golden_run):
    game = index_games(golden_run)[-1].spec.game_id
    assert game in rlforge("replay", golden_run, "--opponent", "random_legal").out
    assert "plays [" in rlforge("replay", golden_run, "latest", "--purpose", "eval").out
    assert rlforge("replay", golden_run, game, "--export", "game.svg") == (0, "game.svg\n", "")
    assert Path("game.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", "77"), r"finished games has --step 77"),
        (("--interactive",), "need a game: its id, or latest"),
        (("latest", "--interactive"), "--interactive needs a terminal"),
        (("latest", "--export", "game.gif"), "pictures are SVG"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(rlforge, golden_run, arguments, message):
    answer = rlforge("replay", golden_run, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.startswith("rlforge: ")
