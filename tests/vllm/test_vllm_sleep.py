"""vLLM takes turns: it drains, sleeps, and answers what waited with the right weights and no old
cache. On a CPU it keeps its memory; tests/engines/test_vllm_gpu.py is for what it gives back.
"""

from __future__ import annotations

import asyncio

import pytest

from rlforge.engines.registry import make_engine
from rlforge.errors import EngineError
from rlforge.types import SamplingParams

from .conftest import LONG_PROMPT, logprob_gap, record_cached_tokens, running

pytestmark = pytest.mark.vllm


async def test_sleep_between_requests_changes_no_answer(engine, base, base_policy, versions):
    asked = [(base_policy, base), *versions[:2]]

    def ask(index):
        params = SamplingParams(max_tokens=60, seed=index)
        return asyncio.create_task(engine.generate([index, 7], params, asked[index % 3][0]))

    steady = await asyncio.gather(*(ask(index) for index in range(12)))
    early = [ask(index) for index in range(6)]
    await running(engine, 6)
    falling_asleep = asyncio.create_task(engine.sleep())
    await asyncio.sleep(0)
    late = [ask(index) for index in range(6, 12)]
    await falling_asleep
    await asyncio.sleep(0.1)
    assert engine.llm.is_sleeping()
    assert all(task.done() for task in early)
    assert not any(task.done() for task in late)
    assert engine.stats().running == 0
    await engine.wake()
    assert not engine.llm.is_sleeping()
    for index, answer in enumerate(await asyncio.gather(*early, *late)):
        assert answer.token_ids == steady[index].token_ids
        assert logprob_gap(asked[index % 3][1], answer) < 1e-4


async def test_sleep_drops_cached_prompts(engine, versions, monkeypatch):
    cached = record_cached_tokens(engine, monkeypatch)
    for seed, rests in enumerate((False, False, True, False)):
        if rests:
            await engine.sleep()
            await engine.wake()
        completion = await engine.generate(
            LONG_PROMPT, SamplingParams(max_tokens=10, seed=seed), versions[0][0]
        )
        assert logprob_gap(versions[0][1], completion) < 1e-4
    assert cached[1] >= 256
    assert cached[2] == 0
    assert cached[3] >= 256


async def test_a_load_during_sleep_is_done_after_wake(engine, versions):
    await engine.sleep()
    policy, model = versions[2]
    loading = asyncio.create_task(engine.load(policy))
    asking = asyncio.create_task(
        engine.generate([4, 5], SamplingParams(max_tokens=20, seed=1), policy)
    )
    doomed = asyncio.create_task(engine.generate([4], SamplingParams(max_tokens=400), policy))
    await asyncio.sleep(0.1)
    assert not loading.done()
    doomed.cancel()
    before = engine.stats().requests
    await engine.wake()
    await loading
    assert logprob_gap(model, await asking) < 1e-4
    assert engine.stats().requests == before + 1
    assert engine.stats().running == engine.stats().queued == 0


async def test_closing_during_sleep_ends_cleanly(make_config, base_policy):
    engine = make_engine(make_config(), device="cpu", threads=1)
    await engine.sleep()
    held = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=5), base_policy))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await held
