"""The engine's memory by arithmetic, against what the transformers engine really holds."""

import copy
import dataclasses
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlforge.config.model import LoraConfig
from rlforge.engines.cache import new_cache
from rlforge.engines.policies import PolicyStore
from rlforge.engines.versions import PolicyKey
from rlforge.models.shape import KNOWN, shape_from_config
from rlforge.preflight.memory import engine as memory
from rlforge.preflight.memory.engine import EngineJob

LORA = LoraConfig(rank=4, alpha=4, target_modules=["q_proj", "up_proj"])


def make_job(**changes) -> EngineJob:
    settings = {"shape": KNOWN[0], "lora": LORA, "bf16": True, "versions": 3, "sequences": 8}
    return EngineJob(
        **{**settings, "length": 1024, "prompt_tokens": 4096, "paged": False, **changes}
    )


@pytest.fixture
def model():
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=128,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_token_bytes_are_those_of_a_real_cache(model, dtype):
    model = model.to(dtype)
    cache = new_cache()
    with torch.inference_mode():
        model(input_ids=torch.ones(2, 10, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    job = make_job(
        shape=shape_from_config("some", model.config.to_dict()), bf16=dtype == torch.bfloat16
    )
    assert memory.token_bytes(job) * 2 * 10 == held


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cache_that_grows_stays_within_its_room(model, dtype):
    model = model.to(dtype)
    cache, length = new_cache(), 300
    with torch.inference_mode():
        for width in [64, *[1] * (length - 64)]:
            ids = torch.ones(1, width, dtype=torch.long)
            model(input_ids=ids, past_key_values=cache, use_cache=True)
    held = sum(
        buffer.untyped_storage().nbytes() for layer in cache.layers for buffer in layer.buffers
    )
    shape = shape_from_config("some", model.config.to_dict())
    job = make_job(shape=shape, bf16=dtype == torch.bfloat16, length=length)
    assert memory.token_bytes(job) * length <= held <= memory.sequence_bytes(job)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_version_bytes_are_those_that_versions_in_one_batch_hold(model, dtype, tmp_path):
    base = Qwen3ForCausalLM(model.config).to(dtype)
    store, keys = PolicyStore(base, capacity=2), []
    for name in ("step-1", "step-2"):
        get_peft_model(
            copy.deepcopy(model),
            PeftLoraConfig(r=LORA.rank, target_modules=list(LORA.target_modules)),
        ).save_pretrained(tmp_path / name)
        keys.append(PolicyKey(name, str(tmp_path / name)))
    before = live_bytes()
    for key in keys:
        assert store.load(key, busy=())
    with torch.inference_mode(), store.computing(keys) as mixed:
        mixed(input_ids=torch.ones(2, 4, dtype=torch.long), use_cache=False)
    shape = shape_from_config("some", model.config.to_dict())
    job = make_job(shape=shape, bf16=dtype == torch.bfloat16, versions=2)

    assert live_bytes() - before == pytest.approx(memory.version_bytes(job), rel=0.01)


def live_bytes():
    """Of all tensors of this process."""
    gc.collect()
    # type() rather than isinstance(), which would wake lazy modules among the objects.
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def test_whole_models_are_versions_of_their_own_size():
    job = make_job(lora=None)
    assert memory.version_bytes(job) == 3 * memory.weight_bytes(job)


def test_a_paged_cache_has_no_spare_room():
    job = make_job(paged=True)
    assert memory.sequence_bytes(job) == 1024 * memory.token_bytes(job)
    assert memory.version_bytes(job) == 3 * 2 * job.shape.adapter_parameters(LORA)


@given(
    name=st.sampled_from(["versions", "length", "sequences", "prompt_tokens"]),
    more=st.integers(1, 1000),
    bf16=st.booleans(),
    paged=st.booleans(),
)
def test_more_of_anything_never_needs_less(name, more, bf16, paged):
    job = make_job(bf16=bf16, paged=paged)
    bigger = dataclasses.replace(job, **{name: getattr(job, name) + more})

    def total(of: EngineJob) -> int:
        cache = memory.sequence_bytes(of) * of.sequences
        return memory.version_bytes(of) + cache + memory.workspace_bytes(of)

    assert total(bigger) > total(job)
