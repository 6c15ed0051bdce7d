"""Uploads to the Hugging Face hub."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from rlforge.errors import ConfigError, RlforgeError


def check_push(repo: str, option: str = "--push") -> None:
    """Refuse a push that cannot work: a bad name, no token, one that the hub does not accept.

    option: how the caller asked for it, which messages begin with.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"{option} {repo}: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"{option} {repo}: write ORG/NAME, or USER/NAME")
    if get_token() is None:
        raise ConfigError(
            f"{option} needs a token of the Hugging Face hub: set HF_TOKEN, or run hf auth login"
        )
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{option}: HF_HUB_OFFLINE is set; unset it, or push the folder later")
    with _hub_errors_explained(f"{option}: no access to {constants.ENDPOINT}"):
        HfApi().whoami()


def push_folder(
    folder: Path,
    repo: str,
    message: str,
    *,
    public: bool,
    say: Callable[[str], None],
    kind: Literal["model", "dataset"] = "model",
    kept: bool = True,
) -> None:
    """Upload a folder to a repository of the hub, made if there is none; message: of the commit.

    Files of the repository that the folder lacks stay, but for the parquet files of a dataset.
    Raises RlforgeError where the hub cannot be reached or refuses.

    kept: whether the folder outlives the call; the error then says how to push it later.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    more = " --repo-type dataset" if kind == "dataset" else ""
    later = (
        f"; the export is complete in {folder}; push it later with: hf upload {repo} {folder}{more}"
    )
    with _hub_errors_explained(f"{repo} was not pushed", later if kept else ""):
        hub.create_repo(repo, private=not public, exist_ok=True, repo_type=kind)
        say(f"uploading to {repo}")
        hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=message,
            repo_type=kind,
            delete_patterns="*.parquet" if kind == "dataset" else None,
        )
    place = f"datasets/{repo}" if kind == "dataset" else repo
    say(f"pushed to {hub.endpoint}/{place}")


@contextlib.contextmanager
def _hub_errors_explained(what: str, mend: str = "") -> Iterator[None]:
    import httpx

    try:
        yield
    except (OSError, ValueError, httpx.HTTPError) as error:  # the hub's errors are OSErrors
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise RlforgeError(f"{what}: {reason[0]}{mend}") from error
