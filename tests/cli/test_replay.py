"""``rlforge replay`` and ``rlforge batches`` of a finished run."""

import json
from pathlib import Path

from rlforge.record.game_files import index_games


def test_a_game_is_listed_shown_and_exported(rlforge, golden_run):
    game = index_games(golden_run)[-1].spec.game_id
    assert game in rlforge("replay", golden_run, "--opponent", "random_legal").out
    assert "plays [" in rlforge("replay", golden_run, "latest", "--purpose", "eval").out
    assert rlforge("replay", golden_run, game, "--export", "game.svg") == (0, "game.svg\n", "")
    assert Path("game.svg").read_text().startswith("<svg")
    none = rlforge("replay", golden_run, "--step", "77")
    assert (none.code, none.out, none.err.count("\n")) == (2, "", 1)
    assert "finished games has --step 77" in none.err


def test_batches_shows_a_batch_or_a_sample_and_writes_them_as_json(rlforge, golden_run):
    table = rlforge("batches", golden_run, 2, "--rows", 2, "--json", "batch.json")
    assert table.out.startswith("batch 2: ")
    assert "rows" in table.out.splitlines()[-1]
    found = json.loads(Path("batch.json").read_text())
    assert (table.code, found["batch"], found["samples"][1]["sample"]) == (0, 2, 1)
    one = rlforge("batches", golden_run, "--sample", 1)
    assert one.out.startswith("batch 5, sample 1: ")
    assert "advantage" in one.out
    assert rlforge("batches", golden_run, 9).err.endswith("has no batch 9; it has 1 to 5\n")
