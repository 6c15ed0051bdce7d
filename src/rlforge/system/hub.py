"""Uploads to the Hugging Face hub, or to a folder in its place."""

from __future__ import annotations

import contextlib
import glob
import shlex
import shutil
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from rlforge.errors import ConfigError, RlforgeError, first_line
from rlforge.system.files import files_below
from rlforge.system.folders import obstacle
from rlforge.system.network import check_proxies, spare_loopback, through

#: Files of a model that are loaded where they lie.
_WEIGHTS = ("*.safetensors*", "adapter_*", "*.gguf")


def as_folder(repo: str) -> Path | None:
    """The folder that a push goes to; None for a repository of the hub.

    Example:
        >>> as_folder("./data/market"), as_folder("org/market")
        (PosixPath('data/market'), None)
    """
    return Path(repo).expanduser() if repo.startswith((".", "/", "~")) else None


def check_push(repo: str | None, option: str = "--push", *, public: bool = False) -> None:
    """Refuse a push that cannot work: a bad name, no token, one that the hub does not accept.

    repo: None: nothing is pushed, or ``public``. option: the caller's, which messages begin with.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if repo is None:
        if public:
            raise ConfigError(
                f"--public is about the repository of {option}; add {option} ORG/NAME, or leave "
                "--public out"
            )
        return
    if (target := as_folder(repo)) is not None:
        if (why := obstacle(target)) is not None:
            raise ConfigError(f"{option} {repo}: {why}")
        if public:
            raise ConfigError(f"--public is about the hub, and {option} {repo} names a folder")
        return
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"{option} {repo}: {error}") from error
    if "/" not in repo:
        raise ConfigError(f"{option} {repo}: write ORG/NAME, USER/NAME, or ./NAME for a folder")
    if get_token() is None:
        raise ConfigError(
            f"{option} needs a token of the Hugging Face hub: set HF_TOKEN, or run hf auth login"
        )
    if constants.HF_HUB_OFFLINE:
        raise ConfigError(f"{option}: HF_HUB_OFFLINE is set; unset it, or push the folder later")
    spare_loopback(constants.ENDPOINT)
    check_proxies()
    try:
        HfApi().whoami()
    except hub_errors() as error:
        raise ConfigError(
            f"{option}: no access to {constants.ENDPOINT}{hub_silence(error)}; mend this, or leave "
            f"{option} out and push later"
        ) from error


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
    """Upload a folder to a repository of the hub, made if there is none, or copy it to a folder.

    Files of the repository that the folder lacks stay, but for the parquet files of a dataset and
    the weights of a model. Raises RlforgeError where the hub cannot be reached or refuses, and
    where the folder cannot be written.

    Args:
        folder, repo: From and to: ORG/NAME or USER/NAME, or a path as of ``as_folder``.
        public, kind: Visibility and kind of a repository that is made.
        kept: The folder outlives the call: the error says how to push it later.
    """
    if (target := as_folder(repo)) is not None:
        _copy(folder, target, kind)
        say(f"copied to {target}")
        return
    from huggingface_hub import HfApi

    hub = HfApi()

    def later(old: list[str]) -> str:
        command = ["hf", "upload", repo, str(folder)]
        command += [word for name in old for word in ("--delete", name)]
        command += ["--repo-type", kind] if kind == "dataset" else []
        again = f"; the export is complete in {folder}; push it later with: {shlex.join(command)}"
        return again if kept else ""

    what = f"{repo} was not pushed"
    with _hub_errors_explained(what, later([])):
        hub.create_repo(repo, private=not public, exist_ok=True, repo_type=kind)
        old = ["*.parquet"]
        if kind == "model":
            old = _old_weights(hub.list_repo_files(repo), folder)
    with _hub_errors_explained(what, later(old)):
        say(f"uploading to {repo}")
        hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            commit_message=message,
            repo_type=kind,
            delete_patterns=old or None,
        )
    place = f"datasets/{repo}" if kind == "dataset" else repo
    say(f"pushed to {hub.endpoint}/{place}")


def _copy(folder: Path, target: Path, kind: str) -> None:
    try:
        shutil.copytree(folder, target, dirs_exist_ok=True)
        names = [str(path.relative_to(target)) for path in files_below(target)]
        old = [name for name in names if name.endswith(".parquet")]
        if kind == "model":
            old = [name for name in names if "/" not in name and _is_weight(name)]
        for name in old:
            if not (folder / name).exists():
                (target / name).unlink()
    except OSError as error:
        raise RlforgeError(f"{target} was not written: {error}") from error


def _is_weight(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _WEIGHTS)


def _old_weights(names: list[str], folder: Path) -> list[str]:
    """Patterns of the weights of a repository that a new model in ``folder`` does not have."""
    # An adapter that stays would be loaded on top of merged weights.
    return [
        glob.escape(name)
        for name in names
        if "/" not in name and _is_weight(name) and not (folder / name).exists()
    ]


@contextlib.contextmanager
def _hub_errors_explained(what: str, mend: str) -> Iterator[None]:
    try:
        yield
    except hub_errors() as error:
        raise RlforgeError(f"{what}{hub_silence(error)}{mend}") from error


def hub_errors() -> tuple[type[Exception], ...]:
    """The errors of ``huggingface_hub``, with those of the HTTP library that it uses."""
    from huggingface_hub.errors import HfHubHTTPError

    of_library: Any = HfHubHTTPError.__bases__
    # hf_xet, which uploads large files, raises RuntimeErrors.
    return (OSError, RuntimeError, ValueError, *of_library)


def hub_silence(error: Exception) -> str:
    """Why the hub did not answer, behind the proxy that was asked; one line for messages."""
    from huggingface_hub import constants

    return f"{through(constants.ENDPOINT)}: {first_line(error)}"
