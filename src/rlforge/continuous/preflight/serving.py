"""Checks of a service across groups, before anything is created."""

from __future__ import annotations

from typing import Any

from rlforge.config.compose import Composed
from rlforge.continuous.config.serving import ServeConfig, ServingConfig
from rlforge.errors import collected, raise_all
from rlforge.preflight.games import lineup_problems, opponent_problems
from rlforge.preflight.model import other_problems
from rlforge.preflight.policy import Problems, machine_problems, policy_problems, value_problems
from rlforge.rollout.lineup import eval_envs


def check_service(
    composed: Composed[ServingConfig], *, keys: bool = True, games: bool = True
) -> None:
    """Raise ConfigError for impossible values and unknown names, or else for contradictions.

    games: whether new versions are tested in the games of ``env``.
    """
    raise_all(
        collected(value_problems(composed)) or _service_problems(composed, keys=keys, games=games)
    )


def _service_problems(composed: Composed[ServingConfig], *, keys: bool, games: bool) -> Problems:
    config = composed.config
    yield from policy_problems(composed)
    yield from page_problems(composed, config.serve)
    if games:
        yield from lineup_problems(composed, keys=keys)
    if games and config.deployment.holdout_games:
        key, opponent = "deployment.holdout_opponent", [config.deployment.holdout_opponent]
        found = collected(opponent_problems(composed, key, opponent, eval_envs(config)))
        # An unknown opponent cannot be checked further.
        yield from found or other_problems(config)
    needed = 3 if config.deployment.strategy == "ab_test" else 2
    if config.engine.max_loras < needed:
        yield composed.error(
            "engine.max_loras",
            f"must be at least {needed} for deployment.strategy={config.deployment.strategy}: the "
            "versions served, and the one that is validated",
        )
    if keys:
        yield from machine_problems(config)


def page_problems(composed: Composed[Any], serve: ServeConfig) -> Problems:
    """A port of its own for the page of what answers requests at ``serve.port``."""
    if serve.page:
        yield composed.error(
            "serve.page", f"the page is at serve.port={serve.port}, as requests are; 0, or null"
        )
