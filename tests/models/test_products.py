"""Float32 products by the faster library: the same numbers, the same gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlforge.models import products
from rlforge.models.products import LEAST_WORK, linear, onednn_is_faster, product

#: Relative error that float32 explains; bfloat16 would leave some 3e-3.
ROUNDING = 2e-6


def relative(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return ((actual.double() - exact).norm() / exact.norm()).item()


def results(function, x, weight, bias, dtype):
    """Output and all gradients of ``function``, computed in ``dtype``."""
    leaves = [
        None if t is None else t.to(dtype).detach().requires_grad_() for t in (x, weight, bias)
    ]
    out = function(*leaves)
    torch.cos(out).sum().backward()
    return [out, *(leaf.grad for leaf in leaves if leaf is not None)]


@settings(deadline=None, max_examples=20)
@given(
    shape=st.sampled_from([(300,), (2, 150), (1, 2, 130)]),
    sizes=st.tuples(st.integers(90, 200), st.integers(90, 200)),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_those_of_float32(shape, sizes, biased, seed):
    torch.manual_seed(seed)
    inputs, outputs = sizes
    x, weight = torch.randn(*shape, inputs), torch.randn(outputs, inputs) / inputs**0.5
    assert x.numel() * outputs >= LEAST_WORK
    bias = torch.randn(outputs) if biased else None
    fast = results(linear, x, weight, bias, torch.float32)
    exact = results(nn.functional.linear, x, weight, bias, torch.float64)
    for actual, wanted in zip(fast, exact, strict=True):
        assert relative(actual, wanted) < ROUNDING


def test_a_product_of_any_size_is_that_of_float32_and_changes_no_setting_of_the_process():
    before = torch.backends.mkldnn.matmul.fp32_precision
    for rows in (1, 7, 300):
        a, b = torch.randn(rows, 300), torch.randn(300, 300)
        assert relative(product(a, b), a.double() @ b.double().T) < ROUNDING
        assert relative(product(b.T, a), b.double().T @ a.double().T) < ROUNDING
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_other_dtypes_are_left_to_torch():
    a = torch.randn(40, 30).bfloat16()
    assert torch.equal(product(a, a), nn.functional.linear(a, a))


def test_a_frozen_layer_keeps_no_inputs_for_the_backward_pass():
    x, weight = torch.randn(300, 128, requires_grad=True), torch.randn(128, 128)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        linear(x, weight)
    assert all(t.data_ptr() != x.data_ptr() for t in kept)


def test_a_model_computes_the_same_with_faster_layers_and_can_be_copied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 64, bias=False))
    x = torch.randn(200, 128)
    wanted = model.double()(x.double())
    model.float()
    products.speed_up_linear_layers(model)
    assert relative(model(x), wanted) < ROUNDING
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin[0].weight)
    assert relative(model(x), wanted) < ROUNDING
    assert not torch.equal(twin(x), model(x))


@pytest.mark.skipif(not onednn_is_faster(), reason="torch's own choice is as fast here")
def test_where_it_is_faster_layers_compute_by_onednn():
    layer = nn.Linear(512, 512)
    products.speed_up_linear_layers(layer)
    x = torch.randn(256, 512)
    with torch.no_grad():
        assert torch.equal(layer(x), product(x, layer.weight, layer.bias))
