"""Actors that share a process behave as those that have one each."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from rlforge.config.schema import RunConfig
from rlforge.errors import RunError
from rlforge.preflight.plan import make_plan
from rlforge.run.actors.host import Host, Hosted
from rlforge.system.hardware import Machine


class Plain:
    """Has no coroutines: its calls follow each other in one thread."""

    def __init__(self, first: int) -> None:
        self.seen = [first]

    def add(self, number: int) -> int:
        self.seen.append(number)
        return threading.get_ident()

    def fail(self) -> None:
        raise RunError("the disk is full")


class Waits:
    """Has coroutines: a call may wait for another."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def wait(self) -> str:
        await self.open.wait()
        return "over"

    def release(self) -> None:
        self.open.set()


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("rlforge.run.actors.host.begin", lambda name, run_dir: None)
    made = Host("state", str(tmp_path))
    await made.make("plain", f"{__name__}:Plain", {"first": 0})
    await made.make("waits", f"{__name__}:Waits", {})
    return made


async def test_calls_of_a_plain_class_follow_each_other_in_a_thread(host: Host) -> None:
    threads = await asyncio.gather(*(host.call("plain", "add", n) for n in range(1, 50)))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    seen = await host.call("plain", "__ray_call__", lambda made: made.seen)
    assert seen == [*range(50)]


async def test_a_call_that_waits_holds_up_no_other(host: Host) -> None:
    waiting = asyncio.ensure_future(host.call("waits", "wait"))
    await asyncio.sleep(0)
    await host.call("plain", "add", 1)
    await host.call("waits", "release")
    assert await waiting == "over"


async def test_code_that_ends_its_process_fails_alone(host: Host) -> None:
    def ends(made: object) -> None:
        raise SystemExit(2)  # sys.exit is another function once wandb was imported

    with pytest.raises(RunError, match=r"plain fails: SystemExit: 2 .*test_host.py, line"):
        await host.call("plain", "__ray_call__", ends)
    assert await host.call("plain", "__ray_ready__")


async def test_an_error_is_that_of_the_method(host: Host) -> None:
    with pytest.raises(RunError, match="the disk is full"):
        await host.call("plain", "fail")


def test_a_handle_has_no_attributes_of_other_kinds() -> None:
    with pytest.raises(AttributeError):
        Hosted(None, "pool")._actor_id  # noqa: B018


@pytest.mark.parametrize(("cpus", "shared"), [(2, True), (4, True), (8, False)])
def test_the_plan_lets_state_share_a_process_where_cores_are_few(cpus: int, shared: bool) -> None:
    plan = make_plan(RunConfig(), Machine(cpus=cpus, gpus=0))
    hosts = {node.name: node.host for node in plan.nodes}
    state = "state" if shared else ""
    assert [hosts[name] for name in ("tracker", "pool", "buffer")] == [state] * 3
    assert not any(hosts[name] for name in ("learner", "engine", "collector"))
