"""LoRA layers as one product with W + s B A, where that is less work than two products in a row.

PEFT computes W x + s B (A x): of little cost beside a large W, but for small layers and high ranks
the detour costs more than the layer. Per token, with i inputs, o outputs and rank r, the detour
takes 6 r (i + o) operations forward and backward, and the gradient of the folded weight 2 i o;
making W + s B A takes 2 r i o once per pass, whatever the number of tokens.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


def fold_small_layers(model: nn.Module) -> int:
    """Let the LoRA layers of ``model`` that gain by it compute folded; returns how many there are.

    Weights, gradients and saved files are those of PEFT's own layers, up to rounding.
    """
    from peft.tuners.lora import Linear

    small = [layer for layer in model.modules() if isinstance(layer, Linear) and _gains(layer)]
    for layer in small:
        layer.forward = MethodType(_forward, layer)
    return len(small)


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
