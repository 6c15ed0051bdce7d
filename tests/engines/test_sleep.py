"""An engine that sleeps finishes running requests, keeps new ones, and answers them unchanged."""

from __future__ import annotations

import asyncio
import copy
import threading
from typing import Any

import pytest
import torch

from rlforge.config.engine import EngineConfig
from rlforge.engines.threaded import ThreadedEngine
from rlforge.engines.transformers import TransformersEngine
from rlforge.errors import EngineDeadError, EngineError
from rlforge.types import Completion, SamplingParams

from .answers import BASE_POLICY


@pytest.fixture
async def engine(base, tokenizer):
    engine = TransformersEngine(EngineConfig(max_parallel_seq=8, max_loras=2), base, tokenizer)
    yield engine
    await engine.wake()
    await engine.close()


@pytest.fixture
def asking(make_adapter):
    """Request ``index``, of three policies in turns, that takes some 60 steps."""
    policies = [BASE_POLICY, make_adapter(1)[0], make_adapter(2)[0]]

    def ask(index):
        params = SamplingParams(max_tokens=60 + index, seed=index)
        return [index + 1, 7, 9], params, policies[index % 3]

    return ask


def start(engine: Any, asking: Any, *numbers: int) -> list[asyncio.Task[Completion]]:
    return [asyncio.create_task(engine.generate(*asking(number))) for number in numbers]


async def running(engine: Any, number: int) -> None:
    while engine.stats().running < number:  # noqa: ASYNC110  # the engine signals only answers
        await asyncio.sleep(0.001)


def done(tasks: list[asyncio.Task[Completion]]) -> int:
    return sum(task.done() for task in tasks)


async def test_sleep_changes_no_answer(engine, asking, elsewhere):
    steady = await asyncio.gather(*start(engine, asking, *range(12)))
    early = start(engine, asking, *range(6))
    await running(engine, 6)
    falling_asleep = asyncio.create_task(engine.sleep())
    await asyncio.sleep(0)
    late = start(engine, asking, *range(6, 12))
    await falling_asleep
    await asyncio.sleep(0)
    assert done(early) == 6
    assert done(late) == 0
    assert engine.stats().running == 0
    await engine.wake()
    for before, after in zip(steady, await asyncio.gather(*early, *late), strict=True):
        assert after.token_ids == before.token_ids
        assert after.logprobs == pytest.approx(before.logprobs, abs=1e-5)
        assert after.policy_uid == before.policy_uid


async def test_only_running_requests_are_finished_before_sleep(engine, asking):
    tasks = start(engine, asking, *range(0, 60, 3))  # of one policy, with 8 places
    await running(engine, 8)
    ended_before = done(tasks)
    await engine.sleep()
    await asyncio.sleep(0.05)
    assert 8 <= done(tasks) < 20
    assert done(tasks) <= ended_before + 16
    assert engine.stats().queued == 20 - done(tasks)
    await engine.wake()
    assert len(await asyncio.gather(*tasks)) == 20


async def test_a_load_during_sleep_is_done_after_wake(engine, make_adapter):
    await engine.load(make_adapter(1)[0])
    await engine.sleep()
    loading = asyncio.create_task(engine.load(make_adapter(2)[0]))
    await asyncio.sleep(0.05)
    assert engine.stats().resident == ("v1",)
    await engine.wake()
    await loading
    assert engine.stats().resident == ("v1", "v2")


async def test_requests_cancelled_during_sleep_are_never_computed(engine, asking):
    queued = start(engine, asking, *range(0, 60, 3))
    await running(engine, 8)
    await engine.sleep()
    answered = engine.stats().requests
    held = start(engine, asking, 1, 2)
    await asyncio.sleep(0)
    for task in (*queued, held[0]):
        task.cancel()
    await engine.wake()
    await held[1]
    assert engine.stats().requests == answered + 1
    assert engine.stats().queued == engine.stats().running == 0


async def test_sleep_and_wake_are_idempotent(engine, asking):
    await engine.wake()
    await engine.sleep()
    await engine.sleep()
    (task,) = start(engine, asking, 0)
    await asyncio.gather(engine.wake(), engine.wake())
    await task


async def test_wake_while_draining_ends_the_sleep(engine, asking):
    tasks = start(engine, asking, 0, 1, 2)
    await running(engine, 3)
    falling_asleep = asyncio.create_task(engine.sleep())
    await asyncio.sleep(0)
    await engine.wake()
    await falling_asleep
    tasks += start(engine, asking, 3)
    await asyncio.gather(*tasks)


async def test_closing_during_sleep_fails_the_waiting_requests(base, tokenizer, asking):
    engine = TransformersEngine(EngineConfig(), base, tokenizer)
    await engine.sleep()
    held = start(engine, asking, 0, 1)
    await asyncio.sleep(0)
    await engine.close()
    results = await asyncio.gather(*held, return_exceptions=True)
    assert all(isinstance(r, EngineError) and "closed" in str(r) for r in results)
    for call in (engine.sleep, engine.wake):
        with pytest.raises(EngineError, match="closed"):
            await call()


async def test_a_sleeping_engine_with_waiting_requests_does_not_count_as_stuck(make_core, asking):
    # Long enough for a token on a busy machine.
    engine = ThreadedEngine(make_core(), stuck_after_s=1.5)
    await engine.sleep()
    (held,) = start(engine, asking, 0)
    await asyncio.sleep(2.5)
    await engine.wake()
    assert len((await held).token_ids) == 60
    await engine.close()


@pytest.mark.parametrize("fails", ["sleep", "wake"])
async def test_an_engine_that_fails_in_sleep_or_wake_is_dead(make_core, asking, fails, monkeypatch):
    core = make_core()

    def broken():
        raise MemoryError("no room")

    monkeypatch.setattr(core, fails, broken)
    engine = ThreadedEngine(core, stuck_after_s=60)
    if fails == "wake":
        await engine.sleep()
    (held,) = start(engine, asking, 0)
    with pytest.raises(EngineDeadError, match="died: MemoryError: no room"):
        await getattr(engine, fails)()
    if fails == "wake":
        with pytest.raises(EngineDeadError, match="no room"):
            await held
    with pytest.raises(EngineDeadError, match="no room"):
        await engine.wake()
    held.cancel()
    await engine.close()


async def test_a_sleep_that_never_ends_counts_as_stuck(make_core, monkeypatch):
    core, never = make_core(), threading.Event()
    monkeypatch.setattr(core, "sleep", never.wait)
    engine = ThreadedEngine(core, stuck_after_s=0.2)
    with pytest.raises(EngineDeadError, match="stuck"):
        await engine.sleep()
    never.set()
    await engine.close()


@pytest.mark.gpu
async def test_a_sleeping_engine_frees_the_gpu(base, tokenizer, asking):
    before = torch.cuda.memory_allocated()
    engine = TransformersEngine(EngineConfig(), copy.deepcopy(base).to("cuda"), tokenizer)
    expected = await engine.generate(*asking(1))
    held = torch.cuda.memory_reserved()
    await engine.sleep()
    assert torch.cuda.memory_allocated() < before + 2**20
    assert torch.cuda.memory_reserved() < held
    (late,) = start(engine, asking, 1)
    await engine.wake()
    assert (await late).token_ids == expected.token_ids
    await engine.close()
