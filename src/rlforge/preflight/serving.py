"""Checks of a service across groups, before anything is created."""

from __future__ import annotations

from rlforge.config.compose import Composed
from rlforge.config.serving import ServingConfig
from rlforge.preflight.games import check_lineup, check_opponents
from rlforge.preflight.policy import check_machine, check_policy
from rlforge.rollout.lineup import eval_envs


def check_service(
    composed: Composed[ServingConfig], *, keys: bool = True, games: bool = True
) -> None:
    """Raise ConfigError for the first impossible value, unknown name or contradiction.

    games: whether new versions are tested in the games of ``env``; those of a continuous run have
    tests of their own.
    """
    config = composed.config
    check_policy(composed)
    if games:
        check_lineup(composed, keys=keys)
    if games and config.deployment.holdout_games:
        opponent = [config.deployment.holdout_opponent]
        check_opponents(composed, "deployment.holdout_opponent", opponent, eval_envs(config))
    needed = 3 if config.deployment.strategy == "ab_test" else 2
    if config.engine.max_loras < needed:
        raise composed.error(
            "engine.max_loras",
            f"must be at least {needed} for deployment.strategy={config.deployment.strategy}: the "
            "versions served, and the one that is validated",
        )
    if keys:
        check_machine(config)
