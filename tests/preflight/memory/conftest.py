"""Small real models, the learner's own passes over them, and what is alive while they run."""

import dataclasses
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rlforge.config.model import LoraConfig
from rlforge.config.training import LearnerConfig
from rlforge.learner.batching import MicroBatch, Row
from rlforge.learner.policy import Policy, PolicySpec
from rlforge.learner.ranks import Ranks
from rlforge.models.shape import KNOWN, shape_from_config
from rlforge.preflight.memory.learner import LearnerJob

ARCHITECTURES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}


class AliveBytes(TorchDispatchMode):
    """Bytes of all storages made inside the block and not yet freed, as torch dispatches them.

    What a kernel takes and gives back within one operation is not seen.
    """

    def __init__(self, ignored: list[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in ignored}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, storage._cdata)
        return result

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)


class Case:
    """A policy over a random model, one micro-batch of equal rows, and the planner's job for it.

    gathered: all weights are trained, and are bfloat16 in a pass as ranks gather them.
    """

    def __init__(
        self,
        architecture: str,
        *,
        bf16: bool,
        full: bool = False,
        gathered: bool = False,
        length: int = 512,
        rows: int = 2,
        rank: int = 8,
        hidden: int = 64,
        ffn: int = 160,
        heads: int = 4,
        head_dim: int = 16,
        vocab: int = 512,
        dropout: float = 0.0,
        entropy: bool = False,
        targets: tuple[str, ...] = (),
        tied: bool = True,
        **learner: Any,
    ) -> None:
        torch.manual_seed(0)
        config_class, model_class = ARCHITECTURES[architecture]
        config = config_class(
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=3,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            head_dim=head_dim,
            vocab_size=vocab,
            max_position_embeddings=4096,
            tie_word_embeddings=tied,
        )
        self.model = model_class(config).to(torch.bfloat16 if bf16 else torch.float32)
        lora = LoraConfig(rank=rank, alpha=rank, dropout=dropout)
        if targets:
            lora = dataclasses.replace(lora, target_modules=[*KNOWN[0].linears, *targets])
        self.policy = Policy(
            PolicySpec(model=self.model, lora=lora, temperature=1.0, pad_token_id=0, seed=0),
            LearnerConfig(
                train="full" if full else "lora", micro_batch_tokens=2**30, packing="off", **learner
            ),
            device=torch.device("cpu"),
            ranks=Ranks(),
        )
        self.policy.train()
        if gathered:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)
        half = length // 2

        def tokens(row: int, count: int) -> tuple[int, ...]:
            return tuple(1 + (row + i) % (vocab - 1) for i in range(count))

        # All differ: a pass computes equal rows once.
        (only,) = self.policy.passes(
            [
                Row(sample=row, prompt=tokens(row, half), answer=tokens(row, length - half + 1))
                for row in range(rows)
            ]
        )
        self.micro = only.micro
        shape = shape_from_config("random", config.to_dict())
        assert shape is not None
        self.job = LearnerJob(
            shape=shape,
            lora=None if full else lora,
            tokens=self.micro.input_ids.numel(),
            length=length,
            answers=len(self.micro.token_ids),
            bf16=bf16,
            ranks=2 if gathered else 1,
            layer_checkpoints=bool(learner.get("gradient_checkpointing")),
            module_checkpoints=bool(learner.get("activation_checkpointing")),
            fp32_head=bool(learner.get("fp32_head")),
            entropy=entropy,
        )

    def _weights(self) -> list[torch.Tensor]:
        """Weights and gradients, which exist before the pass, as in a second one."""
        trained = list(self.policy.parameters().values())
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        return [*self.model.parameters(), *(p.grad for p in trained if p.grad is not None)]

    def saved(self) -> int:
        """Bytes that a forward pass saves for the backward pass."""
        saved: dict[int, int] = {}
        weights = {tensor.untyped_storage().data_ptr() for tensor in self._weights()}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in weights:
                saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            kept = self.policy.score(self.micro, entropy=self.job.entropy)
        del kept
        return sum(saved.values())

    def measure(self) -> tuple[int, int]:
        """Bytes kept after the forward pass, and the most at any time of forward and backward."""
        alive = AliveBytes([*self._weights(), *_tensors(self.micro)])
        with alive:
            loss = self.policy.score(self.micro, entropy=self.job.entropy).logprobs.sum()
            kept = alive.now
            loss.backward()
        return kept, alive.peak


def _tensors(micro: MicroBatch) -> list[torch.Tensor]:
    names = ("input_ids", "mask", "token_ids", "positions", "slots", "flat", "samples")
    return [getattr(micro, name) for name in (*names, "last_prompt")]


@pytest.fixture
def case() -> type[Case]:
    torch.set_num_threads(1)
    return Case
