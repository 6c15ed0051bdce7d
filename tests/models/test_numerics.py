"""What rounding explains depends on what numbers were computed in; a trial leaves no trace."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from rlforge.models.numerics import evaluating, same_up_to_rounding

HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize(
    ("dtype", "autocast", "error", "same"),
    [
        (torch.float32, False, 1e-6, True),
        (torch.float32, False, 1e-3, False),
        (torch.float32, True, 1e-3, True),
        (torch.float32, True, 0.1, False),
        *((dtype, False, 0.01, True) for dtype in HALVES),
        *((dtype, False, 0.1, False) for dtype in HALVES),
    ],
)
def test_what_was_computed_in_fewer_bits_may_differ_by_more(dtype, autocast, error, same):
    torch.manual_seed(0)
    expected = torch.randn(7, 40, dtype=torch.float64)
    actual = expected * (1 + error)
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        assert same_up_to_rounding(actual.to(dtype), expected.to(dtype)) is same


def test_a_sum_in_bfloat16_is_the_same_in_another_order():
    torch.manual_seed(0)
    left, right = torch.randn(16, 512).bfloat16(), torch.randn(512, 16).bfloat16()
    halves = left[:, :256] @ right[:256] + left[:, 256:] @ right[256:]
    assert not torch.equal(halves, left @ right)
    assert same_up_to_rounding(halves, left @ right)


def test_numbers_that_are_none_are_never_the_same():
    broken = torch.full((3,), float("nan"))
    assert not same_up_to_rounding(broken, broken)
    assert not same_up_to_rounding(torch.ones(3), torch.zeros(3))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_trains_after_a_trial_if_it_did_before_whatever_happened(training):
    model = torch.nn.Dropout().train(training)

    def fail():
        with evaluating(model):
            assert not model.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model.training is training
