"""Nodes of a Ray cluster on one machine that share neither run directories nor model caches."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.harness.live_run import environment_without_ray, free_port

UNSHARE = ["unshare", "--mount", "--propagation", "private"]
RAY = Path(sys.executable).with_name("ray")

NETWORK = "10.77.0"
"""First three bytes of the addresses of nodes in network namespaces; the driver's ends with 1."""

_SWITCH = f"""\
ip link set lo up && ip link add switch type bridge && ip link set switch up && \
ip address add {NETWORK}.1/24 dev switch && ip route add default dev switch"""

_NOTHING = "rate 8bit burst 1 limit 1"
"""A token bucket that drops every packet, as each is larger than the bucket."""


def require_namespaces() -> None:
    """Skip the test where this process may not make mount namespaces."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")


def require_networks() -> None:
    """Skip the test where network namespaces cannot be made, joined or slowed down."""
    if missing := [name for name in ("nsenter", "ip", "tc") if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]}")
    cable = "ip link add one type veth peer name two && ip link set one master switch"
    slow = f"tc qdisc add dev one root tbf {_NOTHING}"
    command = ["unshare", "--net", "bash", "-c", f"{_SWITCH} && {cable} && {slow}"]
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be used here: {tried.stderr.strip()}")


class Nodes:
    """The driver's node, with no cores for actors, and others that see an empty ``driver``.

    With ``networks`` each node is in a network namespace of its own, and joined by a cable, a pair
    of veth devices, to a switch, a bridge in the driver's namespace.
    """

    def __init__(
        self, folder: Path, model: Path, model_name: str, *, networks: bool = False
    ) -> None:
        """folder: an empty one. model: what each node finds in its cache as ``model_name``."""
        self.driver = folder / "driver"  # also the home there
        self.driver.mkdir()
        self._folder, self._model, self._model_name = folder, model, model_name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # One token for all nodes, as with machines; the workers' priority is that of the tests.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        # Ray kills no worker for the memory that other processes of this machine take.
        own = {"RAY_worker_niceness": "0", "RAY_memory_monitor_refresh_ms": "0"}
        self._ray = token | own
        self._addresses = {"driver": f"{NETWORK}.1"} if networks else {}
        port, temporary = free_port(), self.driver / "ray"
        self.address = f"{self._addresses.get('driver', '127.0.0.1')}:{port}"
        head = (
            f"{RAY} start --head --block --port {port} --num-cpus 0 --include-dashboard false "
            f"--temp-dir {temporary}{self._at('driver')}"
        )
        switch = f"unshare --net bash -c '{_SWITCH} && exec {head}'"
        self._start("driver", switch if networks else head)
        self._wait("driver")

    def _at(self, name: str) -> str:
        """The option of ``ray start`` with the address of a node that has its own network."""
        return f" --node-ip-address {self._addresses[name]}" if name in self._addresses else ""

    def inside(self, name: str) -> list[str]:
        """What a command begins with to run in the network of a node."""
        if not self._addresses:
            return []
        return ["nsenter", f"--net=/proc/{self._processes[name].pid}/ns/net"]

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
        unshare, hide = shlex.join(UNSHARE), f"mount -t tmpfs none {self.driver}"
        if self._addresses:
            self._addresses[name] = f"{NETWORK}.{len(self._addresses) + 1}"
            unshare, hide = f"{unshare} --net", f"{self._plug_in(name)} && {hide}"
        ray_start = f"{RAY} start --block --address {self.address} --num-cpus {cores}"
        ray_start += self._at(name)
        if disk is not None:
            runs = self.cache(name) / "nodes"
            hide += f" && mkdir -p {runs} && mount -t tmpfs -o size={disk} none {runs}"
        self._start(name, f"{unshare} bash -c '{hide} && exec {ray_start}'")
        self._wait(name)

    def _plug_in(self, name: str) -> str:
        """For the shell of a node: the cable to the switch, whose end there has its name."""
        switch = shlex.join(self.inside("driver"))
        return (
            f"ip link set lo up && ip link add cable type veth peer name {name} "
            f"netns {self._processes['driver'].pid} && ip link set cable up && "
            f"ip address add {self._addresses[name]}/24 dev cable && "
            f"ip route add default dev cable && "
            f"{switch} ip link set dev {name} up master switch"
        )

    def cut(self, name: str) -> None:
        """Cut the network of a node: what is sent to it or by it is lost without an error."""
        self._limit(name, _NOTHING)

    def slow_down(self, name: str, rate: str) -> None:
        """Limit the network of a node, in each direction, to a rate such as ``1mbit``."""
        self._limit(name, f"rate {rate} burst 32kb latency 1s")

    def mend(self, name: str) -> None:
        """End a cut, or a limit."""
        self._traffic_control("del", name, "")

    def _limit(self, name: str, bucket: str) -> None:
        self._traffic_control("replace", name, f"tbf {bucket}")

    def _traffic_control(self, verb: str, name: str, how: str) -> None:
        for place, device in (("driver", name), (name, "cable")):
            command = f"tc qdisc {verb} dev {device} root {how}"
            subprocess.run([*self.inside(place), *command.split()], check=True)

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
