"""Several models behind one engine: which answers, and that they rest and are counted together."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch
from tests.factories import causal_folder, llama
from transformers import AutoModelForCausalLM

from rlforge.config.engine import EngineConfig
from rlforge.config.model import ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.engines.models import ModelsEngine
from rlforge.engines.registry import make_engine
from rlforge.engines.transformers import TransformersEngine
from rlforge.errors import EngineError
from rlforge.types import PolicyRef, SamplingParams

from .answers import BASE_POLICY

OTHER = PolicyRef(uid="hf:other", kind="hf", path_or_name="other")
GREEDY = SamplingParams(max_tokens=6, temperature=0.0)
PROMPT = [5, 9, 3, 17]


@pytest.fixture
def folders(tmp_path):
    """Models of two architectures, which answer differently."""
    return {kind: causal_folder(tmp_path / kind, kind) for kind in ("qwen3", "gpt2")}


@pytest.fixture
async def engine(folders):
    trained, other = (
        RunConfig(model=ModelConfig(name=str(folder), dtype="float32"))
        for folder in folders.values()
    )
    made = make_engine(trained, device="cpu", threads=1, others={OTHER.uid: other})
    yield made
    await made.close()


def greedy(folder):
    """The likeliest tokens after the prompt, by transformers itself."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([PROMPT])
    drawn = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False, eos_token_id=-1
    )
    return tuple(drawn[0, len(PROMPT) :].tolist())


async def test_each_model_answers_for_its_own_policy_at_the_same_time(engine, folders):
    answers = await asyncio.gather(
        *(engine.generate(PROMPT, GREEDY, policy) for policy in (BASE_POLICY, OTHER) * 3)
    )
    assert [each.token_ids for each in answers] == [greedy(one) for one in folders.values()] * 3
    assert {each.policy_uid for each in answers} == {BASE_POLICY.uid, OTHER.uid}
    assert engine.stats().requests == 6
    assert engine.stats().prompt_tokens == 6 * len(PROMPT)
    assert len(engine.take_busy_spans()) >= 2


async def test_while_they_sleep_no_model_answers(engine):
    await engine.sleep()
    waiting = [
        asyncio.create_task(engine.generate(PROMPT, GREEDY, policy))
        for policy in (BASE_POLICY, OTHER)
    ]
    _, late = await asyncio.wait(waiting, timeout=0.2)
    assert len(late) == 2
    await engine.wake()
    assert [len(each.token_ids) for each in await asyncio.gather(*waiting)] == [6, 6]


async def test_models_that_it_does_not_hold_are_refused(engine):
    unknown = dataclasses.replace(OTHER, uid="hf:unknown")
    with pytest.raises(EngineError, match="policy 'hf:unknown' is of kind 'hf'"):
        await engine.generate(PROMPT, GREEDY, unknown)
    alone = TransformersEngine(EngineConfig(), llama(), _Words())
    without_own = ModelsEngine(None, {OTHER.uid: alone})
    try:
        await without_own.generate(PROMPT, GREEDY, OTHER)
        with pytest.raises(EngineError, match="this engine holds hf:other, and not base"):
            await without_own.generate(PROMPT, GREEDY, PolicyRef(uid="base", kind="checkpoint"))
    finally:
        await without_own.close()


class _Words:
    """A tokenizer that writes numbers."""

    pad_token_id = 0
    all_special_ids: tuple[int, ...] = ()

    def decode(self, ids, **_options):
        return str(list(ids))
