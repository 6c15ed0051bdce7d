"""Models that see only a window of the past are answered for as they were trained."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlforge.config.schema import EngineConfig
from rlforge.engines.batching import BatchGenerator, BatchLimits
from rlforge.engines.policies import PolicyStore
from rlforge.engines.transformers import TransformersEngine
from rlforge.errors import ConfigError
from rlforge.types import PolicyRef, SamplingParams

SIZES: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}


def _models() -> list[Any]:
    torch.manual_seed(0)
    layers = ["sliding_attention", "full_attention"]
    return [
        MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
        Gemma3ForCausalLM(Gemma3TextConfig(**SIZES, sliding_window=4, layer_types=layers)),
        Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    ]


@pytest.mark.parametrize("model", _models(), ids=lambda model: type(model).__name__)
def test_logprobs_agree_with_a_plain_forward_pass(model: Any) -> None:
    model.eval()
    core = BatchGenerator(
        PolicyStore(model, 1),
        BatchLimits(max_sequences=8, max_model_len=64),
        decode=lambda ids: "",
        vocab_size=120,
        pad_id=0,
        seed=0,
    )
    rng = random.Random(0)
    policy = PolicyRef(uid="base", kind="checkpoint")
    completions = []
    for index in range(12):
        prompt = [rng.randrange(120) for _ in range(rng.randint(1, 20))]
        core.submit(prompt, SamplingParams(max_tokens=2 + index, seed=index), policy)
        completions += [answer.completion for answer in core.step()]
    while core.has_work:
        completions += [answer.completion for answer in core.step()]
    assert len(completions) == 12
    for completion in completions:
        assert completion is not None
        ids = torch.tensor([completion.prompt_token_ids + completion.token_ids])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float(), dim=-1)
        start = len(completion.prompt_token_ids) - 1
        expected = [float(logprobs[start + i, t]) for i, t in enumerate(completion.token_ids)]
        assert list(completion.logprobs) == pytest.approx(expected, abs=1e-4)


def test_models_without_keys_and_values_are_refused(tokenizer: Any) -> None:
    model = MambaForCausalLM(MambaConfig(vocab_size=120, hidden_size=16, num_hidden_layers=1))
    with pytest.raises(ConfigError, match=r"cannot run MambaForCausalLM.*recurrent"):
        TransformersEngine(EngineConfig(), model, tokenizer)
