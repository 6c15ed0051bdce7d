"""What is known to be wrong with a supervised run before anything is created."""

import pytest
from tests.harness.composed import composed

from rlforge.config.compose import to_yaml
from rlforge.config.model import ModelConfig
from rlforge.config.roots import compose_run
from rlforge.config.schema import RunConfig
from rlforge.config.sft import SftConfig
from rlforge.errors import ConfigError
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


def test_an_impossible_market_is_refused_where_it_was_set():
    lines = [MARKET, "data=value_trader", "market.liquidity=-1"]
    with pytest.raises(ConfigError, match=r"^market.liquidity=-1 \(command line.*must be above 0"):
        check_sft(compose_run(lines, None, SftConfig))


def test_a_run_to_learn_from_has_games_of_the_same_model(tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(RunConfig(model=ModelConfig(kind="tiny"))))
    with pytest.raises(ConfigError, match="has no recorded games"):
        check(f"data.run={tmp_path}")
    with pytest.raises(ConfigError, match="its model is tiny, this one a/b"):
        check(f"data.run={tmp_path}", "model=hf", "model.name=a/b")
