"""Float32 matrix products on AMD processors, by the faster of the two libraries that torch has.

On CPUs torch multiplies float32 matrices by Intel's MKL, which on AMD processors leaves the AVX-512
units idle; oneDNN uses them. Measured on an EPYC of the Zen 5 generation, one core, 512 x 576 by
576 x 1536: 110 against 250 billion operations a second. Torch asks oneDNN for float32 products only
if ``torch.backends.mkldnn.matmul.fp32_precision`` allows it to round to bfloat16. oneDNN takes that
up only on processors with AMX, which AMD's have not; elsewhere it computes in float32.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

#: Multiplications of a product from which oneDNN is faster; below, its calls cost more than MKL's.
LEAST_WORK = 2**21


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies float32 matrices faster on this processor, and in float32."""
    cpu = torch.backends.cpu.get_cpu_capability()
    built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return built_in and cpu == "AVX512" and _made_by_amd() and _computes_in_float32()


def _made_by_amd() -> bool:
    with contextlib.suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace")
    return False


@torch.no_grad()
def _computes_in_float32() -> bool:
    """Rounding to bfloat16 would make the error some 10,000 times as large."""
    left, right = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    exact = left.double() @ right.double()
    with _by_onednn():
        product = left @ right
    return float((product - exact).norm() / exact.norm()) < 1e-5


@contextlib.contextmanager
def _by_onednn() -> Iterator[None]:
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


def fast_products(*tensors: Tensor) -> contextlib.AbstractContextManager[None]:
    """In the block, products of float32 tensors on the CPU are computed by the faster library.

    tensors: what is multiplied; the block changes nothing if one has another dtype or device.
    Torch's attention is several times slower in such a block.

    Example:
        >>> a = torch.ones(2, 3)
        >>> with fast_products(a):
        ...     (a @ a.T).tolist()
        [[3.0, 3.0], [3.0, 3.0]]
    """
    return _by_onednn() if _fit(*tensors) else contextlib.nullcontext()


def _fit(*tensors: Tensor) -> bool:
    """Whether oneDNN is the faster one for products of ``tensors``."""
    fit = all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
    return fit and onednn_is_faster()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` by the faster library, with gradients.

    x [..., I], weight [O, I], bias [O]; returns [..., O].
    """
    small = x.numel() * weight.shape[0] < LEAST_WORK
    if small or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, weight, bias)
    if not _fit(x, weight):
        return nn.functional.linear(x, weight, bias)
    result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)
        with _by_onednn():
            return nn.functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = None, None, None
        with _by_onednn():
            if ctx.needs_input_grad[0]:
                of_x = gradient @ weight
            if ctx.needs_input_grad[1]:
                of_weight = gradient.flatten(0, -2).T @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            of_bias = gradient.flatten(0, -2).sum(0)
        return of_x, of_weight, of_bias


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let linear layers of ``model`` in float32 on the CPU compute by ``linear``, where it pays."""
    for module in model.modules():
        if type(module) is nn.Linear and "forward" not in vars(module) and _fit(module.weight):
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]


def _forward(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)
