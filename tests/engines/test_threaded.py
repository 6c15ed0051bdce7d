"""The watchdog of the worker thread, and streams of tokens."""

import asyncio
import logging
import threading
import time

import pytest

from rlforge.engines.threaded import ThreadedEngine
from rlforge.errors import EngineDeadError
from rlforge.types import SamplingParams

from .answers import BASE_POLICY

ONE = SamplingParams(max_tokens=1, seed=0)


async def test_a_step_that_never_ends_is_reported_with_its_stack(make_core, monkeypatch, caplog):
    core, never = make_core(), threading.Event()

    def kernel_that_hangs():
        never.wait()
        return []

    monkeypatch.setattr(core, "step", kernel_that_hangs)
    engine = ThreadedEngine(core, stuck_after_s=0.2)
    with (
        caplog.at_level(logging.ERROR, logger="rlforge"),
        pytest.raises(EngineDeadError, match=r"1 requests under way.*no token for 0\.2 s"),
    ):
        await engine.generate([1], ONE, BASE_POLICY)
    assert "kernel_that_hangs" in caplog.text
    with pytest.raises(EngineDeadError, match="stuck"):
        await engine.load(BASE_POLICY)
    await engine.close()  # does not wait for the step
    never.set()


async def test_steps_without_progress_count_as_stuck(make_core, monkeypatch):
    core = make_core()

    def spin():
        time.sleep(0.01)
        return []

    monkeypatch.setattr(core, "step", spin)
    engine = ThreadedEngine(core, stuck_after_s=0.2)
    with pytest.raises(EngineDeadError, match="stuck"):
        await engine.generate([1], ONE, BASE_POLICY)
    await engine.close()


async def test_slow_progress_and_idleness_do_not_count_as_stuck(make_core, monkeypatch):
    core = make_core()
    quick = core.step

    def slow():
        time.sleep(0.1)
        return quick()

    monkeypatch.setattr(core, "step", slow)
    engine = ThreadedEngine(core, stuck_after_s=0.4)
    for _ in range(2):
        # Each takes twice the time that would be too long without a token.
        completion = await engine.generate([1], SamplingParams(max_tokens=8, seed=0), BASE_POLICY)
        assert len(completion.token_ids) == 8
        await asyncio.sleep(0.8)
    await engine.close()


async def test_streamed_tokens_add_up_to_the_answer(make_core):
    engine = ThreadedEngine(make_core(), stuck_after_s=60)
    long = SamplingParams(max_tokens=30, seed=3)
    heard = {1: [], 2: []}
    streamed, silent = (
        await asyncio.gather(
            *(
                engine.generate([number], long, BASE_POLICY, heard[number].append)  # type: ignore[arg-type]
                for number in heard
            )
        ),
        await engine.generate([1], long, BASE_POLICY),
    )
    assert streamed[0].token_ids == silent.token_ids
    for number, completion in zip(heard, streamed, strict=True):
        pieces = heard[number]
        together = tuple(token for piece in pieces for token in piece)
        # Those of the last step come with the completion only.
        assert together == completion.token_ids[: len(together)]
        assert len(together) == 29
        assert len(pieces) > 1
    await engine.close()


async def test_a_cancelled_stream_gets_no_more_tokens(make_core):
    engine = ThreadedEngine(make_core(), stuck_after_s=60)
    begun, count = asyncio.Event(), 0

    def hear(tokens):
        nonlocal count
        count += 1
        begun.set()

    long = SamplingParams(max_tokens=100, seed=3)
    stream = asyncio.create_task(engine.generate([1], long, BASE_POLICY, hear))
    await begun.wait()
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream
    at_the_end = count
    await engine.generate([2], SamplingParams(max_tokens=20), BASE_POLICY)
    assert count == at_the_end
    assert engine.stats().running == 0
    await engine.close()
