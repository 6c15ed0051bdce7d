"""The committed sweep over all games says what the code does."""

import importlib
import json

import pytest

from rlforge.games.registry import env_ids

SAMPLE = {
    "textarena": [
        *("TicTacToe-v0-train", "Countdown-v0-train", "Bandit-v0-hard-raw", "Stratego-v0"),
        *("CharacterConclave-v0-train", "SantoriniBaseFixed-v0-train", "SecretMafia-v0-train"),
        "ScorableGames-v0-7players",
    ],
    "openspiel": ["kuhn_poker", "oshi_zumo", "tarok", "crossword", "mfg_garnet", "hearts"],
}


@pytest.fixture
def catalogue():
    return importlib.import_module("catalogue")


@pytest.fixture(scope="module")
def found(on_path):
    return json.loads((on_path / "results" / "catalogue.json").read_text())["ids"]


@pytest.mark.parametrize("source", SAMPLE)
def test_every_id_is_in_the_list_and_none_fails(found, source):
    # OpenSpiel's games in Python are registered by imports, such as those of other tests.
    ids = [each for each in env_ids(source) if not each.startswith(("python_", "chat_game"))]
    assert sorted(found[source]) == ids
    results = {does["result"] for does in found[source].values()}
    assert results <= {"plays", "plays, with a note", "refused"}
    assert all(does["why"] for does in found[source].values() if does["result"] != "plays")


@pytest.mark.parametrize(
    ("source", "env_id"), [(source, one) for source, ids in SAMPLE.items() for one in ids]
)
def test_a_sample_of_the_list_agrees_with_the_code(catalogue, found, source, env_id):
    does = catalogue.examine(source, env_id, limit_s=0.1)
    expected = found[source][env_id]
    for key in ("players", "result", "why"):
        assert does.get(key) == expected.get(key)
