"""Attention of one new token over a cache, without a copy of keys and values per query head.

Grouped-query attention (Ainslie et al. 2023, "GQA") lets several query heads read the same keys and
values. Under a mask transformers repeats these for every head. A token that is drawn has one query
position, so the heads of a group can stand in its place: they see the same keys and the same mask.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rlforge_grouped"


def share_keys(model: Any) -> None:
    """Makes ``model`` attend as described where it uses torch's own attention ("sdpa").

    Answers stay the same. Models with another attention keep it.
    """
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [B, H, T, D], key and value [B, G, L, D].

    attention_mask: [B, 1, T, L], true (or 0) where a key is seen; None to see all. Returns
    [B, T, H, D]. More than one new token, and what is asked for beyond mask and scale, is left to
    transformers.
    """
    batch, heads, positions, _ = query.shape
    groups = key.shape[1]
    per_head = attention_mask is not None and attention_mask.shape[1] > 1
    if positions > 1 or heads == groups or per_head or options.get("position_bias") is not None:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **options
        )
        return result
    out = scaled_dot_product_attention(
        query.view(batch, groups, heads // groups, -1),
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=options.get("dropout", 0.0),
        scale=options.get("scaling"),
    )
    return out.reshape(batch, 1, heads, out.shape[-1]), None


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
