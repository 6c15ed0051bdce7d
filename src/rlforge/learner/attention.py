"""Causal attention of packed sequences, registered with transformers as ``rlforge_causal``.

Segments follow each other in one row without padding. Each attends to itself and to the segments it
continues: sequences with a common prefix share its segment. GPUs in half precision run torch's
variable-length kernel; elsewhere segments of similar lengths are padded and computed together.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlforge.learner.packing import Packing

#: Arguments of models' attention that this one does not support.
_UNKNOWN = ("attention_mask", "softcap", "s_aux", "sliding_window", "position_bias")

#: transformers has no mask function of this name, and so builds no masks.
NAME = "rlforge_causal"


def causal_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Packing | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention [B, Q, H, D] of query [B, H, Q, D] to key and value [B, G, Q, D].

    ``packing`` are the segments, with B = 1; None: padded rows. The signature is transformers'.
    Raises ValueError for arguments that are not supported.
    """
    # A mask that the model makes is refused: this attention would ignore it.
    others["attention_mask"] = attention_mask
    if unknown := [name for name in _UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} needs unsupported {', '.join(unknown)}")
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"{key.shape[2]} keys for {query.shape[2]} queries: no KV cache is supported"
        )
    gqa = query.shape[1] != key.shape[1]
    if packing is None:
        output = scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout, scale=scaling, enable_gqa=gqa
        )
        return output.transpose(1, 2), None
    if dropout:
        raise ValueError("packed sequences have no attention dropout")
    return _packed(query, key, value, packing, scaling, gqa), None


# Segments have other lengths in each pass: a compiled layer would compile again for each.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _packed(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """Attention [1, S, H, D] of packed rows."""
    attend = varlen_attention if has_kernel(query.device, value.dtype) else segment_attention
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(q, k, v, packing, scale, gqa)[None]


def has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's variable-length kernel computes packed rows there."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """Attention [S, H, D] of query [S, H, D] to key and value [S, G, D], by torch's kernel."""
    from torch.nn.attention.varlen import varlen_attn

    # Older versions of torch group heads without this argument; newer ones require it.
    grouped: dict[str, Any] = {"enable_gqa": gqa} if _asks_for_groups(varlen_attn) else {}
    query, key = query.to(value.dtype), key.to(value.dtype)
    if packing.keys is not None:
        key, value = gathered(key, packing.keys), gathered(value, packing.keys)
    # The kernel aligns the last query of a segment with its last key, so every token attends to all
    # keys before its segment.
    output = varlen_attn(
        query,
        key,
        value,
        packing.query_ends,
        packing.key_ends,
        *packing.longest,
        scale=scale,
        window_size=(-1, 0),
        **grouped,
    )
    assert isinstance(output, Tensor)
    return output


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        """Rows [N, ...] of rows [S, ...] at index [N]."""
        ctx.save_for_backward(index)
        ctx.count = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum [S, ...] of the gradients of each row's copies."""
        (index,) = ctx.saved_tensors
        # Hundreds of sequences may share a prefix: a bfloat16 sum is wrong by several percent.
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(ctx.count, *gradient.shape[1:], dtype=wide)
        total.index_add_(0, index, gradient.to(wide))
        return total.to(gradient.dtype), None


def gathered(rows: Tensor, index: Tensor) -> Tensor:
    """``rows.index_select(0, index)``, whose gradient is summed in float32 at least."""
    selected: Tensor = _Gathered.apply(rows, index)  # type: ignore[no-untyped-call]
    return selected


@functools.cache
def _asks_for_groups(kernel: Callable[..., Any]) -> bool:
    """Whether torch's kernel has ``enable_gqa``: in 2.13, not yet in 2.11."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """Results of ``varlen_attention`` by one call for each block of segments."""
    plan = packing.blocks
    queries = query.index_select(0, plan.queries)
    keys, values = (gathered(part, plan.keys) for part in (key, value))
    sizes = [block.count * block.keys for block in plan.blocks]
    parted = (
        torch.split(queries, [block.count * block.queries for block in plan.blocks]),
        torch.split(keys, sizes),
        torch.split(values, sizes),
    )
    outputs = []
    for block, *parts in zip(plan.blocks, *parted, strict=True):
        q, k, v = (part.reshape(block.count, -1, *part.shape[1:]).transpose(1, 2) for part in parts)
        output = scaled_dot_product_attention(
            q, k, v, attn_mask=block.mask, is_causal=block.causal, scale=scale, enable_gqa=gqa
        )
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).index_select(0, plan.order)


AttentionInterface.register(NAME, causal_attention)


@contextlib.contextmanager
def packed_calls() -> Iterator[list[str]]:
    """Yield the names of the modules whose packed attention is computed in the block."""
    names: list[str] = []

    def attend(module: Any, *args: Any, **options: Any) -> tuple[Tensor, None]:
        if options.get("packing") is not None:
            names.append(type(module).__name__)
        return own(module, *args, **options)  # type: ignore[no-any-return]

    own = ALL_ATTENTION_FUNCTIONS[NAME]
    ALL_ATTENTION_FUNCTIONS[NAME] = attend
    try:
        yield names
    finally:
        ALL_ATTENTION_FUNCTIONS[NAME] = own
