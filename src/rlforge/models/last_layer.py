"""The last layer, computed only at the positions whose output is read: few of a long prompt.

Keys and values are computed everywhere. Positions that are left out have no gradient.
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

from rlforge.models.devices import is_lost

log = logging.getLogger(__name__)

#: Modules of a decoder layer that treat each position separately, by transformers' names.
POSITION_WISE = ("self_attn.q_proj", "self_attn.o_proj", "mlp")

#: Relative errors (Euclidean norms) that rounding explains: 6e-8 of a number in float32 and 4e-3 in
#: bfloat16, which add up over layers. For log-probs about -4 the first is 1e-5.
EXACT, ROUGH = 2.5e-6, 0.05


class LastLayer:
    """The last layer of a decoder, some of whose modules can leave positions out.

    modules: empty if none has a known name. Check first that the model ``predicts_the_same``.
    """

    def __init__(self, decoder: nn.Module) -> None:
        layers = [m for m in decoder.modules() if isinstance(m, GradientCheckpointingLayer)]
        found = dict(layers[-1].named_modules()) if layers else {}
        self.modules = tuple(found[name] for name in POSITION_WISE if name in found)

    @contextlib.contextmanager
    def read_at(self, positions: Tensor, total: int) -> Iterator[int]:
        """In the block only ``positions`` [N] of ``total`` are computed; yields how many not."""
        # Where half of them or more are read, selecting costs more than it saves.
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
def predicts_the_same(model: Any) -> bool:
    """Whether a causal model predicts the same if its last layer computes only ends of prompts.

    If not, the log says why.
    """
    layer = LastLayer(model.get_decoder())
    vocab_size = model.config.get_text_config().vocab_size
    ids = trial_tokens(vocab_size, 18).to(model.device).view(2, 9)
    ends = torch.tensor([8, 17], device=model.device)

    def whole() -> Tensor:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
        return logits[:, -1]

    def narrow() -> Tensor:
        with layer.read_at(ends, ids.numel()):
            return whole()

    problem = "none of its modules has a known name"
    if layer.modules:
        with evaluating(model):
            differs = difference(narrow, whole)
        problem = differs and f"its layer {differs} where positions are left out"
    if problem:
        log.info("the last layer of %s is computed whole: %s", type(model).__name__, problem)
    return not problem


def trial_tokens(vocab_size: int, count: int) -> Tensor:
    """``count`` token ids [count] for a trial, on the CPU.

    Example:
        >>> trial_tokens(40, 3)
        tensor([33, 32, 31])
    """
    # The first ids are often those of control tokens, which magnify rounding.
    return (7919 * torch.arange(count) + 113) % vocab_size


def _at(
    positions: Tensor, whole: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    """``whole`` of x [B, L, I] at ``positions``: [B, L, O], zero elsewhere."""
    rows = x.flatten(0, 1)
    few = whole(rows.index_select(0, positions)[None], *args, **kwargs)[0]
    all_rows = few.new_zeros(rows.shape[0], few.shape[-1])
    return all_rows.index_copy(0, positions, few).view(*x.shape[:-1], -1)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode in the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def difference(
    short: Callable[[], Tensor], plain: Callable[[], Tensor], exact: float = EXACT
) -> str:
    """How ``short`` fails or differs from ``plain``; "" if not. exact: of ``same_up_to_rounding``.

    Example:
        >>> difference(lambda: torch.ones(2), lambda: torch.ones(2))
        ''
        >>> difference(lambda: torch.zeros(2), lambda: torch.ones(2))
        'computes differently'
    """
    try:
        expected = plain()
        same = same_up_to_rounding(short(), expected, exact)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        # A lost device says nothing about ``short``: every later computation fails there.
        if is_lost(error):
            raise
        return f"fails with {error!r}"
    return "" if same else "computes differently"


def same_up_to_rounding(actual: Tensor, expected: Tensor, exact: float = EXACT) -> bool:
    """Whether the tensors differ by no more than rounding; call it under the same autocast.

    exact: relative error that rounding in float32 explains.

    Example:
        >>> same_up_to_rounding(torch.ones(3), torch.full((3,), 1.000001))
        True
    """
    # Under autocast float32 tensors, too, hold sums of numbers that were rounded to its dtype.
    autocast = torch.is_autocast_enabled(actual.device.type)
    fine = actual.dtype == torch.float32 and not autocast
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    return float(error) < (exact if fine else ROUGH)
