"""A configuration becomes the engine it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlforge.config.schema import EngineConfig, ModelConfig, RunConfig
from rlforge.engines.registry import make_engine
from rlforge.errors import ConfigError
from rlforge.types import PolicyRef, SamplingParams


async def test_the_transformers_engine_answers_for_the_configured_model(
    base: Any, tokenizer: Any, tmp_path: Path, base_policy: PolicyRef
) -> None:
    base.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = RunConfig(seed=3, model=ModelConfig(kind="hf", name=str(tmp_path / "model")))
    engine = make_engine(config, device="cpu", threads=1)
    try:
        completion = await engine.generate([1, 2, 3], SamplingParams(max_tokens=2), base_policy)
    finally:
        await engine.close()
    assert len(completion.token_ids) == 2
    assert torch.get_num_threads() == 1


def test_an_unknown_engine_is_named_with_its_neighbours() -> None:
    config = RunConfig(engine=EngineConfig(name="transformer"))
    with pytest.raises(ConfigError, match="did you mean transformers"):
        make_engine(config)
