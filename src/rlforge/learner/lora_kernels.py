"""LoRA layers in fewer steps than PEFT's.

PEFT computes W x + s B (A x): of little cost beside a large W, but for small layers and high ranks
the detour costs more than the layer. Per token, with i inputs, o outputs and rank r, the detour
takes 6 r (i + o) operations forward and backward, and the gradient of the folded weight 2 i o;
making W + s B A takes 2 r i o once per pass, whatever the number of tokens. So small layers are one
product with W + s B A.

In all others the product with B is added onto W x as it is made: by itself it would be written,
scaled and added in three passes over all outputs.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def merge_small_lora(model: nn.Module) -> int:
    """Let the LoRA layers of ``model`` that gain by it compute folded; returns how many there are.

    Weights, gradients and saved files are those of PEFT's own layers, up to rounding.
    """
    from peft.tuners.lora import Linear

    small = [layer for layer in model.modules() if isinstance(layer, Linear) and _gains(layer)]
    for layer in small:
        layer.forward = MethodType(_forward, layer)
    return len(small)


def fuse_lora_add(model: nn.Module) -> int:
    """Let the other LoRA layers around linear ones add their product in place; returns how many.

    Weights, gradients and saved files are those of PEFT's own layers, up to rounding: under
    autocast the sum is rounded once instead of three times.
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
        layer.forward = MethodType(_join, layer)
    return len(others)


def _gains(layer: Any) -> bool:
    base = layer.get_base_layer()
    (name,) = layer.lora_A
    plain = isinstance(layer.lora_dropout[name], nn.Identity) and not layer.lora_variant
    # In bfloat16 the sum would round most of B A away.
    exact = base.weight.dtype == layer.lora_A[name].weight.dtype == torch.float32
    rank, inputs, outputs = layer.r[name], base.in_features, base.out_features
    return bool(plain and exact and inputs * outputs <= 3 * rank * (inputs + outputs))


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if layer.disable_adapters or layer.merged:
        result: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return result
    base = layer.get_base_layer()
    (name,) = layer.lora_A
    detour = layer.lora_B[name].weight @ layer.lora_A[name].weight
    weight = torch.add(base.weight, detour, alpha=layer.scaling[name])
    return nn.functional.linear(x, weight, base.bias)


def _join(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if layer.disable_adapters or layer.merged:
        result: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return result
    (name,) = layer.lora_A
    # Rows, so that the sum is no view of another tensor: the gradient of a view is copied.
    rows = x.flatten(0, -2)
    total: Tensor = layer.base_layer(rows)
    low = layer.lora_A[name](layer.lora_dropout[name](rows))
    # Autocast does not know operations in place.
    up = layer.lora_B[name].weight.to(total.dtype)
    return total.addmm_(low, up.t(), alpha=layer.scaling[name]).view(*x.shape[:-1], -1)
