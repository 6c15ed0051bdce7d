"""What is on disk under the name of an adapter: whole, of this model, and finite; or not."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlforge.config.schema import ModelConfig
from rlforge.errors import CheckpointError, ConfigError, DeploymentError, RlforgeError
from rlforge.models.files import ADAPTER_CONFIG, MODEL_CONFIG
from rlforge.models.fit import (
    check_adapter_fits,
    check_lora,
    check_model_fits,
    kind_of_weights,
)
from rlforge.system.checkpoint import LATEST, MANIFEST, STATE, find_checkpoint, read_manifest
from rlforge.types import Checkpoint


def find_source(path: Path, name: str = LATEST) -> Path:
    """The directory with weights that ``path`` names: itself, or a checkpoint of a run.

    name: which checkpoint of a run, ``latest`` or its uid. Raises DeploymentError where there are
    none.
    """
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


def source_checkpoint(path: Path) -> Checkpoint:
    """``path`` as a checkpoint: its version is that of its manifest, 0 where it has none."""
    version = 0
    if (path / MANIFEST).is_file():
        version = int(read_manifest(path, verify=False).meta.get("version", 0))
    return Checkpoint(uid=path.name, version=version, path=str(path))


def checkpoint_of(adapter: Checkpoint | Path | str) -> Checkpoint:
    """A checkpoint, an adapter's directory or a run as a checkpoint with an absolute path: engines
    may run in another folder. Raises DeploymentError where there is none."""
    if not isinstance(adapter, Checkpoint):
        return source_checkpoint(find_source(Path(adapter).absolute()))
    if adapter.path is None:
        return adapter
    return dataclasses.replace(adapter, path=str(Path(adapter.path).absolute()))


def version_of(adapter: Checkpoint | Path | str) -> int:
    """Learner updates behind it; 0 where there is nothing to read it from."""
    try:
        return checkpoint_of(adapter).version
    except (RlforgeError, OSError):
        return 0


def fingerprint(path: Path) -> dict[str, str]:
    """SHA-256 of every file that belongs to the policy, by name; a checkpoint's are verified.

    What ``--resume`` needs is left out. Raises DeploymentError naming the file that is missing,
    truncated or altered.
    """
    try:
        if (path / MANIFEST).is_file():
            files = read_manifest(path).files
            return {n: e.sha256 for n, e in files.items() if not n.startswith(f"{STATE}/")}
        if not path.is_dir():
            raise DeploymentError(f"{path}: no such directory")
        found = sorted(p for p in path.rglob("*") if p.is_file())
        return {
            p.relative_to(path).as_posix(): _digest(p)
            for p in found
            if not p.relative_to(path).as_posix().startswith((".", f"{STATE}/"))
        }
    except CheckpointError as error:
        raise DeploymentError(str(error)) from error
    except OSError as error:
        raise DeploymentError(f"{error.filename}: {error.strerror}") from error


def copy_files(source: Path, files: Mapping[str, str]) -> Callable[[Path], None]:
    """Fills a checkpoint with ``files`` of ``source``, which must still be those fingerprinted."""

    def fill(directory: Path) -> None:
        for name, digest in files.items():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target)
            if _digest(target) != digest:
                raise DeploymentError(f"{source / name} changed while it was being deployed")

    return fill


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class WeightCheck:
    """Whether files on disk are weights for the model of ``config``; reads no base weights."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def check_fit(self, path: Path) -> str:
        """Same base model, target modules and rank; returns what fits, in words.

        Raises DeploymentError with the first difference.
        """
        from rlforge.models.load import resolve_model

        config = self._config
        try:
            if kind_of_weights(path) == "model":
                check_model_fits(path, config, same_shapes=True)
                return "full weights of this model"
            rank = check_lora(path, config, most=config.lora.rank)
            targets = check_adapter_fits(path, config, resolve_model(config))
        except ConfigError as error:
            raise DeploymentError(str(error)) from error
        return f"LoRA of rank {rank} on {', '.join(targets)}"

    def check_finite(self, path: Path) -> str:
        """Every weight is a finite number. Raises DeploymentError naming the first that is not."""
        tensors = numbers = 0
        for file, name, tensor in _tensors(path):
            if not bool(tensor.isfinite().all()):
                bad = int((~tensor.isfinite()).sum())
                raise DeploymentError(f"{file}: {name} holds {bad} numbers that are not finite")
            tensors, numbers = tensors + 1, numbers + tensor.numel()
        return f"{numbers:,} numbers in {tensors} tensors"


def _tensors(path: Path) -> Iterator[tuple[Path, str, Any]]:
    """File, name and tensor, one at a time. Raises DeploymentError for what cannot be read."""
    from safetensors import SafetensorError, safe_open

    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise DeploymentError(f"{path}: no weights (*.safetensors) in it")
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118  # not a dictionary
                    yield file, name, opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise DeploymentError(f"{file} is damaged or truncated: {error}") from error
