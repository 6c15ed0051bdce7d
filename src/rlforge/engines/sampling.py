"""From logits to tokens: temperature, filters, and draws that do not depend on the batch.

A token is drawn by inverting the cumulative distribution at one uniform number per (request seed,
token index). The numbers come from a counter-based generator, so a request draws the same tokens
alone, in a batch of a hundred, or after a restart.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Most logits worked on at once, so that the float64 copies of big vocabularies stay small.
_CHUNK_ELEMENTS = 1 << 23


def uniforms(
    seeds: npt.NDArray[np.uint64], counters: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row: draw ``counters[i]`` of the stream ``seeds[i]``. Both [B].

    SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    # Started at the mixed seed, so that neighbouring seeds have unrelated streams.
    state = _mix(seeds) + _GOLDEN * (counters + np.uint64(1))
    # The upper 53 bits fill the mantissa of a float64.
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def sampling_logprobs(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor | None = None,
    top_k: Tensor | None = None,
    min_p: Tensor | None = None,
) -> Tensor:
    """Log-probabilities of the distribution that tokens are drawn from.

    float32 [B, V]: log softmax of logits / temperature over the tokens that the filters leave, -inf
    for all others. Filters are applied in vLLM's order: min_p, top_k, top_p. A row with a NaN or
    +inf, or of -inf only, has no distribution and becomes NaN throughout.

    Args:
        logits: [B, V].
        temperature: [B]; 0 is greedy, all mass on the largest logit.
        top_p: [B]; leaves the smallest set whose share of what is left reaches top_p (Holtzman et
            al. 2020, "The curious case of neural text degeneration"); 1 is off, None off in all.
        top_k: [B]; leaves the top_k likeliest tokens and those as likely as the last of them (Fan
            et al. 2018, "Hierarchical neural story generation"); 0 is off.
        min_p: [B]; leaves tokens with at least min_p times the probability of the likeliest one
            (Nguyen et al. 2024, "Turning up the heat: min-p sampling"); 0 is off.

    Example:
        >>> logits, half = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.5])
        >>> sampling_logprobs(logits, torch.ones(1), half).exp()  # 0.67 >= 0.5: one token is left
        tensor([[1., 0., 0.]])
        >>> sampling_logprobs(logits, torch.ones(1), top_k=torch.tensor([2])).exp()
        tensor([[0.7311, 0.2689, 0.0000]])
    """
    logits = logits.float()
    greedy = temperature <= 0
    scale = torch.where(greedy, torch.ones_like(temperature), temperature)
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    # A row whose filter is off stays as it is, to the last bit, among others whose filter is on.
    if min_p is not None:
        least = logprobs.amax(dim=-1) + min_p.log()
        likely = _renormalised(logprobs.masked_fill(logprobs < least[:, None], -torch.inf))
        logprobs = torch.where((min_p > 0)[:, None], likely, logprobs)
    if top_k is not None:
        most = min(int(top_k.max()), logprobs.shape[1])
        best = logprobs.topk(max(most, 1), dim=-1).values
        last = best.gather(1, (top_k.clamp(1, best.shape[1]) - 1)[:, None].long())
        likely = _renormalised(logprobs.masked_fill(logprobs < last, -torch.inf))
        logprobs = torch.where((top_k > 0)[:, None], likely, logprobs)
    if top_p is not None:
        ordered, order = logprobs.sort(dim=-1, descending=True)
        mass = ordered.double().exp()
        # A token stays while the mass before it is short of top_p: the first one always does.
        outside = mass.cumsum(dim=-1) - mass >= top_p[:, None].double()
        outside[:, 0] = False
        ordered = _renormalised(ordered.masked_fill(outside, -torch.inf))
        nucleus = torch.empty_like(ordered).scatter_(1, order, ordered)
        logprobs = torch.where((top_p < 1)[:, None], nucleus, logprobs)
    if bool(greedy.any()):
        point = torch.full_like(logprobs, -torch.inf)
        point.scatter_(1, logits.argmax(dim=-1, keepdim=True), 0.0)
        # log_softmax makes all of a row NaN, or nothing.
        logprobs = torch.where(greedy[:, None] & ~logprobs[:, :1].isnan(), point, logprobs)
    return logprobs


def _renormalised(logprobs: Tensor) -> Tensor:
    return logprobs - logprobs.logsumexp(dim=-1, keepdim=True)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_p: Tensor | None,
    uniform: Tensor,
    top_k: Tensor | None = None,
    min_p: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw K tokens per row, each for itself, by ``uniform`` (float64 [B, K] in [0, 1)).

    All others are as in ``sampling_logprobs``. Returns token ids, int64 [B, K], and their float32
    log-probs; where one is NaN the token means nothing.
    """
    rows = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    filters = (top_p, top_k, min_p)
    parts = [
        _sample_rows(
            uniform[i : i + rows],
            logits[i : i + rows],
            temperature[i : i + rows],
            *(None if given is None else given[i : i + rows] for given in filters),
        )
        for i in range(0, logits.shape[0], rows)
    ]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([tokens for tokens, _ in parts]), torch.cat([values for _, values in parts])


def _sample_rows(
    uniform: Tensor, logits: Tensor, temperature: Tensor, *filters: Tensor | None
) -> tuple[Tensor, Tensor]:
    logprobs = sampling_logprobs(logits, temperature, *filters)
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Strictly below the total, so that some entry exceeds it. The first entry to do so is a token
    # with mass: one without mass equals the entry before it.
    target = torch.minimum(uniform * total, torch.nextafter(total, total.new_zeros(())))
    tokens = torch.searchsorted(cumulative, target, right=True)
    # For NaN the search ends after the last entry, where a gather is a fatal error on a GPU.
    tokens = tokens.clamp(max=logits.shape[1] - 1)
    return tokens, logprobs.gather(1, tokens)
