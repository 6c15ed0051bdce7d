"""vLLM for real, on the CPU: one engine for all tests, a random Llama, adapters to tell apart."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from tests import factories

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import RunConfig
from rlforge.engines.registry import make_engine
from rlforge.engines.vllm_settings import check_installed
from rlforge.errors import ConfigError
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import Completion, PolicyRef

LORA = LoraConfig(rank=4, alpha=8)
VOCABULARY = 300
#: vLLM caches whole blocks of keys and values, of 128 tokens on a CPU.
LONG_PROMPT = [index % 50 for index in range(300)]


@pytest.fixture(scope="session", autouse=True)
def vllm_is_here():
    try:
        check_installed("cpu")
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def base():
    """Weights large enough that one adapter's answers are unlikely under another."""
    import torch

    torch.set_num_threads(1)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96}
    heads = {"num_key_value_heads": 1, "max_position_embeddings": 512, "initializer_range": 0.1}
    return factories.llama(**sizes, **heads)


@pytest.fixture(scope="session")
def model_folder(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "llama"
    base.save_pretrained(folder)
    build_tokenizer([" yes", " no", "go"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_config(model_folder):
    def make(**engine):
        sizes = {"max_parallel_seq": 16, "max_model_len": 512, "max_loras": 2} | engine
        return RunConfig(
            model=ModelConfig(kind="hf", name=str(model_folder), dtype="float32", lora=LORA),
            engine=EngineConfig(name="vllm", **sizes),
        )

    return make


@pytest.fixture(scope="module")
def engine(make_config, vllm_is_here):
    """Prefix caching is on, as by default. One per module: vLLM keeps its process groups in
    globals, which an engine of another module takes with it when it closes."""
    engine = make_engine(make_config(), device="cpu", threads=1)
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def make_adapter(base, tmp_path_factory):
    """Version ``seed`` as the learner writes it, and the model to check its answers with."""
    import torch

    from rlforge.learner.weights import attach_lora, save_adapter

    folder = tmp_path_factory.mktemp("adapters")

    def make(seed, lora=LORA):
        wrapped = attach_lora(copy.deepcopy(base), lora, seed)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.2, generator=generator)
        path = folder / f"step-{seed}-{lora.rank}"
        path.mkdir()
        save_adapter(wrapped, path)
        policy = PolicyRef(
            uid=f"step-{seed}", kind="checkpoint", path_or_name=str(path), version=seed
        )
        return policy, wrapped.get_base_model().eval()

    return make


@pytest.fixture(scope="session")
def versions(make_adapter):
    return tuple(make_adapter(seed) for seed in (1, 2, 3))


@pytest.fixture(scope="session")
def base_policy():
    return PolicyRef(uid="step-0", kind="checkpoint")


async def running(engine: Any, number: int) -> None:
    while engine.stats().running < number:  # noqa: ASYNC110  # the engine signals only answers
        await asyncio.sleep(0.001)


def logprob_gap(model: Any, completion: Completion, temperature: float = 1.0) -> float:
    """Mean difference to what the learner computes for the same tokens."""
    import torch

    from rlforge.learner.batching import collate, select_rows
    from rlforge.learner.scorer import Scorer, ScorerOptions

    sampled = ("prompt_token_ids", "token_ids", "logprobs")
    sample = factories.sample(**{name: getattr(completion, name) for name in sampled})
    micro = collate(select_rows([sample], None).rows, 0, torch.device("cpu"))
    with torch.no_grad():
        scored = Scorer(model, ScorerOptions(temperature=temperature)).score(micro).logprobs
    return float((scored - torch.tensor(completion.logprobs)).abs().mean())


def record_cached_tokens(engine: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each answer by the prompt tokens that it found in the cache."""
    cached: list[int] = []
    step = engine.llm.step

    def recording() -> Any:
        outputs = step()
        cached.extend(output.num_cached_tokens for output in outputs if output.finished)
        return outputs

    monkeypatch.setattr(engine.llm, "step", recording)
    return cached
