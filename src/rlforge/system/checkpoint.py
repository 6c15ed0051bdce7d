"""Checkpoint directories that are complete or absent.

Files that belong to a checkpoint are listed in its ``manifest.json``. The names in one root end in
a number, which orders them: ``step-12`` holds the policy after 12 updates.

Example:
    >>> import tempfile
    >>> def fill(folder: Path) -> None:
    ...     (folder / "weights").write_text("0.5")
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for version in (9, 10):
    ...         path = write_checkpoint(Path(root), step_name(version), fill, {"version": version})
    ...     [path.name for path in list_checkpoints(Path(root))], checkpoint_version(path)
    (['step-9', 'step-10'], 10)
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from rlforge.errors import CheckpointError
from rlforge.system.files import (
    files_below,
    readable_size,
    says_full_disk,
    sha256_of,
    sync,
    usual_modes,
)
from rlforge.system.values import from_json, to_json
from rlforge.types import value

MANIFEST = "manifest.json"
#: Folder of a checkpoint with the state that ``--resume`` needs beside the weights.
STATE = "state"
#: Names the newest checkpoint of a root where a name is asked for.
LATEST = "latest"

#: What a user who names a checkpoint can do about a damaged one.
_OLDER = "; use an older checkpoint"

_STEP_NAME = re.compile(r"(?!deploy-)[a-z][a-z0-9_]*-\d+")
_TEMPORARY = re.compile(r"\.tmp\.(?P<host>.+)\.(?P<pid>\d+)\.[^.]+")
#: Age after which a temporary directory of another machine counts as abandoned.
_ABANDONED_S = 24 * 3600.0


def step_name(version: int, policy: str = "") -> str:
    """The name of the checkpoint after ``version`` updates. policy: one of a run's ``policies``.

    Example:
        >>> step_name(12), step_name(13, "exploiter")
        ('step-12', 'exploiter-13')
    """
    return f"{policy or 'step'}-{version}"


def is_step_name(name: str) -> bool:
    """Whether ``name`` is that of a run's checkpoint, not of another policy.

    Example:
        >>> [is_step_name(name) for name in ("step-3", "exploiter-40", "minimax", "mcts:200")]
        [True, True, False, False]
    """
    return _STEP_NAME.fullmatch(name) is not None


def step_number(name: str) -> int:
    """The number of updates in a name that ``step_name`` made.

    Example:
        >>> step_number(step_name(12))
        12
    """
    return int(name.rpartition("-")[2])


def policy_in(name: str) -> str:
    """The policy in a name that ``step_name`` made; empty where the run has one.

    Example:
        >>> policy_in("exploiter-13"), policy_in("step-12")
        ('exploiter', '')
    """
    policy = name.rpartition("-")[0]
    return "" if policy == "step" else policy


@value
class FileEntry:
    """A file of a checkpoint. size: bytes; sha256: hexadecimal."""

    size: int
    sha256: str


@value
class Manifest:
    """The contents of a checkpoint. meta: facts from the writer, such as the version.

    files: by path relative to the checkpoint, with forward slashes.
    """

    rlforge_version: str
    meta: Mapping[str, Any]
    files: Mapping[str, FileEntry]

    @property
    def has_state(self) -> bool:
        """Whether it has the state that ``--resume`` needs."""
        return any(name.startswith(f"{STATE}/") for name in self.files)

    @property
    def total_size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


def write_checkpoint(
    root: Path, name: str, fill: Callable[[Path], None], meta: Mapping[str, Any]
) -> Path:
    """Make ``root/name`` and return its path; a failure leaves nothing behind.

    Args:
        fill: Writes the files into the directory that it is given; its errors pass through.
        meta: JSON-ready facts for the manifest.
    """
    path = root / name
    if path.exists():
        raise CheckpointError(f"checkpoint {path} exists already; delete it or choose another name")
    with _explain_full_disk(root, path):
        root.mkdir(parents=True, exist_ok=True)
        clean_leftovers(root)
        with _temporary(root) as directory:
            fill(directory)
            _write_manifest(directory, _describe(directory), meta)
            # The rename may reach the disk before the files do: all are synced first.
            _sync_directories(directory)
            directory.rename(path)
        sync(root)
    return path


def extend_checkpoint(path: Path, fill: Callable[[Path], None]) -> Manifest:
    """Add the files that ``fill`` writes to a checkpoint; returns its new manifest."""
    manifest = read_manifest(path, verify=False)
    full = _explain_full_disk(path.parent, path, f"{STATE}/")
    with full, _temporary(path.parent) as directory:
        fill(directory)
        added = _describe(directory)
        taken = sorted(added.keys() & manifest.files.keys())
        if taken:
            raise CheckpointError(f"checkpoint {path} holds {taken[0]} already")
        _write_manifest(directory, {**manifest.files, **added}, manifest.meta)
        _move_into(path, directory, added)
    return read_manifest(path, verify=False)


def receive_checkpoint(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the checkpoint at ``path`` of its files and manifest, or add the files that it lacks.

    files: by path relative to it. Nothing is changed where it raises.
    """
    root = path.parent
    with _explain_full_disk(root, path):
        root.mkdir(parents=True, exist_ok=True)
        with _temporary(root) as directory:
            for name, content in files.items():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                sync(target)
            manifest = read_manifest(directory)
            _sync_directories(directory)
            if path.exists():
                lacking = [name for name in manifest.files if not (path / name).exists()]
                _move_into(path, directory, lacking)
            else:
                directory.rename(path)
        sync(root)


def _move_into(path: Path, directory: Path, names: Iterable[str]) -> None:
    for name in names:
        target = path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (directory / name).replace(target)
    _sync_directories(path)
    # The manifest comes last: files belong to the checkpoint once it names them, so an extension
    # that is interrupted before may be repeated.
    (directory / MANIFEST).replace(path / MANIFEST)
    sync(path)


def read_manifest(path: Path, *, verify: bool = True) -> Manifest:
    """The manifest of the checkpoint at ``path``; verify: check size and digest of every file.

    Raises CheckpointError naming the file that is missing, truncated or altered.
    """
    file = path / MANIFEST
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        manifest = from_json(Manifest, raw)
    except FileNotFoundError:
        reason = "it has no manifest" if path.is_dir() else "there is no such directory"
        raise CheckpointError(f"{path} is not a checkpoint: {reason}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}{_OLDER}") from error
    if verify:
        for name, entry in manifest.files.items():
            _verify(path, name, entry)
    return manifest


def checkpoint_version(path: Path, *, verify: bool = False) -> int:
    """The number of updates that the manifest states; verify: as for ``read_manifest``."""
    version = read_manifest(path, verify=verify).meta.get("version")
    if not isinstance(version, int):
        raise CheckpointError(
            f"{path / MANIFEST} is damaged: meta.version is {version!r}, and no number{_OLDER}"
        )
    return version


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoints in ``root``, oldest first by the number their names end in."""
    if not root.is_dir():
        return []
    found = (p for p in root.iterdir() if not p.name.startswith(".") and (p / MANIFEST).is_file())
    return sorted(found, key=_order)


def latest_checkpoint(root: Path, *, with_state: bool = False) -> Path | None:
    """The newest checkpoint in ``root``, if any; with_state: that a run can be resumed from."""
    for path in reversed(list_checkpoints(root)):
        if not with_state:
            return path
        with needed_to_resume(path):
            if read_manifest(path, verify=False).has_state:
                return path
    return None


@contextlib.contextmanager
def needed_to_resume(path: Path) -> Iterator[None]:
    """Say of damage to the checkpoint ``path`` in the block where a run goes on without it."""
    try:
        yield
    except CheckpointError as error:
        before = [each for each in list_checkpoints(path.parent) if _order(each) < _order(path)]
        sound = (each.name for each in reversed(before) if _can_be_resumed(each))
        raise CheckpointError(
            f"{str(error).removesuffix(_OLDER)}; move {path} out of its folder and resume again: "
            f"the run goes on from {next(sound, 'its start')}"
        ) from error


def _can_be_resumed(path: Path) -> bool:
    try:
        return read_manifest(path).has_state
    except CheckpointError:
        return False


def find_checkpoint(root: Path, name: str = LATEST) -> Path:
    """The checkpoint ``name`` of ``root``; ``latest``: its newest, of the first of its policies."""
    if name == LATEST:
        newest = latest_checkpoint(root)
        if newest is None:
            raise CheckpointError(f"{root}: holds no checkpoint yet")
        if not policy_in(newest.name):
            return newest
        first = read_manifest(newest, verify=False).meta.get("first_policy")
        own = [path for path in list_checkpoints(root) if policy_in(path.name) == first]
        return own[-1] if own else newest
    path = root / name
    # Names are compared: a path, such as "..", would lead out of the root.
    there = {each.name for each in root.iterdir() if each.is_dir()} if root.is_dir() else set()
    if name not in there:
        names = [entry.name for entry in reversed(list_checkpoints(root)[-3:])]
        known = f"the newest are {', '.join(names)}" if names else "there is none yet"
        raise CheckpointError(f"{path}: no such checkpoint; {known}")
    return path


def prune(
    root: Path, keep: int, protected: Collection[str] = (), since: int | None = None
) -> list[Path]:
    """Delete all but the ``keep`` newest checkpoints; returns the paths of these.

    Args:
        protected, since: Names of others that stay, and version from which on all do.
    """
    # Versions from ``since`` on do not count: another process may be adding some.
    candidates = [
        path
        for path in list_checkpoints(root)
        if path.name not in protected and (since is None or checkpoint_version(path) < since)
    ]
    doomed = candidates[: max(0, len(candidates) - keep)]
    for path in doomed:
        # A checkpoint is renamed first: an interrupted deletion then leaves no incomplete one.
        with _temporary(root) as directory:
            path.rename(directory / path.name)
    return doomed


def clean_leftovers(root: Path) -> list[Path]:
    """Delete temporary directories of processes that ended; returns their paths."""
    leftovers = [path for path in root.iterdir() if _is_leftover(path)]
    for path in leftovers:
        # Another writer may be deleting the same directory.
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    return leftovers


def _order(path: Path) -> tuple[int, str]:
    number = re.search(r"(\d+)$", path.name)
    return (int(number[1]) if number else -1, path.name)


@contextlib.contextmanager
def _temporary(root: Path) -> Iterator[Path]:
    """A directory in ``root``, deleted at the end."""
    owner = f"{socket.gethostname()}.{os.getpid()}"
    # In ``root``, because a directory can only be renamed within its file system.
    path = root / f".tmp.{owner}.{secrets.token_hex(4)}"
    path.mkdir()
    try:
        yield path
    finally:
        if path.exists():
            shutil.rmtree(path)


def _is_leftover(path: Path) -> bool:
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return False
    if match["host"] != socket.gethostname():
        # Processes of another machine cannot be seen from here, so the age decides.
        return time.time() - path.stat().st_mtime > _ABANDONED_S
    return not psutil.pid_exists(int(match["pid"]))


def _describe(directory: Path) -> dict[str, FileEntry]:
    if (directory / MANIFEST).exists():
        raise CheckpointError(f"{MANIFEST} is the manifest's own name; write another file")
    usual_modes(directory)
    files = {}
    for file in sorted(files_below(directory)):
        entry = FileEntry(size=file.stat().st_size, sha256=sha256_of(file))
        files[file.relative_to(directory).as_posix()] = entry
        sync(file)
    return files


def _verify(path: Path, name: str, expected: FileEntry) -> None:
    file = path / name
    if not file.is_file():
        raise CheckpointError(f"checkpoint {path} lacks {name}{_OLDER}")
    size = file.stat().st_size
    if size != expected.size:
        what = "truncated" if size < expected.size else "longer than written"
        raise CheckpointError(
            f"checkpoint {path}: {name} is {what}, {size:,} of {expected.size:,} bytes{_OLDER}"
        )
    if sha256_of(file) != expected.sha256:
        raise CheckpointError(f"checkpoint {path}: {name} was altered, its digest differs{_OLDER}")


def _write_manifest(
    directory: Path, files: Mapping[str, FileEntry], meta: Mapping[str, Any]
) -> None:
    manifest = Manifest(rlforge_version=version("rlforge"), meta=meta, files=files)
    file = directory / MANIFEST
    file.write_text(json.dumps(to_json(manifest), indent=2) + "\n", encoding="utf-8")
    sync(file)


def _sync_directories(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_dir():
            sync(path)
    sync(directory)


@contextlib.contextmanager
def _explain_full_disk(root: Path, path: Path, part: str = "") -> Iterator[None]:
    """Say of a full disk how much is free and needed. part: what is added; empty: all files."""
    try:
        yield
    except Exception as error:
        if not says_full_disk(error):
            raise
        free = shutil.disk_usage(root if root.exists() else root.parent).free
        needed, mend = "which is not enough", "free some"
        for older in reversed(list_checkpoints(root)):
            # The first checkpoint has none that could be deleted.
            mend = "free some, or set learner.keep_checkpoints; older checkpoints are untouched"
            try:
                files = read_manifest(older, verify=False).files
            except CheckpointError:  # which must not hide that the disk is full
                continue
            size = sum(one.size for name, one in files.items() if name.startswith(part))
            # A checkpoint before its state, or one of a smaller model, needed less than is free.
            if size > free:
                like = f"{older.name}/{part}".removesuffix("/")
                needed = f"about {readable_size(size)} needed, the size of {like}"
                break
        raise CheckpointError(
            f"no space on disk for checkpoint {f'{path}/{part}'.removesuffix('/')}: "
            f"{readable_size(free)} free, {needed}; {mend}"
        ) from error
