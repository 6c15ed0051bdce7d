"""Log-probabilities from hidden states, one chunk of positions at a time.

With 150,000 tokens in the vocabulary, the logits of one long answer take more memory than the
model, and autograd keeps several copies. Here one chunk of logits exists at any time: normalisers
are kept, logits computed again for the gradient, which overwrites them. A head that is not a plain
linear layer is called chunk by chunk.

With logits z, temperature T, l = z / T, log p = l - log sum exp l and entropy H = -sum p log p:

    d log p_token / d l_v = [v = token] - p_v
    d H / d l_v           = -p_v (log p_v + H)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rlforge.models.products import product
from rlforge.types import value


@value
class Reading:
    """From outputs y of a head to logits: cap tanh(scale y / cap), or scale y, over temperature.

    All of it in float32.

    Example:
        >>> Reading(scale=2.0, temperature=4.0).logits(torch.tensor([1.0, 6.0]))
        tensor([0.5000, 3.0000])
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    def logits(self, outputs: Tensor) -> Tensor:
        """Logits divided by the temperature; float32 ``outputs`` are overwritten."""
        logits = outputs.float()
        if self.softcap is not None:
            logits = logits.mul_(self.scale / self.softcap).tanh_().mul_(self.softcap)
        elif self.scale != 1.0:
            logits = logits.mul_(self.scale)
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def cap_slope(self, logits: Tensor) -> Tensor | None:
        """d (cap tanh(x / cap)) / dx = 1 - tanh(x / cap)^2 at ``logits``; None without a cap."""
        if self.softcap is None:
            return None
        return (logits * (self.temperature / self.softcap)).square_().neg_().add_(1.0)


@value
class Head:
    """Plain output layer: outputs x W' + b, which ``reading`` turns into logits.

    Weight [V, H], bias [V] or None. ``dtype`` is the product's; ``chunk`` positions have logits at
    one time.
    """

    weight: Tensor
    bias: Tensor | None
    dtype: torch.dtype
    reading: Reading
    chunk: int

    def cast(self) -> Head:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return dataclasses.replace(self, weight=self.weight.to(self.dtype), bias=bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [n, V] / temperature of ``hidden`` [n, H]; the weights must be cast."""
        hidden = hidden.to(self.dtype)
        return self.reading.logits(product(hidden, self.weight, self.bias))


def chunked_logprobs(
    hidden: Tensor, token_ids: Tensor, head: Head, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of ``token_ids`` given ``hidden`` [N, H]; entropies [N] if asked for.

    token_ids: [N], or [N, C] for C tokens at each position; log-probs have the same shape.
    Gradients flow to ``hidden`` and to trained weights of ``head``.

    Example:
        >>> uniform = Head(
        ...     weight=torch.zeros(4, 2), bias=None, dtype=torch.float32, reading=Reading(), chunk=8
        ... )
        >>> logprobs, entropies = chunked_logprobs(
        ...     torch.ones(1, 2), torch.tensor([3]), uniform, entropy=True
        ... )
        >>> logprobs, entropies  # -log 4 and log 4
        (tensor([-1.3863]), tensor([1.3863]))
    """
    logprobs, entropies = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, head.weight, head.bias, token_ids, head, entropy
    )
    return logprobs, entropies if entropy else None


def recomputed_logprobs(
    hidden: Tensor,
    token_ids: Tensor,
    head: Callable[[Tensor], Tensor],
    reading: Reading,
    chunk: int,
    *,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """``chunked_logprobs`` for any ``head`` from [n, H] to [n, V], run again for the gradient.

    Gradients flow to ``hidden`` and the parameters of ``head``, ``chunk`` positions at a time.
    """

    def score(part: Tensor, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        return logprobs_of(head(part), ids, reading, entropy=entropy)

    logprobs, entropies = [], []
    chunks = zip(torch.split(hidden, chunk), torch.split(token_ids, chunk), strict=True)
    for part, ids in chunks:
        if torch.is_grad_enabled():
            scores = checkpoint(score, part, ids, use_reentrant=False)
        else:
            scores = score(part, ids)
        logprobs.append(scores[0])
        entropies.append(scores[1])
    return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def logprobs_of(
    outputs: Tensor, token_ids: Tensor, reading: Reading, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """``chunked_logprobs`` from all ``outputs`` [N, V] of a head at once."""
    logprobs, entropies = _Logprobs.apply(  # type: ignore[no-untyped-call]
        outputs, token_ids, reading, entropy
    )
    return logprobs, entropies if entropy else None


def _by_position(token_ids: Tensor) -> Tensor:
    """Tokens at each position [N, C]."""
    return token_ids if token_ids.dim() > 1 else token_ids[:, None]


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
        logprobs = hidden.new_empty(token_ids.shape, dtype=torch.float32)
        token_ids = _by_position(token_ids)
        filled = logprobs.view(token_ids.shape)
        normalisers = logprobs.new_empty(len(token_ids))
        entropies = torch.empty_like(normalisers) if entropy else logprobs.new_empty(0)
        ctx.head, ctx.entropy = head, entropy
        # ``ctx`` keeps the uncast head: cast weights would stay in memory until the backward pass.
        head = head.cast()
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(token_ids, head.chunk):
                logits = head.logits(hidden[part])
                normalisers[part] = logits.logsumexp(-1)
                chosen = logits.gather(-1, token_ids[part])
                filled[part] = chosen - normalisers[part, None]
                if entropy:
                    entropies[part] = _entropy(logits.sub_(normalisers[part, None]))
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
        # Chunks add up in float32: in bfloat16 every addition would round.
        grad_weight = torch.zeros_like(head.weight, dtype=torch.float32) if wants_weight else None
        grad_bias = normalisers.new_zeros(len(head.weight)) if wants_bias else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _parts(token_ids, head.chunk):
                logits = head.logits(hidden[part])
                slope = head.reading.cap_slope(logits)
                gradient = _gradient(
                    logits.sub_(normalisers[part, None]),
                    token_ids[part],
                    head.reading,
                    slope,
                    grad_logprobs.view(token_ids.shape)[part],
                    (entropies[part], grad_entropies[part]) if ctx.entropy else None,
                )
                if grad_bias is not None:
                    grad_bias += gradient.sum(0)
                rounded = gradient.to(head.dtype)
                if grad_hidden is not None:
                    grad_hidden[part] = product(rounded, head.weight.T).to(hidden.dtype)
                if grad_weight is not None:
                    grad_weight += product(rounded.T, hidden[part].to(head.dtype).T)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(ctx.head.weight.dtype),
            None if grad_bias is None else grad_bias.to(ctx.head.bias.dtype),
            None,
            None,
            None,
        )


class _Logprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, token_ids: Tensor, reading: Reading, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        # ``reading`` overwrites its input, which the head may need in the backward pass: a copy.
        logits = reading.logits(outputs.to(torch.float32, copy=True))
        slope = reading.cap_slope(logits) if ctx.needs_input_grad[0] else None
        normalisers = logits.logsumexp(-1)
        logs = logits.sub_(normalisers[:, None])
        # A copy, because FSDP needs a pass to return no views.
        logprobs = logs.gather(-1, _by_position(token_ids)).view(token_ids.shape).clone()
        entropies = _entropy(logs) if entropy else logprobs.new_empty(0)
        ctx.reading, ctx.entropy, ctx.dtype = reading, entropy, outputs.dtype
        ctx.save_for_backward(logs, slope, _by_position(token_ids), entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor
    ) -> tuple[Tensor | None, ...]:
        logs, slope, token_ids, entropies = ctx.saved_tensors
        gradient = _gradient(
            logs,
            token_ids,
            ctx.reading,
            slope,
            grad_logprobs.view(token_ids.shape),
            (entropies, grad_entropies) if ctx.entropy else None,
        )
        return gradient.to(ctx.dtype), None, None, None


def _entropy(logs: Tensor) -> Tensor:
    """Entropies [n] from log-probs [n, V]."""
    return -logs.exp().mul_(logs).sum(-1)


def _gradient(
    logs: Tensor,
    token_ids: Tensor,
    reading: Reading,
    slope: Tensor | None,
    of_logprobs: Tensor,
    of_entropies: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Gradient w.r.t. the head's outputs [n, V]; overwrites ``logs`` [n, V], all log-probs.

    Args:
        of_logprobs [n, C]: Gradient w.r.t. the log-probs of ``token_ids`` [n, C].
        of_entropies: Entropies [n] and the gradient w.r.t. them.
    """
    wanted = of_logprobs.sum(-1, keepdim=True)
    if of_entropies is not None:
        entropies, by_entropies = (each[:, None] for each in of_entropies)
        factor = (logs + entropies).mul_(by_entropies)
        gradient = logs.exp_().mul_(factor.add_(wanted)).neg_()
    else:
        gradient = logs.exp_().mul_(-wanted)
    gradient.scatter_add_(-1, token_ids, of_logprobs)
    if reading.scale != reading.temperature:
        gradient.mul_(reading.scale / reading.temperature)
    return gradient if slope is None else gradient.mul_(slope)


def _parts(token_ids: Tensor, chunk: int) -> list[slice]:
    return [slice(start, start + chunk) for start in range(0, len(token_ids), chunk)]
