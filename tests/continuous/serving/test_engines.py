"""The engine of a service is a process of its own, which Ray restarts when it dies."""

import asyncio
import os
import signal

import pytest

from rlforge.errors import EngineDeadError, EngineError, PolicyLoadError
from rlforge.preflight.plan import make_plan
from rlforge.run.actors.cluster import start_actors
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.run.actors.session import ray_started
from rlforge.system.hardware import Machine
from rlforge.types import PolicyRef, SamplingParams

from .conftest import until

BASE = PolicyRef(uid="deploy-0", kind="checkpoint")
LONG = SamplingParams(max_tokens=60, seed=1)


@pytest.fixture
async def remote(own_home, config, tmp_path, monkeypatch):
    """The engine of a service, whose one actor may be restarted once."""
    monkeypatch.setattr("rlforge.continuous.serving.kind.RESTARTS", 1)
    graph = make_plan(config, Machine(cpus=1, gpus=0))
    with ray_started(graph.hardware, graph.num_cpus):
        actors = await start_actors(graph, tmp_path)
        made = RemoteEngine(actors.engines, "service", timeout_s=120.0, poll_s=0.2)
        yield made
        await made.close()


def _pid(folder):
    lines = (folder / "logs" / "engine-0.log").read_text().splitlines()
    return int([line for line in lines if "started as process" in line][-1].split()[-1])


@pytest.mark.ray
async def test_a_killed_engine_is_restarted_and_its_streams_continue_without_repetition(
    remote, engine, make_adapter, tmp_path
):
    path = make_adapter(1)
    policy = PolicyRef(uid="deploy-1", kind="checkpoint", path_or_name=str(path), version=1)
    expected = await engine.generate([5, 6], LONG, policy)
    streamed_ids = []
    streamed = await remote.generate([5, 6], LONG, policy, streamed_ids.extend)
    assert streamed.token_ids == expected.token_ids
    # The last tokens come with the answer only.
    assert tuple(streamed_ids) == streamed.token_ids[: len(streamed_ids)]
    assert len(streamed_ids) > 10

    # The engine is killed in the middle of a stream.
    first, again = _pid(tmp_path), asyncio.Event()
    repeated = []

    def on_tokens(tokens):
        repeated.extend(tokens)
        again.set()

    stream = asyncio.create_task(remote.generate([5, 6], LONG, policy, on_tokens))
    await again.wait()
    os.kill(first, signal.SIGKILL)
    assert (await stream).token_ids == expected.token_ids
    assert tuple(repeated) == expected.token_ids[: len(repeated)]
    await until(lambda: remote.ready and "deploy-1" in remote.stats().resident)
    assert _pid(tmp_path) != first

    with pytest.raises(PolicyLoadError, match="nowhere is missing"):
        await remote.load(PolicyRef(uid="lost", kind="checkpoint", path_or_name="/nowhere"))
    with pytest.raises(EngineError, match="empty prompt"):
        await remote.generate([], LONG, BASE)

    # A cancelled call cancels its request in the engine.
    given_up = asyncio.create_task(remote.generate([5, 6], LONG, BASE))
    await asyncio.sleep(0)
    given_up.cancel()
    await until(lambda: remote.stats().running == remote.stats().queued == 0)

    # Its one restart is used up.
    os.kill(_pid(tmp_path), signal.SIGKILL)
    await asyncio.wait_for(remote.gone(), 60)
    assert not remote.ready
    with pytest.raises(EngineError, match="died"):
        await remote.generate([5, 6], LONG, BASE)
    with pytest.raises(EngineDeadError, match="died while loading"):
        await remote.load(policy)
