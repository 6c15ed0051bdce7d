"""A Ray of our own leaves no process behind, and gets no signals that are for this process."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray

from rlforge.config.compose import compose
from rlforge.config.schema import HardwareConfig
from rlforge.errors import RunError
from rlforge.preflight.plan import make_plan
from rlforge.run.actors import session
from rlforge.system.folders import ray_base
from rlforge.system.hardware import detect


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1500):
        if condition():
            return
        await asyncio.sleep(0.02)
    pytest.fail("not within 30 s")


class Process:
    """An actor with a child that outlives it."""

    def pids(self) -> tuple[int, int]:
        return os.getpid(), psutil.Popen(["sleep", "60"]).pid


@pytest.fixture(scope="module")
def lived(own_home: None) -> Iterator[SimpleNamespace]:
    """Observe one Ray: the folders of sessions before and during it, and its processes.

    It is started where another cluster has an address, and has ended.
    """
    no_process = 2**22 + 1  # above the largest identifier of a process
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as short:
        patch.setattr(session, "END_PATIENCE_S", 1.0)
        patch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
        patch.setenv("RAY_TMPDIR", short)  # short: names of sockets are limited

        def folder(name: str, *marks: str) -> str:
            path = Path(short, "ray", f"session_{name}")
            path.mkdir(parents=True)
            for mark in marks:
                (path / mark).touch()
            return path.name

        seen = SimpleNamespace(
            ended=[folder(f"2026-01-0{day}", f"rlforge.{no_process}") for day in range(1, 8)],
            kept={folder("2025-01-01", f"rlforge.{os.getppid()}"), folder("2024-01-01")},
        )
        graph = make_plan(compose(["+experiment=tictactoe_mirror"]).config, detect())
        this, before = psutil.Process(), set(psutil.Process().children(recursive=True))
        with session.ray_started(HardwareConfig(device="cpu"), graph.num_cpus):
            actor = ray.remote(Process).options(num_cpus=0).remote()  # ends with its last handle
            seen.pids = ray.get(actor.pids.remote())
            seen.ran = list(map(runs, seen.pids))
            rays = [child.pid for child in set(this.children(recursive=True)) - before]
            seen.groups = {os.getpgid(pid) for pid in [*seen.pids, *rays]}
            folders = Path(short, "ray").iterdir()
            seen.folders = {path.name for path in folders if not path.is_symlink()}
            own = psutil.Popen(["sleep", "60"], preexec_fn=os.getpid)
            seen.own_group = os.getpgid(own.pid)
        seen.run_on = list(map(runs, seen.pids))
        seen.bystander_runs = own.is_running()
        own.kill()
        own.wait()
        yield seen


@pytest.mark.ray
def test_no_process_that_ray_started_outlives_the_block(lived: SimpleNamespace) -> None:
    """Also children of an actor, which are still ending when Ray's node has been killed."""
    assert lived.ran == [True, True]
    assert lived.run_on == [False, False]
    assert lived.bystander_runs


@pytest.mark.ray
def test_of_runs_that_have_ended_the_newest_session_folders_stay(lived: SimpleNamespace) -> None:
    assert lived.kept < lived.folders
    assert lived.folders & set(lived.ended) == set(lived.ended[-session.KEPT_FOLDERS :])


@pytest.mark.ray
def test_ray_leaves_the_process_group_which_timeout_and_batch_systems_signal(
    lived: SimpleNamespace,
) -> None:
    assert lived.own_group == os.getpgrp()
    assert os.getpgrp() not in lived.groups


@pytest.mark.ray
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
async def test_it_is_known_once_a_process_of_ray_has_ended(own_home: None, name: str) -> None:
    with session.ray_started(HardwareConfig(device="cpu"), 1) as processes:
        assert processes.ended() is None
        assert await processes.during(asyncio.sleep(0, "done")) == "done"
        (killed,) = [child for child in psutil.Process().children() if child.name() == name]
        killed.kill()
        said = f"^Ray's process {name} has ended: it was killed"
        with pytest.raises(RunError, match=said):
            await asyncio.wait_for(processes.during(asyncio.sleep(60)), timeout=30)
        await asyncio.wait_for(processes.gone(), timeout=1)
        assert str(processes.ended()).startswith(f"Ray's process {name} has ended: it was killed")


LATE = "The current node timed out during startup. This could happen because …"


@pytest.mark.parametrize(
    ("load", "said"), [(8.4, r" on this busy machine \(load 8, cores 2\)"), (1.5, "")]
)
def test_a_ray_that_is_never_in_time_is_started_three_times_and_leaves_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, said: str
) -> None:
    started: list[psutil.Popen] = []

    def late(**_: object) -> None:
        assert not any(runs(each.pid) for each in started), "the node before takes its time"
        started.append(psutil.Popen(["sleep", "60"]))
        raise Exception(LATE)

    monkeypatch.setattr("ray.init", late)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    with (
        pytest.raises(RunError, match=rf"^Ray did not start in time, 3 times{said}; "),
        session.ray_started(HardwareConfig(device="cpu"), 1),
    ):
        pass
    assert [process.wait() for process in started] == [-9, -9, -9]
    again = f"Ray is late{said}: it is started again".replace("\\", "")
    assert capsys.readouterr().err.splitlines() == [again, again]


def test_a_late_ray_names_its_own_folder_where_that_of_the_environment_cannot_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(**_: object) -> None:
        raise Exception(LATE)

    monkeypatch.setattr("ray.init", late)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/proc")
    folder = re.escape(str(ray_base()[0] / "ray"))
    with (
        pytest.raises(RunError, match=f"its logs are below {folder}$"),
        session.ray_started(HardwareConfig(device="cpu"), 1),
    ):
        pass
    assert "proc" not in folder


@pytest.mark.ray
def test_a_ray_that_was_late_once_serves_the_run(
    own_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, tries = ray.init, list[str]()

    def late_once(**settings: object) -> object:
        context = begin(**settings)
        tries.append("start")
        if len(tries) == 1:
            # As where the node is up a moment after Ray has given it up.
            raise Exception(LATE)
        return context

    monkeypatch.setattr("ray.init", late_once)
    with session.ray_started(HardwareConfig(device="cpu"), 1) as processes:
        assert processes.ended() is None
        assert ray.get(ray.put(1)) == 1
    assert len(tries) == 2


def test_an_interrupt_while_ray_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself forgets the processes of a node that it was still starting."""
    started: list[psutil.Popen] = []

    def interrupted(**_: object) -> None:
        started.append(psutil.Popen(["sleep", "60"]))
        raise KeyboardInterrupt

    graph = make_plan(compose(["+experiment=tictactoe_mirror"]).config, detect())
    monkeypatch.setattr(session.ray, "init", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        session.ray_started(HardwareConfig(device="cpu"), graph.num_cpus),
    ):
        pass
    assert [process.wait() for process in started] == [-9]


def test_processes_that_end_in_time_are_not_killed_and_others_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = time.monotonic()
    in_time = psutil.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    session.end_processes([in_time])
    assert in_time.wait() == 0
    assert time.monotonic() - started < session.END_PATIENCE_S
    monkeypatch.setattr(session, "END_PATIENCE_S", 0.1)
    too_late = psutil.Popen(["sleep", "60"])
    session.end_processes([too_late])
    assert too_late.wait() == -9


async def test_a_process_that_has_ended_keeps_the_memory_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WATCH_EVERY_S", 0.02)
    node = tmp_path / "raylet"
    node.symlink_to(sys.executable)
    # It does not wait for its child, so what is left of that has no memory.
    parent = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    with psutil.Popen([node, "-c", parent]) as raylet:
        processes = session.RayProcesses([raylet])
        watching = asyncio.create_task(processes.gone())
        await until(lambda: any(processes.memory.values()))
        (child,) = raylet.children()
        child.kill()
        await until(lambda: not runs(child.pid))
        await asyncio.sleep(0.1)
        assert processes.memory[child.pid] > 0
        raylet.kill()
        await asyncio.wait_for(watching, 10)
