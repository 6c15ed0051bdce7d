"""``engine=auto``: an engine that computes what the learner does is taken, any other is not.

The embedded engine stands for vLLM, and wrappers around it for a vLLM that is wrong.
"""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.engines import registry
from rlforge.engines.registry import make_engine
from rlforge.errors import ConfigError
from rlforge.learner import engine_trial
from rlforge.types import PolicyRef, SamplingParams

BASE = engine_trial.BASE


@pytest.fixture
def config(small_model):
    return RunConfig(
        model=ModelConfig(kind="hf", name=str(small_model), lora=LoraConfig(rank=4)),
        engine=EngineConfig(max_parallel_seq=8, max_model_len=64, temperature=0.8),
    )


class Wrong:
    """An engine that is asked for other things than the caller asks, or gives back others."""

    def __init__(self, engine, *, policy=lambda asked: asked, params=lambda asked: asked, **given):
        self._engine, self._policy, self._params, self._given = engine, policy, params, given

    async def generate(self, prompt, params, policy, on_tokens=None):
        answer = await self._engine.generate(prompt, self._params(params), self._policy(policy))
        return dataclasses.replace(answer, **self._given)

    async def close(self):
        await self._engine.close()


def once_stale(asked, seen={}):  # noqa: B006  # the first adapter ever loaded stays
    return asked if asked.uid == BASE else seen.setdefault("", asked)


def without_adapters(asked):
    return dataclasses.replace(asked, path_or_name=None)


WRONG = {
    "ignores adapters": (
        {"policy": without_adapters},
        rf"adapter 1 were .* from the learner's, and .*; {BASE} has answered instead",
    ),
    "serves the first adapter for all": (
        {"policy": once_stale},
        r"adapter 2 were .*; adapter 1 has answered instead",
    ),
    "ignores the temperature": (
        {"params": lambda asked: dataclasses.replace(asked, temperature=1.0)},
        rf"log-probs of {BASE} were",
    ),
    "gives no log-probs": ({"logprobs": ()}, "drew 6 tokens with 0 log-probs"),
    "gives no numbers": ({"logprobs": (float("nan"),) * 6}, "were nan from the learner's"),
    "cannot be asked": ({"params": lambda asked: 1 / 0}, "division by zero"),
}


@pytest.fixture
def started(monkeypatch):
    """What ``tried`` starts as vLLM."""

    def start(make):
        monkeypatch.setattr(registry, "vllm", make)

    return start


async def test_an_engine_that_computes_what_the_learner_does_is_taken(config, started):
    started(registry.transformers)
    engine = engine_trial.tried(config, "cpu", 1, 1.0)
    assert engine.about.startswith("vLLM")
    assert "the learner's within" in engine.about
    answer = await engine.generate(
        [5, 6, 7], SamplingParams(max_tokens=2), PolicyRef(uid="b", kind="checkpoint")
    )
    assert len(answer.token_ids) == 2
    await engine.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", WRONG)
async def test_an_engine_that_is_wrong_is_not_taken_and_the_embedded_one_says_why(
    what, config, started
):
    wrong, reason = WRONG[what]
    once_stale.__defaults__[0].clear()
    started(lambda *given: Wrong(registry.transformers(*given), **wrong))
    engine = engine_trial.tried(config, "cpu", 1, 1.0)
    assert engine.about.startswith("transformers, not vLLM: ")
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(engine.about)
    await engine.close()


async def test_a_vllm_that_does_not_start_is_a_reason_and_no_error(config, started):
    def start(*given):
        raise ConfigError("vLLM does not start with model 'x': no room\nat line 3")

    started(start)
    engine = engine_trial.tried(config, "cpu", 1, 1.0)
    assert engine.about == ("transformers, not vLLM: vLLM does not start with model 'x': no room")
    await engine.close()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "lora", [{"rank": 8, "alpha": 1}, {"use_rslora": True}, {"last_layers": 1}]
)
async def test_adapters_of_every_scale_and_dtype_can_be_told_apart(config, started, dtype, lora):
    model = dataclasses.replace(config.model, dtype=dtype, lora=LoraConfig(**lora))
    started(registry.transformers)
    engine = engine_trial.tried(dataclasses.replace(config, model=model), "cpu", 1, 1.0)
    assert engine.about.startswith("vLLM"), engine.about
    await engine.close()


def test_auto_is_the_embedded_engine_on_a_cpu(config, started):
    started(lambda *given: pytest.fail("vLLM was started"))
    engine = make_engine(config, device="cpu", threads=1)
    assert engine.about == "transformers, not vLLM: it runs on the CPU"
    asyncio.run(engine.close())
