"""vLLM on a GPU gives its memory back in sleep, and has weights and adapters again afterwards."""

import copy

import pytest
import torch
from tests import factories

from rlforge.config.engine import VllmConfig
from rlforge.config.model import LoraConfig
from rlforge.config.schema import RunConfig
from rlforge.engines.registry import make_engine
from rlforge.engines.vllm_settings import check_installed
from rlforge.errors import ConfigError
from rlforge.learner.weights import attach_lora, save_adapter
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import PolicyRef, SamplingParams

pytestmark = pytest.mark.gpu

LORA = LoraConfig(rank=8, alpha=8)


@pytest.fixture(autouse=True)
def vllm_is_here():
    try:
        check_installed("cuda")
    except ConfigError as error:
        pytest.skip(str(error))


async def test_a_sleeping_engine_frees_the_gpu(tmp_path):
    sizes = {"vocab_size": 304, "hidden_size": 256, "intermediate_size": 512}
    heads = {"num_attention_heads": 4, "max_position_embeddings": 512, "initializer_range": 0.1}
    model = factories.llama(**sizes, **heads, tie_word_embeddings=False)
    model.save_pretrained(tmp_path / "model")
    build_tokenizer([" yes", " no", "go"]).save_pretrained(tmp_path / "model")
    adapted = attach_lora(copy.deepcopy(model), LORA, seed=1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.2)
    (tmp_path / "step-1").mkdir()
    save_adapter(adapted, tmp_path / "step-1")
    vllm = VllmConfig(gpu_memory_utilization=0.5)
    config = factories.changed(
        RunConfig(),
        model={"kind": "hf", "name": str(tmp_path / "model"), "dtype": "bfloat16", "lora": LORA},
        engine={"name": "vllm", "max_parallel_seq": 8, "max_model_len": 512, "vllm": vllm},
        hardware={"alternate": True},
    )
    engine = make_engine(config, device="cuda", gpus=0.5)
    policies = [
        PolicyRef(uid="step-0", kind="checkpoint"),
        PolicyRef(uid="step-1", kind="checkpoint", path_or_name=str(tmp_path / "step-1")),
    ]
    params = SamplingParams(max_tokens=20, seed=1)
    before = [await engine.generate([1, 2, 3], params, policy) for policy in policies]
    assert before[0].token_ids != before[1].token_ids
    free, total = torch.cuda.mem_get_info()
    await engine.sleep()
    assert torch.cuda.mem_get_info()[0] - free > 0.4 * total
    await engine.wake()
    after = [await engine.generate([1, 2, 3], params, policy) for policy in policies]
    assert [answer.token_ids for answer in after] == [answer.token_ids for answer in before]
    await engine.close()
