"""Checks of a service across groups."""

import pytest
from tests.harness.composed import composed

from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.preflight.serving import check_service
from rlforge.errors import ConfigError


def check(*overrides: str) -> None:
    check_service(composed("+experiment=simpletak_mirror", *overrides, root=ServingConfig))


def test_the_defaults_pass_and_a_trial_needs_room_for_three_versions():
    check()
    check("deployment=ab_test")
    check("engine.max_loras=2")
    with pytest.raises(ConfigError, match=r"engine\.max_loras=2 .*at least 3 for .*=ab_test"):
        check("engine.max_loras=2", "deployment=ab_test")


def test_the_opponent_of_held_out_games_must_be_able_to_play():
    with pytest.raises(
        ConfigError, match=r"deployment\.holdout_opponent=value_trader .*cannot play"
    ):
        check("deployment.holdout_opponent=value_trader")
    check("deployment.holdout_opponent=value_trader", "deployment.holdout_games=0")
