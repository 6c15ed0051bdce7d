import pytest

from rlforge.errors import ConfigError
from rlforge.league.names import parse_opponent
from rlforge.types import PolicyRef


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("minimax", "scripted"),
        ("mcts:200", "scripted"),
        ("openai:gpt-x", "api"),
        ("openrouter:lab/model:free", "api"),
    ],
)
def test_names_become_policies(name, kind):
    assert parse_opponent(name) == PolicyRef(uid=name, kind=kind, path_or_name=name)


def test_a_checkpoint_is_named_by_its_directory(tmp_path):
    name, path = f"checkpoint:{tmp_path}", str(tmp_path)
    assert parse_opponent(name) == PolicyRef(uid=name, kind="checkpoint", path_or_name=path)
    name, path = f"hf:{tmp_path}", str(tmp_path)
    assert parse_opponent(name) == PolicyRef(uid=name, kind="hf", path_or_name=path)
    assert parse_opponent("base") == PolicyRef(uid="base", kind="checkpoint", path_or_name=None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randm_legal", "did you mean random_legal"),
        ("bse", "did you mean base"),
        ("opnai:gpt-x", "did you mean openai"),
        (
            "Qwen/Qwen3-0.6B",
            "is unknown; did you mean hf:Qwen/Qwen3-0.6B, or openrouter:Qwen/Qwen3-0.6B",
        ),
        ("huggingface:Qwen/Qwen3-0.6B", "did you mean hf:Qwen/Qwen3-0.6B, or "),
        ("opnai:lab/model", "did you mean openai"),
        ("something else", "known: .*win_block, minimax, base, mcts:SIMULATIONS, checkpoint:DIR"),
        ("mcts", "lacks what is behind the colon: mcts:SIMULATIONS, as in mcts:200"),
        ("mcts:", "lacks what is behind the colon"),
        ("mcts:0", "'mcts:0': needs the simulations per move, a number above 0"),
        ("mcts:-200", "a number above 0"),
        ("mcts:2.5", "a number above 0"),
        ("mcts:many", "a number above 0"),
        ("mcst:200", "did you mean mcts"),
        ("openai:", "lacks the model"),
        ("hf:", "lacks the model"),
        ("checkpoint:", "lacks the directory"),
        ("checkpoint:no/such/place", "no directory no/such/place"),
        ("checkpoint", "unknown"),
    ],
)
def test_wrong_names_are_explained(name, message):
    with pytest.raises(ConfigError, match=message):
        parse_opponent(name)
