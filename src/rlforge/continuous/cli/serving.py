"""``rlforge serve``, ``deploy``, ``rollback`` and ``deployments``."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rlforge.cli.arguments import (
    Checkpoint,
    ConfigDir,
    JsonFile,
    offered_runs,
    or_newest,
    say,
    say_result,
    write_result,
)
from rlforge.cli.messages import wrapped
from rlforge.errors import ConfigError, DeploymentError

StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="State folder of the service, or a run that holds it. Default: RUN/deployments, "
        "else deployments/.",
        autocompletion=offered_runs,
    ),
]
Service = Annotated[
    Path | None,
    typer.Argument(
        metavar="[RUN]",
        help="A run that serves or served, or a state folder, instead of `--state`.",
        show_default=False,
        callback=or_newest,
        autocompletion=offered_runs,
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", help="Address of the service. Default: as in the state folder."
    ),
]


def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] KEY=VALUE",
            help="A run whose result is served, or +experiment=NAME, and changes. "
            "Keys: rlforge show KEY.",
            show_default=False,
            autocompletion=offered_runs,
        ),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """Serve a policy at an OpenAI-compatible HTTP endpoint; new versions replace it without pause.

    Listens on loopback unless `serve.host` is set. On other addresses all requests need
    a token, that of the environment variable RLFORGE_SERVE_TOKEN or of the file `token`
    in the state folder; admin calls always need that of RLFORGE_ADMIN_TOKEN or
    `admin_token`. The first start creates the files.

    **Examples**

    ```bash
    rlforge serve runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge serve model=tiny serve.port=8001
    rlforge serve RUN deployment=ab_test deployment.ab.alpha=0.01
    ```
    """
    from rlforge.continuous.serving import server
    from rlforge.continuous.serving.setup import compose_service

    given = [one if "=" in one else str(or_newest(Path(one))) for one in arguments or []]
    setup = compose_service(given, config_dir)
    if setup.source is not None:
        say_result(setup.source, "result", "deploy --checkpoint")
    checks: server.MakeChecks | None = None
    if setup.continuous is not None and setup.source is not None:
        # Imported only here, because it imports torch.
        from rlforge.continuous.loop.policy_side import checks_of_run

        checks = partial(checks_of_run, setup.source, setup.continuous)
    server.serve(setup, say, checks)


def deploy(
    adapter: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|ADAPTER",
            help="A run, or a directory with an adapter.",
            callback=or_newest,
            autocompletion=offered_runs,
        ),
    ],
    checkpoint: Checkpoint = "result",
    state: StateDir = None,
    url: Url = None,
) -> None:
    """Deploy a version to the running service; without one, its next start deploys it.

    Exit code 1 when the new version is refused; the previous version then stays.

    **Examples**

    ```bash
    rlforge deploy runs/simpletak_mirror/2026-01-01_12-00-00
    rlforge deploy RUN --checkpoint step-40 --state deployments
    ```
    """
    from rlforge.continuous.serving.client import ask_admin, running_at, stage, state_folder
    from rlforge.continuous.serving.validation import find_source

    # At an address the paths are those of the service's machine.
    if url is None and not adapter.exists():
        raise ConfigError(f"there is no folder {adapter}; give a run or an adapter")
    if (adapter / "config.yaml").is_file():
        say_result(adapter, checkpoint)
    folder = state_folder(state, adapter)
    address = url or running_at(folder)
    if address is None:
        staged = stage(folder, find_source(adapter, checkpoint), _strategy(folder))
        typer.echo(
            f"{staged.uid} is staged: no service runs in {folder}; its next start deploys it"
        )
        return
    # A relative path would be another one for a service that runs in another folder.
    place = str(adapter.absolute())
    ended = ask_admin(address, folder, "deploy", adapter=place, checkpoint=checkpoint)
    for check in ended["checks"]:
        typer.echo(f"{'ok  ' if check['passed'] else 'FAIL'} {check['name']}: {check['detail']}")
    if ended["phase"] not in ("live", "trial"):
        raise DeploymentError(f"{ended['uid']} is not served ({ended['phase']}): {ended['reason']}")
    typer.echo(f"{ended['uid']} is {'on trial' if ended['phase'] == 'trial' else 'live'}")


def rollback(run: Service = None, state: StateDir = None, url: Url = None) -> None:
    """End the current trial, or serve the previous version again.

    **Example**

    ```bash
    rlforge rollback
    ```
    """
    from rlforge.continuous.serving.client import ask_admin, running_at, state_folder

    folder = state_folder(_named(run, state))
    address = url or running_at(folder)
    if address is None:
        raise DeploymentError(f"{folder}: no service runs here; start it with rlforge serve")
    typer.echo(f"{ask_admin(address, folder, 'rollback')['uid']} is live")


def deployments(
    run: Service = None, state: StateDir = None, url: Url = None, json_file: JsonFile = None
) -> None:
    """List the deployments of a service, running or not, and their states.

    **Example**

    ```bash
    rlforge deployments runs/market_continuous/2026-01-01_12-00-00
    ```
    """
    from rlforge.continuous.serving.client import ask_admin, state_folder
    from rlforge.continuous.serving.journal import read_history

    named = _named(run, state)
    folder = state_folder(named)
    if url is not None:
        answer = ask_admin(url, folder, "deployments")
        rows, trial = answer["deployments"], answer["trial"]
    else:
        # The file can be read while a service runs.
        rows, trial = [deployment.to_json() for deployment in read_history(folder)], None
    if not rows:
        # A folder that was named must be there; that of the default need not.
        if named is not None and not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name that of a service")
        typer.echo(f"{folder}/ holds no deployments yet; start a service: rlforge serve RUN")
    # Not in a table, whose narrow columns would break paths.
    for row in rows:
        since = time.strftime("%m-%d %H:%M", time.localtime(row["changed_at"]))
        typer.echo(f"{row['uid']}  {row['phase']} since {since}, update {row['version']}")
        typer.echo(f"    {row['source']}")
        for line in wrapped(row["reason"] or "", indent=4):
            typer.echo(line)
    if trial is not None:
        typer.echo(f"trial of {trial['version']}, share {trial['share']:.0%}: {trial['so_far']}")
    write_result(json_file, rows)


def _named(run: Path | None, state: Path | None) -> Path | None:
    if run is not None and state is not None:
        raise ConfigError(f"{run} and --state {state} both name a service; leave one out")
    return run or state


def _strategy(folder: Path) -> str:
    """The deployment strategy of the last start of the service in ``folder``."""
    from rlforge.config.compose import from_yaml
    from rlforge.continuous.config.serving import ServingConfig

    config: ServingConfig = from_yaml(folder / "config.yaml", ServingConfig)
    return config.deployment.strategy
