"""What every engine of ours holds a request to, and how it turns answers into text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from rlforge.errors import EngineError
from rlforge.types import Completion, PolicyRef, SamplingParams, value


@value
class Answer:
    """What became of request ``id``: a completion, or the error that it ended with.

    Both are None for a policy that was asked for with ``load`` and is now resident.
    """

    id: int
    completion: Completion | None = None
    error: EngineError | None = None


def check_request(
    prompt: Sequence[int],
    params: SamplingParams,
    policy: PolicyRef,
    *,
    max_model_len: int,
    vocab_size: int,
) -> int:
    """Tokens that the answer may have; raises EngineError for what cannot be answered.

    max_model_len: tokens of prompt and answer. vocab_size: ids at or above it are refused.
    """
    if policy.kind != "checkpoint":
        raise EngineError(
            f"policy {policy.uid!r} is of kind {policy.kind!r}; this engine answers for "
            "checkpoints of its own model"
        )
    if not prompt:
        raise EngineError(f"empty prompt for policy {policy.uid!r}")
    if len(prompt) >= max_model_len:
        raise EngineError(
            f"prompt of {len(prompt)} tokens is {len(prompt) - max_model_len + 1} too long: "
            f"engine.max_model_len {max_model_len} holds prompt and answer; raise it or shorten "
            "the observation"
        )
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise EngineError(
            f"prompt holds token {max(prompt) if min(prompt) >= 0 else min(prompt)}; the model "
            f"knows 0 to {vocab_size - 1}: was it encoded with another tokenizer?"
        )
    if params.max_tokens < 1:
        raise EngineError(f"max_tokens is {params.max_tokens}; at least 1 is needed")
    if params.temperature < 0:
        raise EngineError(f"temperature is {params.temperature}; it must be 0 or more")
    if not 0 < params.top_p <= 1:
        raise EngineError(f"top_p is {params.top_p}; it must be above 0 and at most 1")
    return min(params.max_tokens, max_model_len - len(prompt))


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text without special tokens. Short answers repeat, so theirs are remembered."""

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    short = lru_cache(maxsize=4096)(decode)
    return lambda ids: short(tuple(ids)) if len(ids) <= 3 else decode(ids)
