"""RMSNorm and LoRA layers in fewer operations than the libraries' own.

RMSNorm (Zhang and Sennrich 2019): fused, only the input and 1 / rms are kept, by torch's kernel on
GPUs, elsewhere by a backward pass of our own; models write the tensor five times.

LoRA: PEFT computes W x + s B (A x). Per token, with i inputs, o outputs and rank r, that takes 6 r
(i + o) operations forward and backward, the gradient of a merged weight 2 i o, and W + s B A 2 r i
o once per pass. Small layers so compute one product with W + s B A; others add in place onto W x.
"""

from __future__ import annotations

import inspect
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from rlforge.models.products import linear
from rlforge.system.limits import merging_lora_pays


def fuse_norms(model: nn.Module) -> int:
    """Fuse the RMSNorms of ``model``; returns how many there are."""
    norms = [module for module in model.modules() if _is_rms_norm(module)]
    for norm in norms:
        norm.forward = MethodType(_rms_norm_forward, norm)
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
    # A gated norm takes a second input, which the fused norm would not use.
    if len(inspect.signature(module.forward).parameters) != 1:
        return False
    # One row has size sqrt(epsilon): at size 1 another use of epsilon would not show.
    size = torch.tensor([1.0, epsilon**0.5])[:, None]
    probe = torch.randn(2, weight.numel(), generator=torch.Generator().manual_seed(0)) * size
    probe = probe.to(weight.device)
    # Outputs are compared, because names do not tell a norm that adds one to its weight.
    wanted = rms_norm(probe, weight.shape, weight.float(), epsilon)
    found: Tensor = module(probe)
    return found.shape == wanted.shape and torch.allclose(found.float(), wanted, 1e-4, 1e-5)


def _rms_norm_forward(norm: Any, x: Tensor) -> Tensor:
    epsilon = _epsilon(norm)
    if x.dtype != norm.weight.dtype or epsilon is None:
        # Models differ in how they mix a float32 weight with bfloat16 inputs: their own code runs.
        result: Tensor = type(norm).forward(norm, x)
        return result
    # Autocast would make the output float32, or sum in bfloat16.
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
        """Outputs [..., H] of x [..., H] and weight [H] in one dtype, rounded as models do."""
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


def merge_small_lora(model: nn.Module) -> int:
    """Let LoRA layers of ``model`` compute with W + s B A where that is faster; returns how many.

    Weights, gradients and saved files stay PEFT's, up to rounding.

    Example:
        >>> from peft import LoraConfig, get_peft_model
        >>> model = get_peft_model(
        ...     nn.Sequential(nn.Linear(8, 8)), LoraConfig(r=4, target_modules=["0"])
        ... )
        >>> merge_small_lora(model)  # 8 * 8 <= 3 * 4 * (8 + 8)
        1
    """
    from peft.tuners.lora import Linear

    small = [layer for layer in model.modules() if isinstance(layer, Linear) and _gains(layer)]
    for layer in small:
        layer.forward = MethodType(_merged_forward, layer)
    return len(small)


def fuse_lora_add(model: nn.Module) -> int:
    """Let the remaining LoRA layers around linear ones add in place; returns how many.

    Weights, gradients and saved files stay PEFT's, up to rounding: under autocast the sum is
    rounded once instead of three times.
    """
    from peft.tuners.lora import Linear

    others = [
        layer
        for layer in model.modules()
        if isinstance(layer, Linear)
        and "forward" not in vars(layer)
        and type(layer.get_base_layer()) is nn.Linear
        and not layer.lora_variant
    ]
    for layer in others:
        layer.forward = MethodType(_fused_forward, layer)
    return len(others)


def _gains(layer: Any) -> bool:
    base = layer.get_base_layer()
    if type(base) is not nn.Linear:
        return False
    (name,) = layer.lora_A
    # Dropout acts on the adapter's inputs alone, which a merged weight cannot show.
    plain = isinstance(layer.lora_dropout[name], nn.Identity) and not layer.lora_variant
    # In bfloat16 the sum would round most of B A away.
    exact = base.weight.dtype == layer.lora_A[name].weight.dtype == torch.float32
    rank, inputs, outputs = layer.r[name], base.in_features, base.out_features
    return plain and exact and merging_lora_pays(inputs, outputs, rank)


def _merged_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if layer.disable_adapters or layer.merged:
        result: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return result
    base = layer.get_base_layer()
    (name,) = layer.lora_A
    product = layer.lora_B[name].weight @ layer.lora_A[name].weight
    weight = torch.add(base.weight, product, alpha=layer.scaling[name])
    return linear(x, weight, base.bias)


def _fused_forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if layer.disable_adapters or layer.merged:
        result: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return result
    (name,) = layer.lora_A
    # Flattened first, so that the sum is no view: adding in place to one copies its gradient.
    rows = x.flatten(0, -2)
    total: Tensor = layer.base_layer(rows)
    low = layer.lora_A[name](layer.lora_dropout[name](rows))
    # Autocast does not cast for in-place operations, so the weight is cast here.
    up = layer.lora_B[name].weight.to(total.dtype)
    return total.addmm_(low, up.t(), alpha=layer.scaling[name]).view(*x.shape[:-1], -1)


def skip_input_casts(model: nn.Module) -> None:
    """Skip the casts of inputs in LoRA layers of ``model``; for use under autocast only."""
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            # PEFT casts inputs to float32, and autocast casts them back to bfloat16: two passes
            # and a copy in each layer, for the same numbers.
            layer.cast_input_dtype_enabled = False
