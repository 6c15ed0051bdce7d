"""Finds a running service and makes its admin calls; without one, records a deployment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import httpx

from rlforge.config.rules import ADDRESS, is_address
from rlforge.continuous.serving.journal import owned
from rlforge.continuous.serving.records import Deployment
from rlforge.continuous.serving.tokens import read_admin_token
from rlforge.continuous.serving.validation import checkpoint_of
from rlforge.errors import ConfigError, DeploymentError, RunError
from rlforge.system.locks import RunLock
from rlforge.system.network import check_proxies, on_loopback, through, without_credentials

STATE_DIR = "deployments"
"""Name of a service's state folder, in its run or else in the working directory."""

ADDRESS_FILE = "service.json"
"""File in the state folder with the address of the service that runs there."""

PAGE = "/watch"
"""Path of the page that shows a service."""

#: Seconds to connect to a service; its answer has no time limit.
_CONNECT_S = 5.0


def state_folder(given: Path | None, run: Path | None = None) -> Path:
    """``given`` or the state folder in it; else that of ``run`` or of the working directory."""
    if given is not None:
        return given / STATE_DIR if (given / STATE_DIR).is_dir() else given
    if run is not None and (run / STATE_DIR).is_dir():
        return run / STATE_DIR
    return Path(STATE_DIR)


def running_at(state_dir: Path) -> str | None:
    """The address of the service on ``state_dir``; None where none runs, else DeploymentError."""
    if not (state_dir / RunLock.FILE).is_file():
        raise DeploymentError(
            f"{state_dir}: no service was ever started here; start one with rlforge serve, or name "
            "its folder with --state or its address with --url"
        )
    try:
        with RunLock(state_dir):
            return None
    # A service holds the lock while it runs.
    except RunError as owned:
        try:
            return str(json.loads((state_dir / ADDRESS_FILE).read_text())["url"])
        except (OSError, ValueError, KeyError) as error:
            raise DeploymentError(
                f"{owned}; it does not answer: it has just started, or has serve.page=null"
            ) from error


def ask_admin(
    url: str, state_dir: Path, what: Literal["deploy", "rollback", "deployments"], **body: str
) -> dict[str, Any]:
    """The answer of the service at ``url`` to an admin call, with the token in ``state_dir``.

    Raises ConfigError for an address that is none and for a token that is refused, DeploymentError
    with what the service says, RunError where no service of rlforge answers.
    """
    if not is_address(url):
        raise ConfigError(f"the service's address {without_credentials(url)} must {ADDRESS.must}")
    url = url.rstrip("/").removesuffix("/v1")
    shown = without_credentials(url)
    # A proxy would look for a loopback address on its own machine.
    trusted = not on_loopback(url)
    if trusted:
        check_proxies()
    token = read_admin_token(state_dir)
    try:
        answer = httpx.request(
            "GET" if what == "deployments" else "POST",
            f"{url}/admin/{what}",
            json=body or None,
            headers={"authorization": f"Bearer {token}"},
            # A deployment takes minutes, so the answer has no time limit.
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            trust_env=trusted,
        )
        content = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        raise RunError(
            f"no service answers at {shown}{through(url)}: {error or type(error).__name__}"
        ) from error
    if isinstance(content, dict):
        # Every answer but an error has one of these.
        if content.keys() & {"uid", "deployments"}:
            return content
        if isinstance(said := content.get("error"), dict) and "message" in said:
            if answer.status_code == 401:
                raise ConfigError(f"{shown} refuses the token: {said['message']}")
            raise DeploymentError(said["message"])
    raise RunError(
        f"what answers at {shown} is no service of rlforge (HTTP status {answer.status_code}); "
        "check the address"
    )


def stage(folder: Path, source: Path, strategy: str) -> Deployment:
    """Record an adapter for the next service on ``folder`` to deploy; RunError where one runs."""
    checkpoint = checkpoint_of(source)
    with owned(folder) as journal:
        # The first deployment must be the base model, which only a service records.
        if not journal.history():
            raise DeploymentError(f"{folder}: no service was ever started here")
        return journal.begin(
            checkpoint.path or "", strategy=strategy, updates=checkpoint.version, phase="staged"
        )
