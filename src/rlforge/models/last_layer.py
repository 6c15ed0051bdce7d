"""The last layer, computed where it is read.

Behind the last layer only those positions are read that predict a token which is drawn or learned:
few of a long prompt. Queries, the output of attention and the feed-forward network treat each
position by itself, so in that layer they are computed for these few alone; keys and values are
needed of all. Gradients stay the same: elsewhere those of the left out are zero.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

log = logging.getLogger(__name__)

#: What treats each position by itself in a decoder layer, by transformers' names.
POSITION_WISE = ("self_attn.q_proj", "self_attn.o_proj", "mlp")

#: Relative errors (Euclidean norms) that other shapes and orders of sums explain: rounding is 6e-8
#: of a number in float32 and 4e-3 in bfloat16, and adds up over layers.
EXACT, ROUGH = 1e-4, 0.05


class LastLayer:
    """The last layer of a decoder, some of whose modules can leave positions out.

    modules: those modules; none where the decoder has no layers with such names. Whether the
    decoder says the same is for the caller to try.
    """

    def __init__(self, decoder: nn.Module) -> None:
        layers = [m for m in decoder.modules() if isinstance(m, GradientCheckpointingLayer)]
        found = dict(layers[-1].named_modules()) if layers else {}
        self.modules = tuple(found[name] for name in POSITION_WISE if name in found)

    @contextlib.contextmanager
    def read_at(self, positions: Tensor, total: int) -> Iterator[int]:
        """In the block only ``positions`` [N] are computed, of ``total``; gives how many are not.

        Where half of them are read all are computed: copying the others out would not pay.
        """
        if not self.modules or 2 * positions.numel() >= total:
            yield 0
            return
        replaced = [(module, vars(module).get("forward")) for module in self.modules]
        for module in self.modules:
            module.forward = partial(_at, positions, module.forward)
        try:
            yield total - positions.numel()
        finally:
            for module, forward in replaced:
                if forward is None:
                    del module.forward
                else:
                    module.forward = forward


@torch.no_grad()
def says_the_same(model: Any) -> bool:
    """Whether a causal model predicts the same where only the ends of prompts are read.

    Where it does not, the log says why its last layer is computed whole.
    """
    problem = _what_differs(model)
    if problem:
        log.info("the last layer of %s is computed whole: %s", type(model).__name__, problem)
    return not problem


def _what_differs(model: Any) -> str:
    """Why the last layer of ``model`` cannot leave positions out, tried on a few; "" if it can."""
    layer = LastLayer(model.get_decoder())
    if not layer.modules:
        return "none of its parts has a known name"
    vocab_size = model.config.get_text_config().vocab_size
    ids = torch.arange(18, device=model.device).view(2, 9) % vocab_size
    ends = torch.tensor([8, 17], device=model.device)
    try:
        with evaluating(model):
            expected = model(input_ids=ids, use_cache=False).logits[:, -1]
            with layer.read_at(ends, ids.numel()):
                actual = model(input_ids=ids, use_cache=False).logits[:, -1]
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"a layer of another make fails with {error!r}"
    same = same_up_to_rounding(actual, expected)
    return "" if same else "it answers differently where positions are left out"


def _at(
    positions: Tensor, whole: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """[B, L, O] of x [B, L, I]: zero where nobody reads."""
    rows = x.flatten(0, 1)
    few = whole(rows.index_select(0, positions)[None], *args, **kwargs)[0]
    all_rows = few.new_zeros(rows.shape[0], few.shape[-1])
    return all_rows.index_copy(0, positions, few).view(*x.shape[:-1], -1)


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
