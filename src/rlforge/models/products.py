"""Float32 matrix products on AMD processors, by the faster of the two libraries that torch has."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Multiplications of a product from which oneDNN is faster; below, its calls cost more than MKL's.
LEAST_WORK = 2**21

# Torch multiplies by Intel's MKL, which leaves the AVX-512 units of AMD processors idle: on a core
# of Zen 5 110 billion operations a second, against 250 by oneDNN (512 x 576 by 576 x 1536).


@functools.cache
@torch.no_grad()
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster on this processor, and in float32."""
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not built_in or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with contextlib.suppress(OSError):
        if "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace"):
            left, right = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
            exact = left.double() @ right.double()
            # oneDNN may round to bfloat16: the error would be some 10,000 times as large.
            return float((_by_onednn(left, right.T) - exact).norm() / exact.norm()) < 1e-5
    return False


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` by oneDNN, without gradients."""
    # Torch's setting is one for all threads of a process, in which others may compute, and it
    # allows rounding to bfloat16. So the operation is called by its name.
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` by the faster library, without gradients.

    Example:
        >>> a = torch.ones(2, 3)
        >>> product(a, a).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    compute = _by_onednn if _fit(x, weight) else nn.functional.linear
    return compute(x, weight, bias)


def _fit(*tensors: Tensor) -> bool:
    """Whether oneDNN is the faster one for products of ``tensors``."""
    fit = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    return fit and onednn_is_faster()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` by the faster library, with gradients."""
    pays = x.numel() * weight.shape[0] >= LEAST_WORK
    seen = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    if not pays or seen or not _fit(x, weight):
        return nn.functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = None, None, None
        if ctx.needs_input_grad[0]:
            of_x = _by_onednn(gradient, weight.T)
        if ctx.needs_input_grad[1]:
            of_weight = _by_onednn(gradient.flatten(0, -2).T, x.flatten(0, -2).T)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.flatten(0, -2).sum(0)
        return of_x, of_weight, of_bias


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let linear layers of ``model`` in float32 on the CPU compute by ``linear``, where it pays."""

    def forward(layer: nn.Linear, x: Tensor) -> Tensor:
        return linear(x, layer.weight, layer.bias)

    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in vars(module) and _fit(module.weight):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]
