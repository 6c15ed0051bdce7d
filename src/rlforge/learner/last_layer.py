"""The last layer, computed where it is read.

Behind the last layer only those positions are read that predict an answer token: few of a long
prompt. Queries, the output of attention and the feed-forward network treat each position by itself,
so in that layer they are computed for these few alone; keys and values are needed of all. Gradients
stay the same: elsewhere those of the left out are zero.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

#: What treats each position by itself in a decoder layer, by transformers' names.
POSITION_WISE = ("self_attn.q_proj", "self_attn.o_proj", "mlp")


class LastLayer:
    """The last layer of a decoder, some of whose modules can leave positions out.

    modules: those modules; none where the decoder has no layers with such names.
    """

    def __init__(self, decoder: nn.Module) -> None:
        layers = [m for m in decoder.modules() if isinstance(m, GradientCheckpointingLayer)]
        found = dict(layers[-1].named_modules()) if layers else {}
        self.modules = tuple(found[name] for name in POSITION_WISE if name in found)
        self._whole = [module.forward for module in self.modules]
        self._read: Tensor | None = None
        for module in self.modules:
            module.forward = partial(self._forward, module.forward)

    def give_up(self) -> None:
        """The layer computes all positions again, as it did before."""
        for module, forward in zip(self.modules, self._whole, strict=True):
            module.forward = forward
        self.modules = ()

    @contextlib.contextmanager
    def read_at(self, positions: Tensor, total: int) -> Iterator[int]:
        """In the block only ``positions`` [N] are computed, of ``total``; gives how many are not.

        Where half of them are read all are computed: copying the others out would not pay.
        """
        narrow = bool(self.modules) and 2 * positions.numel() < total
        self._read = positions if narrow else None
        try:
            yield total - positions.numel() if narrow else 0
        finally:
            self._read = None

    def _forward(
        self, whole: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """[B, L, O] of x [B, L, I]: zero where nobody reads."""
        if self._read is None:
            return whole(x, *args, **kwargs)
        rows = x.flatten(0, 1)
        few = whole(rows.index_select(0, self._read)[None], *args, **kwargs)[0]
        all_rows = few.new_zeros(rows.shape[0], few.shape[-1])
        return all_rows.index_copy(0, self._read, few).view(*x.shape[:-1], -1)
