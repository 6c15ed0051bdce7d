"""Causal attention of packed sequences, registered with transformers as ``rlforge_causal``.

Segments of any lengths are concatenated in a single row without padding. Each attends to itself and
to the segments it continues: sequences that share a prefix share its segment. On GPUs in half
precision torch's variable-length kernel computes it; elsewhere each segment is computed by itself;
tests check that both agree.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rlforge.learner.batching import Packing

#: Arguments of some models' attention that this one does not support.
_UNKNOWN = ("softcap", "s_aux", "sliding_window", "position_bias")

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

    packing: the segments, with B = 1; None: padded rows. The signature is that of transformers'
    attention functions. Raises ValueError for arguments that are not supported.
    """
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


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _packed(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """[1, S, H, D]. Not compiled: every pass has other lengths and would compile again."""
    kernel = query.is_cuda and value.dtype in (torch.bfloat16, torch.float16)
    attend = varlen_attention if kernel else segment_attention
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(q, k, v, packing, scale, gqa)[None]


def varlen_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """[S, H, D] from query [S, H, D], key and value [S, G, D], by torch's kernel.

    The kernel aligns the last query of a segment with its last key, so every token of the segment
    attends to all keys before the segment.
    """
    from torch.nn.attention.varlen import varlen_attn

    # The kernel groups heads by itself; newer versions of torch require the argument.
    grouped: dict[str, Any] = {"enable_gqa": gqa} if _asks_for_groups(varlen_attn) else {}
    query, key = query.to(value.dtype), key.to(value.dtype)
    if packing.keys is not None:
        key, value = _gathered(key, packing.keys), _gathered(value, packing.keys)
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
    """``index_select`` of rows, whose gradient is summed in float32 at least.

    Hundreds of sequences may share a prefix: the sum of their gradients in bfloat16 would be
    wrong by several percent.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        """[N, G, D] of rows [S, G, D]; index [N]."""
        ctx.save_for_backward(index)
        ctx.count = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum [S, G, D] of the gradients of each row's copies."""
        (index,) = ctx.saved_tensors
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(ctx.count, *gradient.shape[1:], dtype=wide)
        total.index_add_(0, index, gradient.to(wide))
        return total.to(gradient.dtype), None


def _gathered(rows: Tensor, index: Tensor) -> Tensor:
    gathered: Tensor = _Gathered.apply(rows, index)  # type: ignore[no-untyped-call]
    return gathered


@functools.cache
def _asks_for_groups(kernel: Callable[..., Any]) -> bool:
    """Whether torch's kernel has ``enable_gqa``: in 2.13, not yet in 2.11."""
    return "enable_gqa" in inspect.signature(kernel).parameters


def segment_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """The same as ``varlen_attention``, segment by segment."""
    queries, keys, values = (
        torch.split(part.transpose(0, 1)[None], list(packing.lengths), dim=2)
        for part in (query, key, value)
    )
    attended: list[tuple[Tensor, Tensor]] = []
    outputs = []
    for q, k, v, parent in zip(queries, keys, values, packing.parents, strict=True):
        if parent is not None:
            k, v = (
                torch.cat([before, own], dim=2)
                for before, own in zip(attended[parent], (k, v), strict=True)
            )
        attended.append((k, v))
        after = parent is not None
        mask = causal_lower_right(q.shape[2], k.shape[2]) if after and q.shape[2] > 1 else None
        outputs.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=not after, scale=scale, enable_gqa=gqa
            )
        )
    return torch.cat(outputs, dim=2)[0].transpose(0, 1)


AttentionInterface.register(NAME, causal_attention)
