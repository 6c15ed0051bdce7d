import pytest

from rlforge.errors import ConfigError
from rlforge.league.names import parse_opponent
from rlforge.types import PolicyRef


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minimax", PolicyRef(uid="minimax", kind="scripted", path_or_name="minimax")),
        ("mcts:200", PolicyRef(uid="mcts:200", kind="scripted", path_or_name="mcts:200")),
        ("base", PolicyRef(uid="base", kind="checkpoint", path_or_name=None)),
        ("openai:gpt-x", PolicyRef(uid="openai:gpt-x", kind="api", path_or_name="openai:gpt-x")),
        (
            "openrouter:lab/model:free",
            PolicyRef(
                uid="openrouter:lab/model:free",
                kind="api",
                path_or_name="openrouter:lab/model:free",
            ),
        ),
    ],
)
def test_names_become_policies(name, expected):
    assert parse_opponent(name) == expected


def test_a_checkpoint_is_named_by_its_directory(tmp_path):
    name = f"checkpoint:{tmp_path}"
    assert parse_opponent(name) == PolicyRef(
        uid=name, kind="checkpoint", path_or_name=str(tmp_path)
    )


def test_scripted_players_are_those_of_the_games():
    assert parse_opponent("random_legal").kind == "scripted"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randm_legal", "did you mean random_legal"),
        ("bse", "did you mean base"),
        ("opnai:gpt-x", "did you mean openai"),
        ("something else", "known: .*win_block, minimax, base, mcts:SIMULATIONS, checkpoint:DIR"),
        ("mcts", "lacks what is behind the colon: mcts:SIMULATIONS, as in mcts:200"),
        ("mcts:", "lacks what is behind the colon"),
        ("mcts:0", "'mcts:0': needs the simulations per move, a number above 0"),
        ("mcts:-200", "a number above 0"),
        ("mcts:2.5", "a number above 0"),
        ("mcts:many", "a number above 0"),
        ("mcst:200", "did you mean mcts"),
        ("openai:", "lacks the model"),
        ("checkpoint:", "lacks the directory"),
        ("checkpoint:no/such/place", "no directory no/such/place"),
        ("checkpoint", "unknown"),
    ],
)
def test_wrong_names_are_explained(name, message):
    with pytest.raises(ConfigError, match=message):
        parse_opponent(name)
