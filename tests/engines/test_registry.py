"""A configuration names its engine; saved policies that the engine cannot play are refused."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig as Trained
from rlforge.config.model import ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.engines.policies import load_policy
from rlforge.engines.registry import check_playable, make_engine
from rlforge.errors import ConfigError, PolicyLoadError
from rlforge.league.names import parse_opponent
from rlforge.types import SamplingParams

from .answers import BASE_POLICY

# PEFT looks at the base for a changed vocabulary.
pytestmark = pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")


async def test_the_transformers_engine_answers_for_the_configured_model(base, tokenizer, tmp_path):
    base.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = RunConfig(seed=3, model=ModelConfig(kind="hf", name=str(tmp_path / "model")))
    engine = make_engine(config, device="cpu", threads=1)
    try:
        completion = await engine.generate([1, 2, 3], SamplingParams(max_tokens=2), BASE_POLICY)
    finally:
        await engine.close()
    assert len(completion.token_ids) == 2
    assert torch.get_num_threads() == 1


@pytest.mark.ray
def test_a_loaded_engine_leaves_no_threads_that_slow_its_own_down(base, tokenizer, tmp_path):
    """The thread that asks for it has no OpenMP helpers: it gets them with its first product."""
    base.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    script = f"""
import os, time, torch
from rlforge.config.schema import RunConfig
from rlforge.config.model import ModelConfig
from rlforge.engines.registry import make_engine

model = ModelConfig(kind="hf", name={str(tmp_path / "model")!r})
engine = make_engine(RunConfig(model=model), device="cpu", threads=3)
time.sleep(1)  # those of a thread that has ended go one by one
before = len(os.listdir("/proc/self/task"))
torch.ones(10**6).exp()
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["2"], done.stderr


@pytest.fixture
def config(base, tmp_path):
    base.save_pretrained(tmp_path / "base")
    lora = Trained(rank=5, target_modules=["q_proj"])
    return RunConfig(
        model=ModelConfig(kind="hf", name=str(tmp_path / "base"), lora=lora),
        engine=EngineConfig(name="transformers"),
    )


@pytest.fixture
def opponent(base, tmp_path):
    def make(**lora):
        settings = {"r": 4, "target_modules": ["q_proj"]} | lora
        wrapped = get_peft_model(copy.deepcopy(base), LoraConfig(**settings))
        wrapped.peft_config["default"].base_model_name_or_path = "base"
        wrapped.save_pretrained(tmp_path / "opponent")
        return parse_opponent(f"checkpoint:{tmp_path / 'opponent'}")

    return make


def _on_vllm(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, engine=EngineConfig(name="vllm"))


def test_the_transformers_engine_plays_full_weights_of_the_same_vocabulary(base, config, tmp_path):
    base.save_pretrained(tmp_path / "full")
    policy = parse_opponent(f"checkpoint:{tmp_path / 'full'}")
    check_playable([policy], config)
    with pytest.raises(ConfigError, match=r"full' cannot be played: .*use engine=transformers"):
        check_playable([policy], _on_vllm(config))


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"r": 8}, None),  # the smallest room for model.lora.rank=5
        ({"target_modules": ["v_proj", "down_proj"]}, None),
        ({"r": 9}, r"model\.lora\.rank=5 makes room for 8; raise model\.lora\.rank, or use"),
        ({"use_rslora": True}, None),
        ({"layers_to_transform": [1]}, None),
        (
            {"use_dora": True},
            r"of kind LORA, with use_dora=True; plain LORA is needed; use engine=transformers",
        ),
        ({"rank_pattern": {"q_proj": 2}}, r"with rank_pattern={'q_proj': 2}; plain LORA is needed"),
        ({"alpha_pattern": {"q_proj": 2}}, r"with alpha_pattern={'q_proj': 2}; plain LORA"),
    ],
)
def test_vllm_plays_plain_adapters_up_to_the_rank_that_it_makes_room_for(
    config, opponent, lora, message
):
    policies = [opponent(**lora)]
    if message is None:
        check_playable(policies, _on_vllm(config))
        return
    with pytest.raises(ConfigError, match=message) as caught:
        check_playable(policies, _on_vllm(config))
    assert str(caught.value).startswith(f"{policies[0].uid!r} cannot be played: ")


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_truncated_opponent_is_refused_by_the_check_and_by_the_engine(
    base, config, opponent, engine
):
    policy = opponent()
    file = Path(policy.path_or_name or "") / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    config = dataclasses.replace(config, engine=EngineConfig(name=engine))
    with pytest.raises(ConfigError, match=r"opponent' cannot be played: .*truncated.*; name a ver"):
        check_playable([policy], config)
    with pytest.raises(PolicyLoadError):
        load_policy(base, policy.path_or_name or "", policy.uid)


def test_a_directory_without_weights_is_refused(config, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match=r"run has neither adapter_config\.json nor config\.json"):
        check_playable([parse_opponent(f"checkpoint:{tmp_path / 'run'}")], config)


def test_only_saved_policies_are_checked():
    config = RunConfig(model=ModelConfig(kind="hf", name="no/where"))
    names = ("base", "random_legal", "openai:model")
    check_playable([parse_opponent(name) for name in names], config)
