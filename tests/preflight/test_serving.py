"""Settings of the service that cannot be are found before anything starts."""

from __future__ import annotations

import pytest

from rlforge.config.schema import EngineConfig
from rlforge.config.serving import DeploymentConfig, ServeConfig
from rlforge.errors import ConfigError
from rlforge.preflight.serving import check_deployment, check_room, check_serve


def test_the_defaults_can_be() -> None:
    check_serve(ServeConfig())
    check_deployment(DeploymentConfig())
    for strategy in ("replace", "ab_test"):
        check_room(EngineConfig(), DeploymentConfig(strategy=strategy))


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("port", 70000),
        ("max_body_bytes", 0),
        ("max_concurrent", 0),
        ("default_max_tokens", 0),
        ("body_timeout_s", 0.0),
        ("request_timeout_s", -1.0),
        ("drain_s", 0.0),
        ("max_engine_restarts", -1),
    ],
)
def test_what_cannot_be_names_key_and_value(key: str, setting: float) -> None:
    with pytest.raises(ConfigError, match=rf"serve\.{key}={setting}: must be"):
        check_serve(ServeConfig(**{key: setting}))


def test_a_trial_needs_room_for_three_versions() -> None:
    check_room(EngineConfig(max_loras=2), DeploymentConfig())
    with pytest.raises(ConfigError, match=r"engine\.max_loras=2: must be at least 3 for.*ab_test"):
        check_room(EngineConfig(max_loras=2), DeploymentConfig(strategy="ab_test"))
