"""Nodes of a Ray cluster on one machine that share neither run directories nor model caches."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.live_run import environment_without_ray

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
RAY = Path(sys.executable).with_name("ray")


def require_namespaces() -> None:
    """Skip the test where this process may not make mount namespaces."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")


class Nodes:
    """The driver's node, with no cores for actors, and others that see an empty ``driver``."""

    def __init__(self, folder: Path, model: Path, model_name: str) -> None:
        """folder: an empty one. model: what each node finds in its cache as ``model_name``."""
        self.driver = folder / "driver"  # also the home there
        self.driver.mkdir()
        self._folder, self._model, self._model_name = folder, model, model_name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # One token for all nodes, as with machines; the workers' priority is that of the tests.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._ray = {**token, "RAY_worker_niceness": "0"}
        self.address = f"127.0.0.1:{_free_port()}"
        port, temporary = self.address.partition(":")[2], self.driver / "ray"
        self._start(
            "driver",
            f"{RAY} start --head --block --port {port} --num-cpus 0 --include-dashboard false "
            f"--temp-dir {temporary}",
        )
        self._wait("driver")

    def environment(self, name: str) -> dict[str, str]:
        """Of the processes of a node."""
        places = {"RLFORGE_CACHE": str(self.cache(name)), "HOME": str(self.driver)}
        return environment_without_ray() | self._ray | places

    def cache(self, name: str) -> Path:
        """Where a node has its models, and in place of the run directory a folder."""
        return self._folder / f"cache-{name}"

    def logs(self, name: str, log: str) -> list[Path]:
        """Files of this name in the folder that a node has in place of the run directory."""
        return list(self.cache(name).glob(f"nodes/*/*/logs/{log}"))

    def add(self, name: str, cores: int, disk: str | None = None) -> None:
        """Start a node, and wait for it; disk: size of what it has for runs, such as 64k."""
        ray_start = f"{RAY} start --block --address {self.address} --num-cpus {cores}"
        hide = f"mount -t tmpfs none {self.driver}"
        if disk is not None:
            runs = self.cache(name) / "nodes"
            hide += f" && mkdir -p {runs} && mount -t tmpfs -o size={disk} none {runs}"
        self._start(name, f"{shlex.join(UNSHARE)} bash -c '{hide} && exec {ray_start}'")
        self._wait(name)

    def kill(self, name: str) -> None:
        """End all processes of a node at once."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):  # one that did not start
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a node."""
        os.killpg(self._processes[name].pid, number)

    def close(self) -> None:
        for name in [*self._processes][::-1]:
            self.kill(name)

    def _start(self, name: str, command: str) -> None:
        self.cache(name).mkdir()
        (self.cache(name) / self._model_name).symlink_to(self._model)
        self._processes[name] = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            env=self.environment(name),
            stdout=(self._folder / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _wait(self, name: str) -> None:
        log, deadline = self._folder / f"{name}.log", time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert self._processes[name].poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
