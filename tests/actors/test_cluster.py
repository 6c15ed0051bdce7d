"""A Ray of our own leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time

import psutil
import pytest

from rlforge.actors import cluster as cast
from rlforge.config.compose import compose
from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.system.hardware import detect
from rlforge.train.graph import build_graph

ENDS_SOON = [sys.executable, "-c", "import time; time.sleep(0.3)"]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_that_ray_started_is_there_afterwards(
    own_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine Ray's node is killed before it has ended its workers; they take a while."""

    class Process:
        def pids(self) -> tuple[int, int]:
            return os.getpid(), psutil.Popen(["sleep", "60"]).pid  # which outlives its parent

    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    monkeypatch.setattr(cast, "END_PATIENCE_S", 1.0)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # of a cluster that is not meant
    bystander = psutil.Popen(["sleep", "60"])
    with cast.ray_started(HardwareConfig(device="cpu"), graph.num_cpus):
        pids = cast.ray.get(cast._actor(Process, "process", num_cpus=0).remote().pids.remote())
        assert all(map(runs, pids))
    assert not any(map(runs, pids))
    assert bystander.is_running()
    bystander.kill()
    bystander.wait()


def test_an_interrupted_beginning_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself forgets the processes of a node that it was still starting."""
    started: list[psutil.Popen] = []

    def interrupted(**_: object) -> None:
        started.append(psutil.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    monkeypatch.setattr(cast.ray, "init", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        cast.ray_started(HardwareConfig(device="cpu"), graph.num_cpus),
    ):
        pass
    assert [process.wait() for process in started] == [-9]


async def test_who_finds_no_room_is_told_so_and_does_not_wait_for_ever(
    own_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    with cast.ray_started(HardwareConfig(device="cpu"), graph.num_cpus):
        [place] = await cast._places([(1.0, 0.0)], "one engine", "engine.num_engines")
        assert place["scheduling_strategy"].placement_group_bundle_index == 0
        monkeypatch.setattr(cast, "PLACEMENT_PATIENCE_S", 0.5)
        with pytest.raises(RunError, match=r"no room for 2 engines .*lower engine.num_engines"):
            await cast._places([(1.0, 1.0)] * 2, "2 engines", "engine.num_engines")


def test_who_ends_in_time_is_not_killed_and_who_does_not_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = time.monotonic()
    in_time = psutil.Popen(ENDS_SOON)
    cast._ended([in_time])
    assert in_time.wait() == 0
    assert time.monotonic() - started < cast.END_PATIENCE_S
    monkeypatch.setattr(cast, "END_PATIENCE_S", 0.1)
    too_late = psutil.Popen(["sleep", "60"])
    cast._ended([too_late])
    assert too_late.wait() == -9
