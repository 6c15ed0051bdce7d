"""The engine in its thread: many callers, several event loops, cancelling, closing, failing."""

import asyncio

import pytest

from rlforge.config.engine import EngineConfig
from rlforge.engines.transformers import TransformersEngine
from rlforge.errors import EngineDeadError, EngineError
from rlforge.types import PolicyRef, SamplingParams

from .answers import BASE_POLICY

LONG = SamplingParams(max_tokens=100, seed=0)


@pytest.fixture
async def engine(base, tokenizer):
    engine = TransformersEngine(
        EngineConfig(max_parallel_seq=16, max_model_len=4096, max_loras=2), base, tokenizer
    )
    yield engine
    await engine.close()


async def test_many_callers_get_their_own_answers(engine, base, make_adapter):
    policies = [BASE_POLICY, make_adapter(1)[0], make_adapter(2)[0], make_adapter(3)[0]]

    async def ask(index):
        params = SamplingParams(max_tokens=1 + index % 4, seed=index)
        completion = await engine.generate([index, 7], params, policies[index % 4])
        assert completion.prompt_token_ids == (index, 7)
        assert len(completion.token_ids) == 1 + index % 4
        assert completion.policy_uid == policies[index % 4].uid
        assert completion.policy_version == policies[index % 4].version

    await asyncio.gather(*(ask(index) for index in range(100)))
    stats = engine.stats()
    assert (stats.requests, stats.prompt_tokens, stats.generated_tokens) == (100, 200, 250)
    assert len(stats.resident) == 2
    assert (stats.queued, stats.running, stats.busy_s > 0) == (0, 0, True)
    assert stats.busy_s < stats.sequence_s < 100 * stats.busy_s  # several at the same time
    assert not any(p.requires_grad for p in base.parameters())


async def test_text_leaves_special_tokens_out(engine, tokenizer):
    completions = await asyncio.gather(
        *(
            engine.generate([1], SamplingParams(max_tokens=n % 9 + 1, seed=n), BASE_POLICY)
            for n in range(40)
        )
    )
    special = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    for completion in completions:
        shown = [t for t in completion.token_ids if t not in special]
        assert completion.text == tokenizer.decode(shown)


async def test_errors_reach_the_caller_that_caused_them(engine, tmp_path):
    missing = PolicyRef(uid="m", kind="checkpoint", path_or_name=str(tmp_path / "nowhere"))
    results = await asyncio.gather(
        engine.generate([1], SamplingParams(max_tokens=1), BASE_POLICY),
        engine.generate([1] * 200, SamplingParams(max_tokens=1), BASE_POLICY),
        engine.generate([1], SamplingParams(max_tokens=1), missing),
        engine.load(missing),
        return_exceptions=True,
    )
    assert not isinstance(results[0], BaseException)
    # The model has 128 positions, fewer than engine.max_model_len.
    assert "200 tokens is 73 too long" in str(results[1])
    for result in results[2:]:
        assert isinstance(result, EngineError)
        assert str(tmp_path / "nowhere") in str(result)


def test_callers_in_several_event_loops_are_served(base, tokenizer):
    engine = TransformersEngine(EngineConfig(), base, tokenizer)

    async def ask(seed):
        params = SamplingParams(max_tokens=20, seed=seed)
        return len((await engine.generate([1], params, BASE_POLICY)).token_ids)

    async def in_threads():
        return await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, ask(seed)) for seed in range(4))
        )

    assert asyncio.run(in_threads()) == [20] * 4
    asyncio.run(engine.close())


async def test_closing_fails_running_and_later_requests(base, tokenizer):
    engine = TransformersEngine(EngineConfig(), base, tokenizer)
    pending = [asyncio.create_task(engine.generate([1], LONG, BASE_POLICY)) for _ in range(5)]
    await asyncio.sleep(0.005)
    await engine.close()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(r, EngineError) and "closed" in str(r) for r in results)
    with pytest.raises(EngineError, match="closed") as caught:
        await engine.generate([1], LONG, BASE_POLICY)
    assert not isinstance(caught.value, EngineDeadError)
    await engine.close()
