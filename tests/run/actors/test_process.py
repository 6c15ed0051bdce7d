"""Processes of actors."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from rlforge.config.schema import HardwareConfig
from rlforge.run.actors.process import held_at
from rlforge.run.actors.session import ray_started

ACTOR = """
import os, time
from pathlib import Path
from rlforge.run.actors import process
from rlforge.system.output import Output
process.watch(Output(Path("state.out")))
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


ROOT = str(Path(__file__).parents[3])
HOLDS = """import ctypes
from dataclasses import dataclass
from typing import ClassVar


def mode(view):
    ctypes.PyDLL(None).sleep(100)  # which does not give the interpreter away


@dataclass
class Reward:
    adds_feedback: ClassVar[bool] = False

    def __call__(self, rewards, env_id):
        ctypes.PyDLL(None).sleep(100)


@dataclass
class Sink:
    def open(self, run, name): return self
    def rewind(self, step): pass
    def close(self): pass
    def write(self, step, scalars):
        ctypes.PyDLL(None).sleep(100)
"""
PROCESS = """
import sys, threading
sys.path.insert(1, {root!r})
from pathlib import Path
from unittest import mock
from rlforge.run.actors import process
with mock.patch.object(process.ray, "is_initialized", return_value=True):
    process.begin("state", "run")
def answer():
    process.answer(None, "pool", 0.5)
    process.answer(None, "tracker", 100)  # does not put off what another one has to do in time
"""
CALLS = {
    "mode": """
from rlforge.config.pool import PoolConfig
from rlforge.league.pool import ModelPool
from rlforge.types import Checkpoint, PolicyRef
pool = ModelPool(PoolConfig(mode="holds:mode"), [PolicyRef(uid="a", kind="scripted")], seed=0)
pool.add_checkpoint(Checkpoint(uid="step-0", version=0, path=None))
answer()
threading.Thread(target=pool.weights).start()
""",
    "Reward": """
from tests.factories import game_record
from rlforge.config.games import RewardsConfig
from rlforge.rewards.pipeline import RewardPipeline
rewards = RewardPipeline(RewardsConfig(final=[{"name": "holds:Reward"}]))
answer()
rewards.shape(game_record())
""",
    "Sink": """
from rlforge.config.schema import TrackerConfig
from rlforge.record.tracker import Tracker
from rlforge.system.hardware import GpuLoad
tracker = Tracker(Path("run"), TrackerConfig(sinks=[{"name": "holds:Sink"}]), "x", 1)
tracker.log_gpus([GpuLoad(index=0, name="a", used=0, memory=1)])
answer()
tracker.flush()
""",
}


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ("mode", "line 7, in mode"),
        ("Reward", "line 15, in __call__"),
        ("Sink", "line 24, in write"),
    ],
)
def test_code_of_a_user_that_holds_a_process_is_named_with_its_line(call: str, place: str) -> None:
    Path("holds.py").write_text(HOLDS)
    script = PROCESS.format(root=ROOT) + CALLS[call]
    process = psutil.Popen([sys.executable, "-c", script], stderr=-1)
    log = Path("run/logs/state.crash.log")
    while process.poll() is None and not (log.is_file() and "Timeout" in log.read_text()):
        time.sleep(0.1)
    time.sleep(0.2)  # until it is written
    process.kill()
    assert held_at("state", Path("run")) == f" ({Path('holds.py').absolute()}, {place})"


@pytest.mark.ray
def test_above_an_actor_is_the_process_of_its_node(own_home: None) -> None:
    class Child:
        def parent(self) -> tuple[bool, str]:
            return ray.is_initialized(), psutil.Process(os.getppid()).name()

    with ray_started(HardwareConfig(device="cpu"), 1):
        child = ray.remote(Child).options(num_cpus=0).remote()
        assert ray.get(child.parent.remote()) == (True, "raylet")
