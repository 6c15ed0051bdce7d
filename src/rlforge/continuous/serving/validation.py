"""Finds, checks and copies the weights to deploy.

The checks of a new version before it is served, in this order; the first failure ends them:

files      every file exists and has the digest in its manifest
fit        same base model, target modules and rank
finite     no weight is NaN or infinite
loads      the engine loads it and answers the probes
format     enough answers have the format that games can read
holdout    not worse than the current version by more than a margin
conduct    earns its rewards there by what they stand for
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlforge.config.model import ModelConfig
from rlforge.continuous.config.serving import DeploymentConfig
from rlforge.continuous.serving.records import Check, Holdout, PairedOutcomes, Probe
from rlforge.continuous.serving.trials import compare
from rlforge.engines.base import Generator
from rlforge.errors import CheckpointError, ConfigError, DeploymentError, RlforgeError
from rlforge.local.policies import RESULT, find_weights
from rlforge.models.files import ADAPTER_CONFIG, AVERAGE, MODEL_CONFIG
from rlforge.models.finite import check_finite
from rlforge.models.fit import check_adapter_fits, check_lora, check_model_fits, kind_of_weights
from rlforge.system.checkpoint import (
    LATEST,
    MANIFEST,
    STATE,
    checkpoint_version,
    find_checkpoint,
    read_manifest,
)
from rlforge.system.files import files_below, sha256_of
from rlforge.types import Checkpoint, Completion, PolicyRef

_NAMES = ("files", "fit", "finite", "loads", "format", "holdout", "conduct")


def find_source(path: Path, name: str = RESULT) -> Path:
    """``path``, or the version ``name`` of the run there; DeploymentError for no weights."""
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
        if (path / "config.yaml").is_file():
            return find_weights(path, name)
        return find_checkpoint(checkpoints, LATEST if name == RESULT else name)
    except (CheckpointError, ConfigError) as error:
        raise DeploymentError(str(error)) from None


def checkpoint_of(adapter: Checkpoint | Path | str) -> Checkpoint:
    """A checkpoint, directory with weights or run as a checkpoint; DeploymentError for none."""
    if isinstance(adapter, Checkpoint):
        given = adapter.path
        # Engines may run in another folder, where a relative path would be another one.
        return dataclasses.replace(adapter, path=given and str(Path(given).absolute()))
    path, version = find_source(Path(adapter).absolute()), 0
    # An average is a folder of the version whose manifest counts its updates.
    averaged = path.name == AVERAGE and (path.parent / MANIFEST).is_file()
    saved = path.parent if averaged else path
    if (saved / MANIFEST).is_file():
        version = checkpoint_version(saved)
    uid = f"{saved.name}-{AVERAGE}" if averaged else path.name
    return Checkpoint(uid=uid, version=version, path=str(path))


def fingerprint(path: Path) -> dict[str, str]:
    """SHA-256 of every file of the policy, by name; DeploymentError naming a wrong one."""
    try:
        if (path / MANIFEST).is_file():
            found = {name: entry.sha256 for name, entry in read_manifest(path).files.items()}
        elif path.is_dir():
            files = sorted(files_below(path))
            found = {each.relative_to(path).as_posix(): sha256_of(each) for each in files}
        else:
            raise DeploymentError(f"{path}: no such directory")
    except CheckpointError as error:
        raise DeploymentError(str(error)) from error
    except OSError as error:
        raise DeploymentError(f"{error.filename}: {error.strerror}") from error
    # Only ``--resume`` needs the learner's state.
    return {n: digest for n, digest in found.items() if not n.startswith((".", f"{STATE}/"))}


def copy_files(source: Path, files: Mapping[str, str], target: Path) -> None:
    """Copy ``files``, digests by name; DeploymentError for one that changed."""
    for name, digest in files.items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, copy)
        if sha256_of(copy) != digest:
            raise DeploymentError(f"{source / name} changed while it was being deployed")


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


async def validate(
    candidate: PolicyRef,
    current: PolicyRef,
    engine: Generator,
    *,
    config: DeploymentConfig,
    model: ModelConfig,
    probes: Sequence[Probe],
    holdout: Holdout | None,
) -> tuple[tuple[Check, ...], Mapping[str, str]]:
    """The checks of a new version, whose path is set, against the current one; its digests by file.

    Only the last check may have failed.

    The other parameters are those of ``DeploymentService.open``.
    """
    path = Path(candidate.path_or_name or "")
    files: Mapping[str, str] = {}
    found: list[str] = []
    try:
        files = await asyncio.to_thread(fingerprint, path)
        found.append(f"{len(files)} files")
        found.append(await asyncio.to_thread(check_fit, path, model))
        found.append(await asyncio.to_thread(check_finite, path))
        asked = (engine.generate(p.prompt_token_ids, p.params, candidate) for p in probes)
        answers = await asyncio.gather(*asked)
        found.append("the engine loaded it")
        found.append(_read(probes, answers, config.min_format))
        if holdout is not None:
            outcomes = await holdout(candidate, current)
            # A version that loses is refused for that, suspect or not.
            found.append(_compare(outcomes, config))
            if outcomes.concerns:
                raise DeploymentError("; ".join(outcomes.concerns))
            found.append("nothing is suspect")
    except RlforgeError as error:
        failed = [Check(name=_NAMES[len(found)], passed=False, detail=str(error))]
    else:
        failed = []
    passed = zip(_NAMES, found, strict=False)
    checks = [Check(name=name, passed=True, detail=detail) for name, detail in passed]
    return (*checks, *failed), files


def _read(probes: Sequence[Probe], answers: Sequence[Completion], wanted: float) -> str:
    read = [p.well_formed(a.text) for p, a in zip(probes, answers, strict=True)]
    detail = f"{sum(read)} of {len(read)} answers can be read; {wanted:.0%} must be"
    if sum(read) / len(read) < wanted:
        unread = answers[read.index(False)].text[:80]
        raise DeploymentError(f"{detail}; one that cannot: {unread!r}")
    return detail


def _compare(outcomes: PairedOutcomes, config: DeploymentConfig) -> str:
    try:
        if len(outcomes.candidate) != len(outcomes.current):
            raise DeploymentError(
                f"the held-out set gave {len(outcomes.candidate)} rewards of the new version "
                f"and {len(outcomes.current)} of the current one"
            )
        result = compare(outcomes, margin=config.margin, alpha=config.alpha, test=config.test)
    except ValueError as error:
        raise DeploymentError(str(error)) from error
    if not result.passed:
        raise DeploymentError(str(result))
    return str(result)
