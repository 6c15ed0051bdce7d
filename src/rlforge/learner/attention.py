"""Causal attention of packed sequences, under the name by which transformers models find it.

Sequences of any lengths stand one behind the other in a single row and attend to themselves only:
nothing is padded. On GPUs in half precision that is torch's variable-length kernel; elsewhere each
sequence is computed for itself, which shows that both mean the same. Rows without packing, and
rows that go on from a prefix, need no mask tensor either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rlforge.learner.batching import Packing

#: What some models ask their attention for, and this one cannot do.
_UNKNOWN = ("softcap", "s_aux", "sliding_window", "position_bias")

#: Without a mask function of that name, transformers builds no masks.
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
    """Attention [B, Q, H, D] of query [B, H, Q, D] to key and value [B, G, K, D], Q <= K.

    The last query stands at the last key. packing: where the sequences are, with B = 1 and Q = K.
    The signature is that of transformers' attention functions. Raises ValueError for what a model
    wants beyond that.
    """
    if unknown := [name for name in _UNKNOWN if others.get(name) is not None]:
        raise ValueError(f"{type(module).__name__} wants attention with {', '.join(unknown)}")
    gqa = query.shape[1] != key.shape[1]
    if packing is None:
        rows, keys = query.shape[2], key.shape[2]
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=causal_lower_right(rows, keys) if 1 < rows < keys else None,
            is_causal=rows == keys,
            dropout_p=dropout,
            scale=scaling,
            enable_gqa=gqa,
        )
        return output.transpose(1, 2), None
    if dropout:
        raise ValueError("packed sequences know no attention dropout")
    kernel = query.is_cuda and value.dtype in (torch.bfloat16, torch.float16)
    attend = _varlen if kernel else _one_by_one
    q, k, v = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(q, k, v, packing, scaling, gqa)[None], None


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """[T, H, D] from query [T, H, D], key and value [T, G, D], by torch's kernel."""
    from torch.nn.attention.varlen import varlen_attn

    output = varlen_attn(
        query.to(value.dtype),
        key.to(value.dtype),
        value,
        packing.boundaries,
        packing.boundaries,
        max(packing.lengths),
        max(packing.lengths),
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=gqa,
    )
    assert isinstance(output, Tensor)
    return output


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, gqa: bool
) -> Tensor:
    """The same, sequence by sequence."""
    sequences = zip(
        *(torch.split(part, list(packing.lengths)) for part in (query, key, value)), strict=True
    )
    outputs = [
        scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            is_causal=True,
            scale=scale,
            enable_gqa=gqa,
        )
        for q, k, v in sequences
    ]
    return torch.cat([output[0].transpose(0, 1) for output in outputs])


AttentionInterface.register(NAME, causal_attention)
