"""A real Llama of 20,000 random weights, real PEFT adapters, and a tokenizer of whole words."""

import copy

import pytest
from tests import factories

from rlforge.types import PolicyRef

VOCABULARY = 300


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer():
    from rlforge.models.tiny.vocabulary import build_tokenizer

    return build_tokenizer([" yes", " no", "go"])


@pytest.fixture(scope="session")
def base():
    return factories.llama(
        vocab_size=VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )


@pytest.fixture
def make_adapter(base, tmp_path):
    """A saved adapter drawn from ``seed``: its policy, and the PEFT model to check against."""
    import torch
    from peft import LoraConfig, get_peft_model

    def make(seed, scale=0.1, model=None, **lora):
        targets = ["q_proj", "v_proj", "down_proj"]
        settings = {"r": 4, "lora_alpha": 8, "target_modules": targets} | lora
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            wrapped = get_peft_model(
                copy.deepcopy(base if model is None else model), LoraConfig(**settings)
            )
            for name, parameter in wrapped.named_parameters():
                if "lora_A" in name or "lora_B" in name:
                    parameter.data.normal_(0, scale)
                elif parameter.requires_grad:
                    parameter.data += scale * torch.randn_like(parameter)
        path = tmp_path / f"adapter-{seed}"
        wrapped.save_pretrained(path, save_embedding_layers=False)
        policy = PolicyRef(uid=f"v{seed}", kind="checkpoint", path_or_name=str(path), version=seed)
        return policy, wrapped.eval()

    return make


@pytest.fixture
def full_weights(base, tmp_path):
    """A saved model whose weights all differ from the base: its policy, and the model."""
    other = copy.deepcopy(base)
    for parameter in other.parameters():
        parameter.data.add_(0.01)
    other.save_pretrained(tmp_path / "full")
    return PolicyRef(uid="full", kind="checkpoint", path_or_name=str(tmp_path / "full")), other


@pytest.fixture
def make_core(base, tokenizer):
    from rlforge.engines.batching import BatchGenerator, BatchLimits
    from rlforge.engines.grammars import Grammars
    from rlforge.engines.policies import PolicyStore

    def make(model=None, max_loras=5, max_sequences=64, *, invariant=False, **limits):
        return BatchGenerator(
            PolicyStore(base if model is None else model, max_loras, invariant=invariant),
            BatchLimits(max_sequences=max_sequences, **{"max_model_len": 128, **limits}),
            decode=lambda ids: " ".join(map(str, ids)),
            vocab_size=VOCABULARY,
            pad_id=0,
            seed=0,
            grammars=Grammars(tokenizer, VOCABULARY),
        )

    return make
