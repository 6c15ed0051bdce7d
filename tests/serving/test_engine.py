"""The engine of a service is a process of its own: it is killed, comes back, and answers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import ray

import rlforge.actors.cluster  # noqa: F401  # configures Ray before its first import
from rlforge.config.schema import HardwareConfig
from rlforge.config.serving import ServingConfig
from rlforge.engines.base import Engine
from rlforge.errors import EngineDeadError, EngineError, PolicyLoadError
from rlforge.serving.engine import ActorEngine, start_engine
from rlforge.types import PolicyRef, SamplingParams

from .conftest import MakeAdapter, until

BASE = PolicyRef(uid="deploy-0", kind="checkpoint")
LONG = SamplingParams(max_tokens=60, seed=1)


@pytest.fixture(scope="module", autouse=True)
def own_ray(own_home: None) -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
async def actors(config: ServingConfig, tmp_path: Path) -> AsyncIterator[ActorEngine]:
    """One actor that may be restarted once."""
    hardware = HardwareConfig(device="cpu", threads=1)
    made = await start_engine(config, hardware, str(tmp_path), max_restarts=1)
    yield made
    await made.close()
    for actor in made._actors:
        ray.kill(actor)


def _pid(folder: Path) -> int:
    lines = (folder / "logs" / "engine-0.log").read_text().splitlines()
    return int([line for line in lines if "started as process" in line][-1].split()[-1])


async def test_a_killed_engine_is_restarted_and_streams_go_on_where_they_were(
    actors: ActorEngine, engine: Engine, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    path = make_adapter(1)
    policy = PolicyRef(uid="deploy-1", kind="checkpoint", path_or_name=str(path), version=1)
    expected = await engine.generate([5, 6], LONG, policy)
    heard: list[int] = []
    streamed = await actors.generate([5, 6], LONG, policy, heard.extend)
    assert streamed.token_ids == expected.token_ids
    # The last tokens come with the answer only.
    assert tuple(heard) == streamed.token_ids[: len(heard)]
    assert len(heard) > 10

    # Killed in the middle of a stream.
    first, again = _pid(tmp_path), asyncio.Event()
    retold: list[int] = []

    def hear(tokens: list[int]) -> None:
        retold.extend(tokens)
        again.set()

    stream = asyncio.create_task(actors.generate([5, 6], LONG, policy, hear))  # type: ignore[arg-type]
    await again.wait()
    os.kill(first, signal.SIGKILL)
    assert (await stream).token_ids == expected.token_ids
    assert tuple(retold) == expected.token_ids[: len(retold)]
    await until(lambda: actors.ready and "deploy-1" in actors.stats().resident)
    assert _pid(tmp_path) != first

    with pytest.raises(PolicyLoadError, match="nowhere is missing"):
        await actors.load(PolicyRef(uid="lost", kind="checkpoint", path_or_name="/nowhere"))
    with pytest.raises(EngineError, match="empty prompt"):
        await actors.generate([], LONG, BASE)

    # A caller that goes away takes its request along.
    given_up = asyncio.create_task(actors.generate([5, 6], LONG, BASE))
    await asyncio.sleep(0)
    given_up.cancel()
    await until(lambda: actors.stats().running == actors.stats().queued == 0)

    # Its one restart is used up.
    os.kill(_pid(tmp_path), signal.SIGKILL)
    await asyncio.wait_for(actors.gone(), 60)
    assert not actors.ready
    with pytest.raises(EngineError, match="died"):
        await actors.generate([5, 6], LONG, BASE)
    with pytest.raises(EngineDeadError, match="died while loading"):
        await actors.load(policy)
