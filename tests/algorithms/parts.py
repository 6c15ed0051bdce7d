"""Small tensors and samples to learn from."""

from typing import Any

import torch
from tests import factories

from rlforge.algorithms.base import LossInputs
from rlforge.samples import Sample


def make_inputs(logprobs, **fields) -> LossInputs:
    """Loss inputs around ``logprobs`` (nested lists or a tensor), on-policy by default."""
    tensors = {
        name: field if isinstance(field, torch.Tensor) else torch.tensor(field)
        for name, field in fields.items()
        if field is not None and not name.startswith("total")
    }
    if not isinstance(logprobs, torch.Tensor):
        logprobs = torch.tensor(logprobs, requires_grad=True)
    mask = tensors.setdefault("mask", torch.ones_like(logprobs.detach()))
    tensors.setdefault("behaviour_logprobs", logprobs.detach())
    tensors.setdefault("proximal_logprobs", logprobs.detach())
    tensors.setdefault("advantages", torch.ones(len(logprobs)))
    return LossInputs(
        logprobs=logprobs,
        total_tokens=fields.get("total_tokens", int(mask.sum())),
        total_sequences=fields.get("total_sequences", len(logprobs)),
        **tensors,
    )


def make_step(
    origin: str = "g",
    reward: float = 0.0,
    turn_index: int = 0,
    last_turn: bool = True,
    **changes: Any,
) -> Sample:
    return factories.sample(
        origin=origin, reward=reward, turn_index=turn_index, last_turn=last_turn, **changes
    )
