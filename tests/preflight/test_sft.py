"""What is known to be wrong with a supervised run before anything is created."""

import sys
from pathlib import Path

import pytest
from tests.harness.composed import composed

from rlforge.cli import main
from rlforge.config.compose import to_yaml
from rlforge.config.schema import ModelConfig, RunConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError
from rlforge.preflight.games import validate
from rlforge.preflight.sft import check_sft

TICTACTOE, MARKET = "+experiment=tictactoe_mirror", "+experiment=smollm2_market"


def check(*lines: str) -> None:
    check_sft(composed(*lines, root=SftConfig))


@pytest.mark.parametrize(
    "lines",
    [
        (TICTACTOE, "data=random_legal"),
        (TICTACTOE, "data.players=[minimax,random_legal]", "data.imitate=[minimax]"),
        ("data=random_legal", "model.action_extraction=boxed", "data.answer='So I play {action}.'"),
        (MARKET, "data=value_trader"),
        (MARKET, "data=value_trader", "model.action_extraction=boxed"),
    ],
)
def test_what_can_run_passes(lines):
    check(*lines)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((TICTACTOE,), r"data\.players=.*add data=random_legal"),
        (
            ("env=kuhn", "data.players=[minimax]"),
            r"data\.players=.*minimax knows OpenSpiel games, Tic",
        ),
        (("data.players=[miniax]",), r"data\.players=.*did you mean minimax"),
        (("data.players=[base]",), r"data\.players=.*base is a model.*data\.run=RUN"),
        (("data.players=['openai:gpt-5']",), r"data\.players=.*OPENAI_API_KEY"),
        (("data=random_legal", "data.answer='{action} [x]'"), r"data\.answer=.*not read as \["),
        (("data=random_legal", "algorithm=ppo"), r"algorithm\.name=ppo.*algorithm=supervised"),
        (("data.run=nowhere",), r"data\.run=nowhere.*no run directory"),
        (("data.file=nowhere",), r"data\.file=nowhere.*no such file"),
        (("data=random_legal", "algorithm.kl.coef=0.1"), r"algorithm\.kl\.coef=0\.1"),
        ((MARKET, "data=random_legal"), r"random_legal does not trade in markets.*value_trader"),
        ((MARKET, "data.players=[insider_trader]"), r"insider_trader does not trade"),
        ((MARKET, "data=value_trader", "data.last_turns=1"), r"data\.last_turns=1.*no last turns"),
        ((MARKET, "data=value_trader", "model=tiny"), r"model\.kind=tiny.*words of markets"),
        (
            (MARKET, "data=value_trader", """data.answer='{action} {"type": "WAIT"}'"""),
            r"data\.answer=.*is not the one that is read",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_its_key(lines, message, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=message):
        check(*lines)


def test_a_run_to_learn_from_has_games_of_the_same_model(tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(RunConfig(model=ModelConfig(kind="tiny"))))
    with pytest.raises(ConfigError, match="has no recorded games"):
        check(f"data.run={tmp_path}")
    with pytest.raises(ConfigError, match="its model is tiny, this one a/b"):
        check(f"data.run={tmp_path}", "model=hf", "model.name=a/b")


def test_the_loss_of_given_answers_is_not_for_games():
    with pytest.raises(ConfigError, match=r"algorithm\.name=supervised.*rlforge sft"):
        validate(composed("algorithm=supervised"))


def test_the_command_ends_with_one_line_and_exit_code_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["rlforge", "sft", TICTACTOE, "data.file=nowhere"])
    with pytest.raises(SystemExit) as ending:
        main()
    assert ending.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not Path("runs").exists()
