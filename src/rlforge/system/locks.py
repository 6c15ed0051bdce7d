"""Locks between processes: one run owns a run directory, and one run computes on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError, counted
from rlforge.system.folders import private_folder
from rlforge.system.hardware import visible_gpus

if TYPE_CHECKING:
    from filelock import FileLock

#: Folder of the locks on GPUs; not TMPDIR, which schedulers of clusters set per job.
GPU_LOCKS = Path("/tmp")

#: Seconds for which a lock is tried: ``Lock.held`` takes it for some microseconds.
PROBE_S = 0.05


class BusyError(Exception):
    """Another process holds the lock; the message names it."""


class Lock:
    """An exclusive lock, held from ``acquire`` to ``release`` or to the end of the process.

    Its file names the holder.
    """

    def __init__(self, file: Path) -> None:
        """file: in a directory that exists when the lock is acquired."""
        self._file = file
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Raises BusyError where another holds it, or this one does already."""
        # Commands that only ask ``held`` start faster without this import.
        from filelock import FileLock, Timeout

        lock = FileLock(self._file, timeout=PROBE_S, poll_interval=PROBE_S / 2, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            other = _named(self._file.read_bytes())
            held = f"process {other['pid']} on {other['host']}" if other else "another process"
            raise BusyError(held) from None
        self._file.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        self._lock = lock

    def release(self) -> None:
        """Unlock; does nothing where the lock is not held."""
        if self._lock is not None:
            # The file stays: deleting it would let two processes lock two files of one name.
            self._file.write_text("")
            self._lock.release()
            self._lock = None

    def holder(self) -> int | None:
        """The process of this machine that holds the lock."""
        if not self.held():
            return None
        named = _named(self._file.read_bytes()) or {}
        return named["pid"] if named.get("host") == socket.gethostname() else None

    def held(self) -> bool | None:
        """Whether a process holds the lock; None where that cannot be known, as without a file."""
        try:
            file = self._file.open("rb")
        except FileNotFoundError:
            return None
        with file:
            try:
                # The lock is a shared one, unlike filelock's: readers may lack the right to write.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            holder = _named(file.read())
        # Not every network file system shows the locks of other machines, so this one may be held.
        return None if holder and holder["host"] != socket.gethostname() else False


class RunLock(Lock):
    """The lock on a run directory, which must exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, RunLock(Path(folder)):
        ...     RunLock(Path(folder)).acquire()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        rlforge.errors.RunError: ... is in use by process ...; wait for it or stop it, then resume
    """

    FILE = "run.lock"

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir / self.FILE)
        self._run_dir = run_dir

    def acquire(self) -> None:
        """Lock the directory; RunError naming the holder if it is locked."""
        try:
            super().acquire()
        except BusyError as holder:
            raise RunError(
                f"{self._run_dir} is in use by {holder}; wait for it or stop it, then resume"
            ) from None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _named(content: bytes) -> dict[str, Any] | None:
    try:
        return dict(json.loads(content))
    except (TypeError, ValueError):
        # The holder has not written its name yet.
        return None


@contextlib.contextmanager
def claim_gpus(hardware: HardwareConfig, count: int) -> Iterator[HardwareConfig]:
    """``hardware`` (resolved) with ``count`` GPUs that no other run of this user has claimed.

    Only these are visible in the block. Raises RunError naming the holders where too few are free.
    """
    # ``visible_gpus`` is empty where NVML does not answer: unknown GPUs cannot be claimed.
    on_gpus = hardware.device == "cuda" and hardware.ray_address is None
    found = visible_gpus() if on_gpus and hardware.exclusive else {}
    if not found:
        yield hardware
        return
    with contextlib.ExitStack() as locks:
        claimed: list[str] = []
        busy: list[str] = []
        for entry, gpu in found.items():
            if len(claimed) == count:
                break
            lock = Lock(_lock_folder() / f"{re.sub('[^A-Za-z0-9-]', '_', gpu.uuid)}.lock")
            try:
                lock.acquire()
            except BusyError as holder:
                busy.append(f"GPU {gpu.index} ({gpu.name}) is in use by {holder}")
                continue
            locks.callback(lock.release)
            claimed.append(entry)
        if len(claimed) < count:
            raise RunError(
                f"hardware={hardware.name} wants {counted(count, 'GPU')} and "
                f"{len(claimed) or 'none'} of {len(found)} {'is' if len(claimed) == 1 else 'are'} "
                f"free: {'; '.join(busy)}; wait for it or stop it, choose other cards with "
                "CUDA_VISIBLE_DEVICES, or share with hardware.exclusive=false"
            )
        # PCI order makes CUDA number mixed cards as nvidia-smi does.
        with _environment(CUDA_VISIBLE_DEVICES=",".join(claimed), CUDA_DEVICE_ORDER="PCI_BUS_ID"):
            yield dataclasses.replace(hardware, num_gpus=count)


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


def _lock_folder() -> Path:
    # Each user has a private folder, so that other users can neither write nor replace its files.
    folder = GPU_LOCKS / f"rlforge-gpus-{os.getuid()}"
    try:
        return private_folder(folder)
    except OSError as error:
        raise RunError(
            f"{folder}: {error.strerror}, so that it cannot hold locks on GPUs; remove it, or "
            "share GPUs with hardware.exclusive=false"
        ) from None
