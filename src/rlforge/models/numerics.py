"""Models are tried on a few tokens before they compute in another way than their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

#: Relative errors (Euclidean norms) that other shapes and orders of sums explain: rounding is 6e-8
#: of a number in float32 and 4e-3 in bfloat16, and adds up over layers.
EXACT, ROUGH = 1e-4, 0.05


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Nothing drops out of ``model`` in the block; afterwards it trains if it did before."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def same_up_to_rounding(actual: Tensor, expected: Tensor) -> bool:
    """Whether ``actual`` is ``expected``, as far as the dtype tells in which both were computed.

    Call it where they were computed: under autocast float32 tensors, too, hold sums of numbers
    that were rounded to its dtype.
    """
    autocast = torch.is_autocast_enabled(actual.device.type)
    exact = actual.dtype == torch.float32 and not autocast
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    return float(error) < (EXACT if exact else ROUGH)
