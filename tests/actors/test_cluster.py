"""Ray starts what the run graph says, and a Ray of our own leaves no process behind."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from rlforge.actors import cluster
from rlforge.actors.specs import RunGraph
from rlforge.config.compose import compose
from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.system.hardware import Machine, detect, resolve_hardware
from rlforge.training.graph import build_graph, to_json

ENDS_SOON = [sys.executable, "-c", "import time; time.sleep(0.3)"]


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_process_that_ray_started_outlives_the_block(
    own_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also children of an actor, which are still ending when Ray's node has been killed."""

    class Process:
        def pids(self) -> tuple[int, int]:
            return os.getpid(), psutil.Popen(["sleep", "60"]).pid  # which outlives its parent

    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    monkeypatch.setattr(cluster, "END_PATIENCE_S", 1.0)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # of another cluster
    bystander = psutil.Popen(["sleep", "60"])
    with cluster.ray_started(HardwareConfig(device="cpu"), graph.num_cpus):
        pids = ray.get(ray.remote(Process).options(num_cpus=0).remote().pids.remote())
        assert all(map(runs, pids))
    assert not any(map(runs, pids))
    assert bystander.is_running()
    bystander.kill()
    bystander.wait()


def test_a_ray_that_does_not_start_in_time_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because …")

    monkeypatch.setattr("ray.init", late)
    with (
        pytest.raises(RunError, match=r"^Ray did not start in time: this machine is busy"),
        cluster.ray_started(HardwareConfig(device="cpu"), 1),
    ):
        pass


def test_ray_leaves_the_process_group_which_timeout_and_batch_systems_signal(
    own_home: None,
) -> None:
    class Process:
        def groups(self) -> tuple[int, int]:
            child = psutil.Popen(["sleep", "60"])
            return os.getpgrp(), os.getpgid(child.pid)

    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    with cluster.ray_started(HardwareConfig(device="cpu"), graph.num_cpus):
        groups = {*ray.get(ray.remote(Process).options(num_cpus=0).remote().groups.remote())}
        groups |= {os.getpgid(child.pid) for child in psutil.Process().children(recursive=True)}
        own = psutil.Popen(["sleep", "60"], preexec_fn=os.getpid)
        assert os.getpgid(own.pid) == os.getpgrp()
        own.kill()
        own.wait()
    assert os.getpgrp() not in groups


def test_an_interrupt_while_ray_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself forgets the processes of a node that it was still starting."""
    started: list[psutil.Popen] = []

    def interrupted(**_: object) -> None:
        started.append(psutil.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    graph = build_graph(compose(["+experiment=tictactoe_mirror"]).config, detect())
    monkeypatch.setattr(cluster.ray, "init", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        cluster.ray_started(HardwareConfig(device="cpu"), graph.num_cpus),
    ):
        pass
    assert [process.wait() for process in started] == [-9]


async def test_ray_runs_exactly_the_actors_of_the_graph(
    own_home: None, small_model: Path, tmp_path: Path
) -> None:
    """With the names and resources that ``rlforge graph --format json`` prints."""
    config = compose(
        [
            "+experiment=tictactoe_mirror",
            "model=hf",
            f"model.name={small_model}",
            "engine.num_engines=2",
            "learner.num_learners=2",
        ]
    ).config
    graph = build_graph(config, Machine(cpus=2, gpus=0))
    hardware = resolve_hardware(config.hardware, Machine(cpus=2, gpus=0), 2, 2)
    printed = json.loads(to_json(graph))["nodes"]
    with cluster.ray_started(hardware, graph.num_cpus):
        actors = await cluster.start_actors(graph, config, hardware, tmp_path)
        listed = {name for node in printed for name in node["actor_names"]}
        assert set(ray.util.list_named_actors()) == set(actors.named) == listed
        assert listed == {
            *("tracker", "pool", "buffer", "learner", "learner-1"),
            *("engine-0", "engine-1", "collector-0"),
        }
        asked = sum(node["num_cpus"] * node["replicas"] for node in printed)
        assert ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0) == asked
        assert {path.stem for path in (tmp_path / "logs").glob("*.log")} >= listed
        assert len(actors.engines) == 2
        assert await actors.buffer.figures.remote() == {"buffer_size": 0}


async def test_a_graph_without_room_raises_instead_of_waiting_for_ever(
    own_home: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = compose(["+experiment=tictactoe_mirror", "engine.num_engines=2"]).config
    hardware = HardwareConfig(device="cpu", engine_gpus=1.0)
    whole = build_graph(config, Machine(cpus=2, gpus=0))
    engine = dataclasses.replace(whole.node("engine"), num_gpus=1.0)
    graph = RunGraph(nodes=(whole.node("tracker"), engine))
    monkeypatch.setattr(cluster, "PLACEMENT_PATIENCE_S", 0.5)
    with cluster.ray_started(hardware, graph.num_cpus):
        with pytest.raises(
            RunError, match=r"no room for 2 engines .* 1 GPUs each .*lower engine.num_engines"
        ):
            await cluster.start_actors(graph, config, hardware, tmp_path)
        assert ray.util.list_named_actors() == []


def test_processes_that_end_in_time_are_not_killed_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = time.monotonic()
    in_time = psutil.Popen(ENDS_SOON)
    cluster.end_processes([in_time])
    assert in_time.wait() == 0
    assert time.monotonic() - started < cluster.END_PATIENCE_S
    monkeypatch.setattr(cluster, "END_PATIENCE_S", 0.1)
    too_late = psutil.Popen(["sleep", "60"])
    cluster.end_processes([too_late])
    assert too_late.wait() == -9


def test_an_error_in_the_code_of_a_user_is_explained_with_its_place() -> None:
    trace = """Traceback (most recent call last):
  File "/site/rlforge/games/players.py", line 30, in act
    player.act(view)
  File "/home/me/mine.py", line 9, in act
    raise KeyError(view)
KeyError: 'unknown'"""
    error = ray.exceptions.RayTaskError("play", trace, KeyError("unknown"))
    assert cluster.reason(error) == "KeyError: 'unknown' (/home/me/mine.py, line 9)"
    assert (
        cluster.reason(error.as_instanceof_cause())
        == "KeyError: 'unknown' (/home/me/mine.py, line 9)"
    )
