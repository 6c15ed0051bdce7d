"""``rlforge replay`` of a finished run."""

from pathlib import Path

from rlforge.tracking.game_files import index_games


def test_a_game_is_listed_shown_and_exported(rlforge, golden_run):
    game = index_games(golden_run)[-1].spec.game_id
    assert game in rlforge("replay", golden_run, "--opponent", "random_legal").out
    assert "plays [" in rlforge("replay", golden_run, "latest", "--purpose", "eval").out
    assert rlforge("replay", golden_run, game, "--export", "game.svg") == (0, "game.svg\n", "")
    assert Path("game.svg").read_text().startswith("<svg")
    none = rlforge("replay", golden_run, "--step", "77")
    assert (none.code, none.out, none.err.count("\n")) == (2, "", 1)
    assert "finished games has --step 77" in none.err
