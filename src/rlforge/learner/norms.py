"""RMSNorm (Zhang and Sennrich 2019) in one step, forward and backward.

Models compute it in float32 by some eight operations, which between them write the tensor five
times and keep it in float32 for the backward pass. In one step nothing is kept but the input and
1 / rms. On GPUs that is torch's fused kernel; elsewhere the same operations with a backward pass
of their own.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm


def fuse_norms(model: nn.Module) -> int:
    """Let the RMSNorms of ``model`` compute in one step; returns how many there are.

    They are known by what they do: a norm that adds one to its weight stays as it is.
    """
    norms = [module for module in model.modules() if _is_rms_norm(module)]
    for norm in norms:
        norm.forward = MethodType(_forward, norm)
    return len(norms)


def _epsilon(norm: Any) -> float | None:
    found = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    return found if isinstance(found, float) else None


@torch.no_grad()
def _is_rms_norm(module: nn.Module) -> bool:
    parameters = dict(module.named_parameters())
    weight, epsilon = parameters.pop("weight", None), _epsilon(module)
    if weight is None or parameters or weight.ndim != 1 or epsilon is None:
        return False
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    # As small as the root of epsilon, too, where it is seen.
    size = torch.tensor([1.0, epsilon**0.5])[:, None]
    probe = torch.randn(2, weight.numel(), generator=torch.Generator().manual_seed(0)) * size
    probe = probe.to(weight.device)
    wanted = rms_norm(probe, weight.shape, weight.float(), epsilon)
    found: Tensor = module(probe)
    return found.shape == wanted.shape and torch.allclose(found.float(), wanted, 1e-4, 1e-5)


def _forward(norm: Any, x: Tensor) -> Tensor:
    epsilon = _epsilon(norm)
    if x.dtype != norm.weight.dtype or epsilon is None:
        # Trained in float32 behind a layer in bfloat16: the model's own way of mixing them.
        result: Tensor = type(norm).forward(norm, x)
        return result
    # Autocast would make a float32 tensor of it, or a sum in bfloat16.
    with torch.autocast(x.device.type, enabled=False):
        normed: Tensor = (
            rms_norm(x, norm.weight.shape, norm.weight, epsilon)
            if x.is_cuda
            else _RmsNorm.apply(x, norm.weight, epsilon)  # type: ignore[no-untyped-call]
        )
        return normed


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """[..., H] of x [..., H] and weight [H] in the same dtype, as transformers rounds it."""
        wide = x.float()
        scale: Tensor = (
            torch.linalg.vecdot(wide, wide)[..., None].div_(x.shape[-1]).add_(epsilon).rsqrt_()
        )
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """With y = x / rms: dx = (g w - y mean(g w y)) / rms and dw = sum(g y)."""
        x, weight, scale = ctx.saved_tensors
        y, wide = x.float() * scale, gradient.float()
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = (wide * y).flatten(0, -2).sum(0).to(weight.dtype)
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None
        inner = wide * weight
        with torch.autocast(x.device.type, enabled=False):
            mean = torch.linalg.vecdot(inner, y)[..., None].div_(x.shape[-1])
        of_x = inner.addcmul_(y, mean, value=-1.0).mul_(scale)
        return of_x.to(x.dtype), of_weight, None
