"""GPUs that a run has for itself: two runs of one user never compute on the same card unasked.

A claim is a lock on a file named after the card, which the kernel lets go of when the process ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.system.hardware import Gpu, gpus
from rlforge.system.locks import BusyError, Lock

PLACE = Path("/tmp")
"""Where the locks are; not TMPDIR, which a cluster's scheduler sets to another folder per job."""


@contextlib.contextmanager
def claimed(hardware: HardwareConfig, count: int) -> Iterator[HardwareConfig]:
    """``hardware`` with ``count`` GPUs that no other run has; in the block no others are visible.

    hardware: as resolved. Nothing is claimed without CUDA, on a cluster, where
    ``hardware.exclusive`` is off, and where it cannot be known which cards there are. Raises
    RunError naming who has the cards when too few are free.
    """
    on_cards = hardware.device == "cuda" and hardware.ray_address is None
    cards = visible() if on_cards and hardware.exclusive else {}
    if not cards:
        yield hardware
        return
    with contextlib.ExitStack() as locks:
        mine: list[str] = []
        others: list[str] = []
        for entry, gpu in cards.items():
            if len(mine) == count:
                break
            lock = Lock(_folder() / f"{re.sub('[^A-Za-z0-9-]', '_', gpu.uuid)}.lock")
            try:
                lock.acquire()
            except BusyError as holder:
                others.append(f"GPU {gpu.index} ({gpu.name}) is in use by {holder}")
                continue
            locks.callback(lock.release)
            mine.append(entry)
        if len(mine) < count:
            raise RunError(
                f"hardware={hardware.name} wants {count} GPU{'s' if count > 1 else ''} and "
                f"{len(mine) or 'none'} of {len(cards)} {'is' if len(mine) == 1 else 'are'} free: "
                f"{'; '.join(others)}; wait for it or stop it, choose other cards with "
                "CUDA_VISIBLE_DEVICES, or share with hardware.exclusive=false"
            )
        # Numbers are then those of nvidia-smi, also where cards of different kinds are mixed.
        with _environment(CUDA_VISIBLE_DEVICES=",".join(mine), CUDA_DEVICE_ORDER="PCI_BUS_ID"):
            yield dataclasses.replace(hardware, num_gpus=count)


def visible() -> dict[str, Gpu]:
    """The cards this process may use, as ``CUDA_VISIBLE_DEVICES`` calls them, in its order.

    Empty where it names something else than whole cards, or nothing is known of them.
    """
    found = gpus()
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return {str(gpu.index): gpu for gpu in found}
    named = {}
    for entry in filter(None, map(str.strip, said.split(","))):
        for gpu in found:
            if entry == str(gpu.index) or (len(entry) > 4 and gpu.uuid.startswith(entry)):
                named[entry] = gpu
                break
        else:
            return {}
    return named


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _folder() -> Path:
    """One for each user: nobody may write the files of others."""
    folder = PLACE / f"rlforge-gpus-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise RunError(
            f"{folder} is no folder of yours, and locks on GPUs cannot lie there; have it removed, "
            "or share with hardware.exclusive=false"
        )
    folder.chmod(0o700)
    return folder
