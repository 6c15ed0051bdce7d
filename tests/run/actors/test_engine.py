"""An engine actor whose engine died ends its process; the client asks the next one again."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import rlforge.run.actors.cluster  # noqa: F401  # configures Ray before its first import
from rlforge.config.model import ModelConfig
from rlforge.config.schema import HardwareConfig, RunConfig
from rlforge.engines import transformers
from rlforge.engines.base import EngineStats
from rlforge.engines.batching import BatchGenerator
from rlforge.errors import EngineError
from rlforge.run.actors.engine import EngineActor, EngineReport
from rlforge.run.actors.engine_client import RemoteEngine
from rlforge.run.actors.folder import RunFolder
from rlforge.run.actors.process import turn_file
from rlforge.system.timeouts import Clock
from rlforge.types import PolicyRef, SamplingParams

BASE = PolicyRef(uid="step-0", kind="checkpoint")


@pytest.fixture(scope="module")
def own_ray(own_home: None) -> Iterator[None]:
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


class StuckOnce(EngineActor):
    """The real actor around the real engine, whose first process hangs in a step."""

    def __init__(self, *arguments: Any) -> None:
        transformers.STUCK_AFTER_S = 2.0
        super().__init__(*arguments)
        marker = arguments[3].path / "stuck-once"
        if marker.exists():
            return
        marker.touch()
        BatchGenerator.step = lambda generator: time.sleep(3600)  # type: ignore[method-assign]


def _actor(config: RunConfig, run_dir: Path, max_restarts: int) -> Any:
    hardware = HardwareConfig(device="cpu", threads=1)
    made: Any = ray.remote(StuckOnce)
    return made.options(max_restarts=max_restarts, max_concurrency=100).remote(
        config, hardware, "engine-0", RunFolder(run_dir=str(run_dir))
    )


def _config(small_model: Path) -> RunConfig:
    return RunConfig(model=ModelConfig(kind="hf", name=str(small_model)))


@pytest.mark.ray
@pytest.mark.usefixtures("own_ray")
async def test_a_stuck_engine_is_restarted_and_its_requests_are_asked_again(
    small_model: Path, tmp_path: Path
) -> None:
    actor = _actor(_config(small_model), tmp_path, max_restarts=1)
    client = RemoteEngine([actor], "client", timeout_s=250, retries=1)
    params = SamplingParams(max_tokens=3, seed=0)
    answers = await asyncio.gather(*(client.generate([i, 7], params, BASE) for i in range(4)))
    assert [answer.prompt_token_ids for answer in answers] == [(i, 7) for i in range(4)]
    log = (tmp_path / "logs" / "engine-0.log").read_text()
    assert log.count("started as process") == 2
    assert "this process ends: the engine is stuck" in log
    assert f"process {os.getpid()}" not in log
    ray.kill(actor)


@pytest.mark.slow
@pytest.mark.usefixtures("own_ray")
async def test_an_engine_restarted_in_the_learners_turn_loads_at_wake(
    small_model: Path, tmp_path: Path
) -> None:
    turn_file(tmp_path).touch()
    made: Any = ray.remote(EngineActor)
    hardware = HardwareConfig(device="cpu", threads=1, alternate=True)
    actor = made.options(max_concurrency=100).remote(
        _config(small_model), hardware, "engine-0", RunFolder(run_dir=str(tmp_path))
    )
    await actor.sleep.remote()
    clock = Clock()
    client = RemoteEngine([actor], "client", timeout_s=0.5, retries=0, time_limit=clock.timeout)
    params = SamplingParams(max_tokens=3, seed=0)
    clock.stop()
    answer = asyncio.create_task(client.generate([5, 7], params, BASE))
    await asyncio.sleep(1.0)
    log = tmp_path / "logs" / "engine-0.log"
    assert "the engine is loaded" not in log.read_text()
    await actor.wake.remote()
    assert len((await answer).token_ids) == 3  # after more than its 0.5 seconds
    assert "the engine is loaded" in log.read_text()

    await actor.sleep.remote()
    held = asyncio.create_task(client.generate([5, 7], params, BASE))
    await asyncio.sleep(0.2)
    assert not held.done()
    await actor.wake.remote()
    assert (await held).token_ids == (await answer).token_ids
    await actor.sleep.remote()
    clock.go_on()
    with pytest.raises(EngineError, match="request_timeout_s"):
        await client.generate([5, 7], params, BASE)
    ray.kill(actor)


@pytest.mark.ray
@pytest.mark.usefixtures("own_ray")
async def test_requests_fail_when_ray_does_not_restart_an_engine(
    small_model: Path, tmp_path: Path
) -> None:
    actor = _actor(_config(small_model), tmp_path, max_restarts=0)
    client = RemoteEngine([actor], "client", timeout_s=250, retries=1)
    with pytest.raises(EngineError, match=r"every engine died, and none is back"):
        await client.generate([1], SamplingParams(max_tokens=1), BASE)


def _report(process: str, tokens: int) -> EngineReport:
    stats = EngineStats(
        queued=3,
        running=2,
        requests=1,
        prompt_tokens=9 * tokens,
        cached_tokens=4 * tokens,
        generated_tokens=tokens,
        busy_s=0.5,
        sequence_s=tokens / 5,
        resident=(),
    )
    return EngineReport(process=process, stats=stats, spans=())


def test_throughput_counts_the_tokens_since_the_report_before() -> None:
    first, second = _report("a", 50), _report("a", 80)
    assert first.throughput(None, 10.0) == {
        "queued": 3,
        "running": 2,
        "tokens": 50,
        "tok_s": 5.0,
        "read_tok_s": 25.0,
        "cached_tok_s": 20.0,
        "sequences": 1.0,
    }
    later = second.throughput(first, 5.0)
    assert (later["tok_s"], later["read_tok_s"], later["cached_tok_s"]) == (6.0, 30.0, 24.0)
    assert later["sequences"] == pytest.approx(1.2)
    assert not first.restarted_since(None)
    assert not second.restarted_since(first)


def test_a_restarted_engine_counts_its_tokens_from_zero() -> None:
    before, after = _report("first", 1000), _report("second", 40)
    assert after.restarted_since(before)
    assert after.throughput(before, 10.0)["tok_s"] == 4.0
    again = _report("second", 40)
    assert not again.restarted_since(after)
    assert again.throughput(after, 10.0)["tok_s"] == 0.0
