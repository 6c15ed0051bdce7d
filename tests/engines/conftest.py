"""A real Llama of 20,000 random weights, real PEFT adapters, and a tokenizer of whole words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.engines.batching import BatchGenerator, BatchLimits
from rlforge.engines.grammars import Grammars
from rlforge.engines.policies import PolicyStore
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import PolicyRef

VOCABULARY = 300


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer([" yes", " no", "go"])


@pytest.fixture(scope="session")
def base() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def make_adapter(base: Any, tmp_path: Path) -> Callable[..., tuple[PolicyRef, Any]]:
    """A saved adapter drawn from ``seed``: its policy, and the PEFT model to check against."""

    def make(
        seed: int, scale: float = 0.1, model: Any = None, **lora: Any
    ) -> tuple[PolicyRef, Any]:
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
def full_weights(base: Any, tmp_path: Path) -> tuple[PolicyRef, Any]:
    """A saved model whose weights all differ from the base: its policy, and the model."""
    other = copy.deepcopy(base)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    other.save_pretrained(tmp_path / "full")
    return PolicyRef(uid="full", kind="checkpoint", path_or_name=str(tmp_path / "full")), other


@pytest.fixture
def make_core(base: Any, tokenizer: Any) -> Callable[..., BatchGenerator]:
    def make(
        model: Any = None, max_loras: int = 5, max_sequences: int = 64, **limits: int
    ) -> BatchGenerator:
        return BatchGenerator(
            PolicyStore(base if model is None else model, max_loras),
            BatchLimits(max_sequences=max_sequences, **{"max_model_len": 128, **limits}),
            decode=lambda ids: " ".join(map(str, ids)),
            vocab_size=VOCABULARY,
            pad_id=0,
            seed=0,
            grammars=Grammars(tokenizer, VOCABULARY),
        )

    return make


@pytest.fixture
def base_policy() -> PolicyRef:
    return PolicyRef(uid="base", kind="checkpoint")
