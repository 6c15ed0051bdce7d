"""Settings of deployments and the service that cannot be, found before anything starts."""

from __future__ import annotations

from rlforge.config.schema import EngineConfig
from rlforge.config.serving import TESTS, AbTestConfig, DeploymentConfig, ServeConfig
from rlforge.errors import ConfigError, nearest

STRATEGIES = ("replace", "ab_test")
UNDECIDED = ("keep", "promote")


def check_deployment(config: DeploymentConfig) -> None:
    """Raises ConfigError for the first impossible value of group ``deployment``."""
    _one_of("deployment.strategy", config.strategy, STRATEGIES)
    _one_of("deployment.test", config.test, TESTS)
    _require("deployment.probes", config.probes, config.probes >= 1, "at least 1")
    _require("deployment.min_format", config.min_format, 0 <= config.min_format <= 1, "in [0, 1]")
    _require("deployment.probe_tokens", config.probe_tokens, config.probe_tokens >= 1, "at least 1")
    games = config.holdout_games
    _require("deployment.holdout_games", games, games >= 0 and games != 1, "0, or at least 2")
    _require("deployment.margin", config.margin, config.margin >= 0, "at least 0")
    _require("deployment.alpha", config.alpha, 0 < config.alpha < 1, "between 0 and 1")
    _require("deployment.timeout_s", config.timeout_s, config.timeout_s > 0, "above 0")
    _require("deployment.keep", config.keep, config.keep >= 1, "at least 1")
    _check_ab(config.ab)


def _check_ab(config: AbTestConfig) -> None:
    rising = config.shares == sorted(config.shares)
    inside = bool(config.shares) and all(0 < share < 1 for share in config.shares)
    _require("deployment.ab.shares", config.shares, rising and inside, "rising, between 0 and 1")
    _one_of("deployment.ab.undecided", config.undecided, UNDECIDED)
    _require("deployment.ab.alpha", config.alpha, 0 < config.alpha < 1, "between 0 and 1")
    _require("deployment.ab.effect", config.effect, config.effect > 0, "above 0")
    for name in ("step_outcomes", "min_outcomes", "max_outcomes"):
        number = getattr(config, name)
        _require(f"deployment.ab.{name}", number, number >= 1, "at least 1")


def check_serve(config: ServeConfig) -> None:
    """Raises ConfigError for the first impossible value of group ``serve``."""
    _require("serve.port", config.port, 0 <= config.port <= 65535, "0 to 65535")
    for name in ("max_body_bytes", "max_concurrent", "default_max_tokens"):
        number = getattr(config, name)
        _require(f"serve.{name}", number, number >= 1, "at least 1")
    for name in ("body_timeout_s", "request_timeout_s", "drain_s"):
        seconds = getattr(config, name)
        _require(f"serve.{name}", seconds, seconds > 0, "above 0")
    restarts = config.max_engine_restarts
    _require("serve.max_engine_restarts", restarts, restarts >= 0, "at least 0")


def check_room(engine: EngineConfig, deployment: DeploymentConfig) -> None:
    """Versions served and one that is validated must fit into the engine side by side."""
    needed = 3 if deployment.strategy == "ab_test" else 2
    _require(
        "engine.max_loras",
        engine.max_loras,
        engine.max_loras >= needed,
        f"at least {needed} for deployment.strategy={deployment.strategy}: what is served, and "
        "what is validated beside it",
    )


def _require(key: str, found: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{key}={found}: must be {wanted}")


def _one_of(key: str, found: str, known: tuple[str, ...]) -> None:
    if found not in known:
        raise ConfigError(
            f"{key}={found}: no such choice{nearest(found, known)}; there are {', '.join(known)}"
        )
