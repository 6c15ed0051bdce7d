"""Processes of actors."""

from __future__ import annotations

import os
import signal
import sys

import psutil
import pytest
import ray

from rlforge.config.schema import HardwareConfig
from rlforge.run.actors.session import ray_started

ACTOR = """
import os, sys, time
from unittest import mock
from rlforge.run.actors import process
with mock.patch.object(process.ray, "is_initialized", return_value=True):
    process.end_with_node()
print(os.getpid(), flush=True)
time.sleep(60)
"""
NODE = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ACTOR!r}])
"""


def test_an_actor_ends_with_the_process_of_its_node() -> None:
    node = psutil.Popen([sys.executable, "-c", NODE], stdout=-1, text=True)
    actor = psutil.Process(int(node.stdout.readline()))
    assert actor.is_running()
    node.send_signal(signal.SIGKILL)
    node.wait()
    actor.wait(timeout=10)


@pytest.mark.ray
def test_above_an_actor_is_the_process_of_its_node(own_home: None) -> None:
    class Child:
        def parent(self) -> tuple[bool, str]:
            return ray.is_initialized(), psutil.Process(os.getppid()).name()

    with ray_started(HardwareConfig(device="cpu"), 1):
        child = ray.remote(Child).options(num_cpus=0).remote()
        assert ray.get(child.parent.remote()) == (True, "raylet")
