"""The configuration of a service: of an experiment, or of a run with changes."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rlforge.config.compose import Composed, compose, from_yaml
from rlforge.config.roots import kind_of_run, of_kind, read_run
from rlforge.continuous.config.continuous import ContinuousConfig
from rlforge.continuous.config.serving import ServingConfig
from rlforge.continuous.preflight.serving import check_service
from rlforge.continuous.serving.client import STATE_DIR
from rlforge.continuous.serving.validation import find_source
from rlforge.errors import ConfigError, DeploymentError, command_line
from rlforge.preflight.policy import checked
from rlforge.types import value

#: Groups that configure the service and not its run: the command line may choose their options.
_SERVICE_GROUPS = ("deployment", "serve", "hardware")


@value
class ServiceSetup:
    """config: validated. source: a run to deploy at the first start; None: the base model.

    continuous: the source's configuration with the service's changes, if a continuous run.
    """

    config: ServingConfig
    source: Path | None
    state_dir: Path
    continuous: ContinuousConfig | None = None


def compose_service(arguments: Sequence[str], config_dir: Path | None = None) -> ServiceSetup:
    """The configuration of ``[RUN] KEY=VALUE …``; ConfigError for an invalid one."""
    runs = [argument for argument in arguments if "=" not in argument]
    overrides = of_kind([one for one in arguments if "=" in one], ServingConfig)
    if len(runs) > 1:
        raise ConfigError(f"serve one run, not {len(runs)}: {', '.join(runs)}")
    if runs:
        source = Path(runs[0])
        composed, state_dir = _of_run(source, overrides, config_dir), source / STATE_DIR
    else:
        composed = compose(overrides, config_dir, root=ServingConfig)
        source, state_dir = None, Path(STATE_DIR)
    continuous = None
    if source is not None and kind_of_run(source) is ContinuousConfig:
        run, service = read_run(source, ContinuousConfig), composed.config
        # Groups that both have are the service's, with the changes of the command line.
        names = {field.name for field in dataclasses.fields(run)}
        shared = names & {field.name for field in dataclasses.fields(service)}
        continuous = dataclasses.replace(run, **{name: getattr(service, name) for name in shared})
    composed = checked(
        composed,
        lambda one: check_service(one, games=continuous is None),
        lambda note: print(note, file=sys.stderr, flush=True),
    )
    state_dir = Path(composed.config.serve.state_dir or state_dir)
    return ServiceSetup(
        config=composed.config, source=source, state_dir=state_dir, continuous=continuous
    )


def _of_run(
    run: Path, overrides: Sequence[str], config_dir: Path | None
) -> Composed[ServingConfig]:
    try:
        find_source(run)
    except DeploymentError as error:
        raise ConfigError(str(error)) from error
    if not (run / "config.yaml").is_file():
        raise ConfigError(
            f"{run} is an adapter, not a run: start a service with model=… engine=…, then "
            f"{command_line('deploy', run)}"
        )
    of_service = [o for o in overrides if _head(o) in _SERVICE_GROUPS]
    changes = [o for o in overrides if _head(o) not in _SERVICE_GROUPS]
    service = compose(of_service, config_dir, root=ServingConfig).config
    for change in changes:
        # Another model would not fit the run's adapters.
        if "." not in change.partition("=")[0]:
            raise ConfigError(
                f"{change} (command line): the run in {run} has its own {_head(change)}; change "
                f"single values of it, as in {_head(change)}.KEY=VALUE"
            )
    # The run's file says what was trained, the command line how it is served.
    config = from_yaml(run / "config.yaml", ServingConfig)
    config = dataclasses.replace(config, deployment=service.deployment, serve=service.serve)
    if any(_head(o) == "hardware" for o in overrides):
        config = dataclasses.replace(config, hardware=service.hardware)
    found = Composed(config=config, overrides=tuple(overrides), rest=str(run / "config.yaml"))
    return found.changed(changes)


def _head(override: str) -> str:
    return override.partition("=")[0].lstrip("+").split(".")[0].split("@")[0]
