"""Log-probabilities from hidden states, a few positions at a time.

With a vocabulary of 150,000 words the logits of one long answer outweigh the model that made them,
and autograd keeps several copies. Here only one chunk of them exists at any time, forward and
backward: the normaliser of every position is kept, the logits are computed again for the gradient,
and the gradient is written over them.

With logits z, temperature T, l = z / T, log p = l - log sum exp l and entropy H = -sum p log p:

    d log p_token / d l_v = [v = token] - p_v
    d H / d l_v           = -p_v (log p_v + H)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlforge.types import value


@value
class Head:
    """The output layer: logits = cap tanh((x W' + b) / cap), without the cap where it is None.

    weight [V, H], bias [V] or None. dtype: that the product is computed in. temperature divides
    the logits afterwards, in float32. chunk: positions whose logits exist at the same time.
    """

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    softcap: float | None
    temperature: float
    chunk: int

    def cast(self) -> Head:
        """The same with its weights in ``dtype``."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return dataclasses.replace(self, weight=self.weight.to(self.dtype), bias=bias)

    def tempered(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] over the temperature, in float32, of ``hidden`` [n, H]; weights cast."""
        hidden = hidden.to(self.dtype)
        logits = torch.nn.functional.linear(hidden, self.weight, self.bias).float()
        if self.softcap is not None:
            logits = logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)


def chunked_logprobs(
    hidden: Tensor, token_ids: Tensor, head: Head, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [N] of ``token_ids`` [N] after ``hidden`` [N, H]; entropies [N] if asked for.

    Gradients reach ``hidden`` and, where they are trained, weight and bias of ``head``.
    """
    logprobs, entropies = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, token_ids, head, entropy
    )
    return logprobs, entropies if entropy else None


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        head: Head,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = hidden.new_empty(len(token_ids), dtype=torch.float32)
        normalisers = torch.empty_like(logprobs)
        entropies = torch.empty_like(logprobs) if entropy else logprobs.new_empty(0)
        ctx.head, ctx.entropy = head, entropy
        head = head.cast()
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(token_ids, head.chunk):
                logits = head.tempered(hidden[part])
                normalisers[part] = logits.logsumexp(-1)
                chosen = logits.gather(-1, token_ids[part, None]).squeeze(-1)
                logprobs[part] = chosen - normalisers[part]
                if entropy:
                    logs = logits.sub_(normalisers[part, None])
                    entropies[part] = -logs.exp().mul_(logs).sum(-1)
        ctx.save_for_backward(hidden, token_ids, normalisers, entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden, token_ids, normalisers, entropies = ctx.saved_tensors
        head: Head = ctx.head.cast()
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(head.weight, dtype=torch.float32) if wants_weight else None
        grad_bias = normalisers.new_zeros(len(head.weight)) if wants_bias else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(token_ids, head.chunk):
                logits = head.tempered(hidden[part])
                slope = _cap_slope(logits, head)
                wanted = grad_logprobs[part, None]
                logs = logits.sub_(normalisers[part, None])
                if ctx.entropy:
                    factor = (logs + entropies[part, None]).mul_(grad_entropies[part, None])
                    gradient = logs.exp_().mul_(factor.add_(wanted)).neg_()
                else:
                    gradient = logs.exp_().mul_(-wanted)
                gradient.scatter_add_(-1, token_ids[part, None], wanted)
                gradient.div_(head.temperature)
                if slope is not None:
                    gradient.mul_(slope)
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
                rounded = gradient.to(head.dtype)
                if grad_hidden is not None:
                    grad_hidden[part] = (rounded @ head.weight).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight += rounded.T @ hidden[part].to(head.dtype)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(ctx.head.weight.dtype),
            None if grad_bias is None else grad_bias.to(ctx.head.bias.dtype),
            None,
            None,
            None,
        )


def _parts(token_ids: Tensor, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, len(token_ids), chunk)]


def _cap_slope(logits: Tensor, head: Head) -> Tensor | None:
    """d (cap tanh(x / cap)) / dx = 1 - tanh(x / cap)^2, from the capped and tempered logits."""
    if head.softcap is None:
        return None
    return (logits * (head.temperature / head.softcap)).square_().neg_().add_(1.0)
