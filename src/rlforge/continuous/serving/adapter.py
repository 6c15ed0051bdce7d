"""Finds, checks (complete, made for this base model, finite) and copies weights to deploy."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rlforge.config.model import ModelConfig
from rlforge.errors import CheckpointError, ConfigError, DeploymentError, RlforgeError
from rlforge.models.files import ADAPTER_CONFIG, MODEL_CONFIG
from rlforge.models.fit import check_adapter_fits, check_lora, check_model_fits, kind_of_weights
from rlforge.system.checkpoint import LATEST, MANIFEST, STATE, find_checkpoint, read_manifest
from rlforge.system.files import sha256_of
from rlforge.types import Checkpoint


def find_source(path: Path, name: str = LATEST) -> Path:
    """``path``, or the checkpoint ``name`` of the run there; DeploymentError for no weights."""
    if not path.is_dir():
        raise DeploymentError(f"{path}: no such directory; give a run or an adapter")
    if (path / ADAPTER_CONFIG).is_file() or (path / MODEL_CONFIG).is_file():
        return path
    checkpoints = path / "checkpoints"
    if not checkpoints.is_dir():
        raise DeploymentError(
            f"{path}: neither a run (checkpoints/), nor an adapter ({ADAPTER_CONFIG}), nor a model "
            f"({MODEL_CONFIG})"
        )
    try:
        return find_checkpoint(checkpoints, name)
    except CheckpointError as error:
        raise DeploymentError(str(error)) from None


def checkpoint_of(adapter: Checkpoint | Path | str) -> Checkpoint:
    """A checkpoint, directory with weights or run as a checkpoint; DeploymentError for none."""
    if isinstance(adapter, Checkpoint):
        given = adapter.path
        # Engines may run in another folder, where a relative path would be another one.
        return dataclasses.replace(adapter, path=given and str(Path(given).absolute()))
    path, version = find_source(Path(adapter).absolute()), 0
    if (path / MANIFEST).is_file():
        version = int(read_manifest(path, verify=False).meta.get("version", 0))
    return Checkpoint(uid=path.name, version=version, path=str(path))


def version_of(adapter: Checkpoint | Path | str) -> int:
    """The number of learner updates behind ``adapter``; 0 where it cannot be read."""
    try:
        return checkpoint_of(adapter).version
    except (RlforgeError, OSError):
        return 0


def fingerprint(path: Path) -> dict[str, str]:
    """SHA-256 of every file of the policy, by name; DeploymentError naming a wrong one."""
    try:
        if (path / MANIFEST).is_file():
            files = read_manifest(path).files
            # Only ``--resume`` needs the learner's state.
            return {n: e.sha256 for n, e in files.items() if not n.startswith(f"{STATE}/")}
        if not path.is_dir():
            raise DeploymentError(f"{path}: no such directory")
        found = sorted(p for p in path.rglob("*") if p.is_file())
        return {
            p.relative_to(path).as_posix(): sha256_of(p)
            for p in found
            if not p.relative_to(path).as_posix().startswith((".", f"{STATE}/"))
        }
    except CheckpointError as error:
        raise DeploymentError(str(error)) from error
    except OSError as error:
        raise DeploymentError(f"{error.filename}: {error.strerror}") from error


def copy_files(source: Path, files: Mapping[str, str]) -> Callable[[Path], None]:
    """A function that copies ``files`` by name and digest; DeploymentError for one that changed."""

    def fill(directory: Path) -> None:
        for name, digest in files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
            if sha256_of(target) != digest:
                raise DeploymentError(f"{source / name} changed while it was being deployed")

    return fill


def check_fit(path: Path, config: ModelConfig) -> str:
    """Say what fits; DeploymentError for another base model, target module or rank."""
    from rlforge.models.load import resolve_model

    try:
        if kind_of_weights(path) == "model":
            check_model_fits(path, config, same_shapes=True)
            return "full weights of this model"
        rank = check_lora(path, config, most=config.lora.rank)
        targets = check_adapter_fits(path, config, resolve_model(config))
    except ConfigError as error:
        raise DeploymentError(str(error)) from error
    return f"LoRA of rank {rank} on {', '.join(targets)}"
