"""The embedded engine: transformers models in one worker thread."""

from __future__ import annotations

from typing import Any

from torch import nn

from rlforge.config.engine import EngineConfig
from rlforge.engines.base import decoder
from rlforge.engines.batching import BatchGenerator, BatchLimits
from rlforge.engines.grammars import Grammars
from rlforge.engines.policies import PolicyStore
from rlforge.engines.threaded import STUCK_AFTER_S, ThreadedEngine
from rlforge.models.kind import check_trainable
from rlforge.models.load import positions
from rlforge.system.limits import PROMPT_TOKENS

# Steps for which requests wait on a GPU, to be read together. A prefill costs about one decode step
# for any number of prompts: one in n steps costs 1/n of the time. Requests wait n/2 steps, n/(2L)
# of an answer of L tokens. The sum is least at n = √(2L), 16 at L = 128.
_GPU_PATIENCE_STEPS = 16


class TransformersEngine(ThreadedEngine):
    """Continuous batching over a base model and its adapters (see ``rlforge.engines.base``).

    Args:
        model: The base model, on its device, in the dtype to run in.
        tokenizer: Turns answers into text.
        seed: Draws those of requests without one.
        invariant: Answers do not depend on other requests, not in a bit
            (``rlforge.engines.invariant``).

    Example: a random model of 64 tokens, whose answers are written as numbers:
        >>> import asyncio
        >>> from types import SimpleNamespace
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from rlforge.types import PolicyRef, SamplingParams
        >>> sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes))
        >>> tokenizer = SimpleNamespace(
        ...     pad_token_id=0, decode=lambda ids, **_: str(list(ids)), all_special_ids=[]
        ... )
        >>> async def three_tokens():
        ...     engine = TransformersEngine(EngineConfig(), model, tokenizer)
        ...     base = PolicyRef(uid="base", kind="checkpoint")
        ...     answer = await engine.generate([5, 6, 7], SamplingParams(max_tokens=3), base)
        ...     await engine.close()
        ...     return answer
        >>> answer = asyncio.run(three_tokens())
        >>> len(answer.token_ids), len(answer.logprobs), answer.finish_reason
        (3, 3, 'length')
    """

    def __init__(
        self,
        config: EngineConfig,
        model: nn.Module,
        tokenizer: Any,
        *,
        seed: int = 0,
        invariant: bool = False,
    ) -> None:
        causal: Any = model
        check_trainable(causal)
        on_cpu = next(model.parameters()).device.type == "cpu"
        vocab_size = causal.get_input_embeddings().weight.shape[0]
        core = BatchGenerator(
            PolicyStore(model.requires_grad_(False).eval(), config.max_loras, invariant=invariant),
            BatchLimits(
                max_sequences=config.max_parallel_seq,
                max_model_len=min(config.max_model_len, positions(causal.config)),
                # As many in a step as in a pass: on a CPU answers are then delivered while the next
                # prompts are read (256 games, 8 layers: 12% more answers than with 8192 a step).
                prompt_tokens=PROMPT_TOKENS["cpu" if on_cpu else "cuda"],
                patience_steps=0 if on_cpu else _GPU_PATIENCE_STEPS,
                kept_tokens=config.cache_tokens,
                logits_bytes=config.logits_mb << 20,
            ),
            decode=decoder(tokenizer),
            vocab_size=vocab_size,
            pad_id=tokenizer.pad_token_id or 0,
            seed=seed,
            grammars=Grammars(tokenizer, vocab_size),
        )
        super().__init__(core, stuck_after_s=STUCK_AFTER_S)
