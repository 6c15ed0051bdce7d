"""The configuration of a service: that of an experiment or of a run, and where its state is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf.errors import OmegaConfBaseException

from rlforge.config.compose import compose, from_yaml
from rlforge.config.roots import is_continuous
from rlforge.config.rules import changed
from rlforge.config.schema import EnvEntry
from rlforge.config.serving import ServingConfig
from rlforge.errors import ConfigError, DeploymentError
from rlforge.preflight.games import check_lineup
from rlforge.preflight.policy import check_policy
from rlforge.serving.adapter import find_source
from rlforge.types import value

STATE_DIR = "deployments"

#: What a run's own configuration does not say; options of these groups can be chosen beside it.
_SERVICE_GROUPS = ("deployment", "serve", "hardware")


@value
class Composed:
    """config: validated. source: the run that the service begins with; None: the base model."""

    config: ServingConfig
    source: Path | None
    state_dir: Path


def compose_service(arguments: Sequence[str], config_dir: Path | None = None) -> Composed:
    """``[RUN] KEY=VALUE …`` as one configuration; ConfigError says what is wrong.

    A run brings its own configuration, whose values can be changed one by one.
    """
    runs = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    if len(runs) > 1:
        raise ConfigError(f"serve one run, not {len(runs)}: {', '.join(runs)}")
    if not runs:
        result = compose(overrides, config_dir, root=ServingConfig)
        check_policy(result)
        check_lineup(result)
        return Composed(
            config=result.config,
            source=None,
            state_dir=Path(result.config.serve.state_dir or STATE_DIR),
        )
    run = Path(runs[0])
    try:
        find_source(run)
    except DeploymentError as error:
        raise ConfigError(str(error)) from error
    if not (run / "config.yaml").is_file():
        raise ConfigError(
            f"{run} is an adapter, not a run: start a service with model=… engine=…, then "
            f"rlforge deploy {run}"
        )
    config = _of_run(run, overrides, config_dir)
    return Composed(
        config=config, source=run, state_dir=Path(config.serve.state_dir or run / STATE_DIR)
    )


def _of_run(run: Path, overrides: Sequence[str], config_dir: Path | None) -> ServingConfig:
    of_service = [o for o in overrides if _head(o) in _SERVICE_GROUPS]
    changes = [o for o in overrides if _head(o) not in _SERVICE_GROUPS]
    service = compose(of_service, config_dir, root=ServingConfig).config
    for change in changes:
        if "." not in change.partition("=")[0]:
            raise ConfigError(
                f"{change} (command line): the run in {run} has its own {_head(change)}; change "
                f"single values of it, as in {_head(change)}.KEY=VALUE"
            )
    config = from_yaml(run / "config.yaml", ServingConfig)
    if is_continuous(run):  # new versions are asked about, and compared at, what they trade on
        config.env.train = [EnvEntry(id="market", source="market", max_turns=100)]
    config.deployment, config.serve = service.deployment, service.serve
    if any(_head(o) == "hardware" for o in overrides):
        config.hardware = service.hardware
    try:
        return changed(config, changes)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{' '.join(changes)} (command line): {error}".split("\n")[0]) from None


def _head(override: str) -> str:
    return override.partition("=")[0].lstrip("+").split(".")[0].split("@")[0]
