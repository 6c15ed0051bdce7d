"""Batch-invariant forward passes: what is computed for a row depends on no other row.

Matrix libraries choose the order of a sum, and so its last bits, by the shapes of a product. So the
log-probs of an answer depend on which others are generated beside it, and that on the timing of
processes. Here linear layers, SiLU and attention keep a row's order of sums in batches of any
shape. The keys of a token are then the same whether it is read alone, in a prompt, or after kept
keys.

No library promises this: ``check_invariance`` tries it with the model and machine of the run. He et
al. 2025, "Defeating nondeterminism in LLM inference", do the same for GPUs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.activations import SiLUActivation
from transformers.masking_utils import sdpa_mask
from transformers.pytorch_utils import Conv1D

from rlforge.errors import ConfigError
from rlforge.models.products import product
from rlforge.models.targets import experts_note

_NAME = "rlforge_invariant"

_WITHOUT = "leave it, and determinism=strict, which needs it, out"

#: Fewest rows of a product; with fewer, zeros fill it up.
# From about ten rows on, MKL and oneDNN sum each row alike; for fewer they have other kernels.
LEAST_ROWS = 16

#: Weights of a layer from which the library of ``product`` computes it.
_FAST_FROM = 2**15


class _Starts(threading.local):
    """Where the sequences of the thread's batch in work begin [B]; None: all at 0."""

    now: Tensor | None = None


_STARTS = _Starts()


@contextlib.contextmanager
def sequences_begin(starts: Tensor) -> Iterator[None]:
    """In the block, row b of a batch is a sequence from position ``starts[b]`` (on the CPU) on.

    Only models of ``make_invariant`` read it, in the thread of the caller.
    """
    before, _STARTS.now = _STARTS.now, starts
    try:
        yield
    finally:
        _STARTS.now = before


def make_invariant(model: Any) -> None:
    """Let ``model``, which may be an empty one, compute each row by itself.

    Outputs stay the same up to rounding. Raises ConfigError where it does not use torch's attention
    ("sdpa"), and for a mixture of experts, whose products are over tokens of several rows.
    """
    if experts_note(model) is not None:
        raise ConfigError(
            f"engine.batch_invariant: {type(model).__name__} is a mixture of experts, whose rows "
            f"depend on their batch; take another model, or {_WITHOUT}"
        )
    kind = model.config._attn_implementation
    if kind not in ("sdpa", _NAME):
        raise ConfigError(
            f"engine.batch_invariant: {type(model).__name__} computes attention by {kind!r}, whose "
            f"rows may depend on their batch; take another model, or {_WITHOUT}"
        )
    model.set_attn_implementation(_NAME)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = MethodType(_linear, module)  # type: ignore[method-assign]
        elif isinstance(module, Conv1D):
            module.forward = MethodType(_transposed, module)
        elif isinstance(module, nn.SiLU | SiLUActivation):
            module.forward = _silu  # type: ignore[method-assign]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return _product(x, layer.weight, layer.bias)


def _transposed(layer: Any, x: Tensor) -> Tensor:
    return _product(x, layer.weight.t(), layer.bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.flatten(0, -2)
    count = rows.shape[0]
    if count < LEAST_ROWS:
        rows = pad(rows, (0, 0, 0, LEAST_ROWS - count))
    multiply = product if weight.numel() >= _FAST_FROM else linear
    out = multiply(rows, weight, bias)
    return out[:count].view(*x.shape[:-1], -1)


def _silu(x: Tensor) -> Tensor:
    # torch's own kernel rounds the last numbers of a tensor otherwise.
    out: Tensor = x / (1 + torch.exp(-x))
    return out


def key_positions(longest: int) -> int:
    """Key positions of a batch whose longest sequence has ``longest`` tokens.

    Example:
        >>> [key_positions(length) for length in (1, 65, 129, 600)]
        [64, 128, 512, 1024]
    """
    # Products over more than about 190 positions are summed in parts, whose size depends on their
    # number. Up to 128 positions are one part; beyond, torch's kernel works by 512.
    unit = 64 if longest <= 128 else 512
    return -(-longest // unit) * unit


def invariant_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [B, H, Q, D], key and value [B, G, L, D].

    attention_mask: bool [B, 1, Q, L]; None: causal. The queries are of the last Q positions.
    Returns [B, Q, H, D].
    """
    batch, heads, asked, size = query.shape
    groups, length = key.shape[1], key.shape[2]
    if attention_mask is not None and attention_mask.shape[1] > 1:
        raise ConfigError(
            f"engine.batch_invariant: {type(module).__name__} has a mask per head; take another "
            f"model, or {_WITHOUT}"
        )
    starts = _STARTS.now
    if starts is None:
        starts = torch.zeros(batch, dtype=torch.int64)
    first, starts = int(starts.min()), starts.to(key.device)
    # Each sequence from its first token on: hidden positions add zeros at the end of each sum.
    places = torch.arange(key_positions(length - first), device=key.device)
    index = (starts[:, None] + places).clamp(max=length - 1)
    sequence = torch.arange(batch, device=key.device)[:, None]
    keys, values = (each.transpose(1, 2)[sequence, index].transpose(1, 2) for each in (key, value))

    positions = torch.arange(length - asked, length, device=key.device) - starts[:, None]
    seen = places <= positions[:, :, None]
    if attention_mask is not None:
        seen &= attention_mask[:, 0].gather(2, index[:, None].expand(-1, asked, -1))
    # The heads of a group stand in for further query rows (``rlforge.engines.cache``).
    rows = heads // groups * asked
    # With these numbers of query rows torch's kernel sums each row alike.
    padded = 4 if rows <= 4 else -(-rows // LEAST_ROWS) * LEAST_ROWS
    mask = pad(seen.repeat(1, heads // groups, 1), (0, 0, 0, padded - rows))
    mask[:, :, 0] |= ~mask.any(dim=2)  # a row that sees nothing would be NaN
    out = scaled_dot_product_attention(
        pad(query.reshape(batch, groups, rows, size), (0, 0, 0, padded - rows)),
        keys,
        values,
        attn_mask=mask[:, None],
        scale=options.get("scaling"),
    )
    out = out[:, :, :rows].reshape(batch, heads, asked, -1)
    return out.transpose(1, 2), None


AttentionInterface.register(_NAME, invariant_attention)
AttentionMaskInterface.register(_NAME, sdpa_mask)


@torch.inference_mode()
def check_invariance(model: Any) -> None:
    """Raise ConfigError where rows of ``model`` depend on their batch in spite of all.

    Prompts are read alone, in pairs and together, and compared bit by bit.
    """
    vocabulary = model.config.get_text_config().vocab_size
    device = next(model.parameters()).device
    numbers = torch.Generator().manual_seed(0)
    prompts = [
        torch.randint(vocabulary, (length,), generator=numbers).tolist()
        for length in (1, 7, 33, 90, 150)
    ]
    together = last_logits(model, prompts, 1)
    for size, prompt, among in zip(map(len, prompts), prompts, together, strict=True):
        alone = last_logits(model, [prompt], 1)[0]
        some = last_logits(model, [prompt, prompts[1]], 1)[0]
        if not (torch.equal(alone, among) and torch.equal(some, among)):
            raise ConfigError(
                f"engine.batch_invariant: on {device} the logits of a prompt of {size} tokens "
                "depend on which other prompts are read with it (libraries and processor: rlforge "
                f"doctor); set hardware.device=cpu, or {_WITHOUT}"
            )


def last_logits(model: Any, sequences: Sequence[Sequence[int]], number: int) -> Tensor:
    """The logits [B, number, V] after the last ``number`` tokens of each sequence.

    Before the beginning of a shorter sequence they mean nothing.
    """
    device, width = next(model.parameters()).device, max(map(len, sequences))
    starts = torch.tensor([width - len(tokens) for tokens in sequences])
    ids = torch.tensor([[0] * (width - len(tokens)) + list(tokens) for tokens in sequences])
    places = torch.arange(width)
    with sequences_begin(starts):
        output = model(
            input_ids=ids.to(device),
            attention_mask=(places >= starts[:, None]).long().to(device),
            position_ids=(places - starts[:, None]).clamp(min=0).to(device),
            use_cache=False,
            logits_to_keep=places[width - number :].to(device),
        )
    logits: Tensor = output.logits
    return logits
