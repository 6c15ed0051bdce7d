"""Terms of every policy loss, as functions of [B, T] tensors.

B sequences, T answer tokens; ``mask`` is 1.0 on answer tokens and 0.0 on padding, whose values are
ignored. Losses are minimised.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlforge.algorithms.base import LossInputs
from rlforge.types import value

# exp(20) = 5e8: far beyond every clip and cap, far below what overflows float32.
_MAX_LOG_RATIO = 20.0


@value
class TokenLoss:
    """Loss [B, T] per token, with gradient, and metrics that add up over micro-batches.

    Example:
        >>> TokenLoss(loss=torch.tensor([[0.5, -0.5]]), metrics={}).loss.sum().item()
        0.0
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


def ratio(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """exp(logprobs - others) [B, T], bounded so that it never overflows; 1 on padding."""
    return log_ratio(logprobs, others, mask).clamp(max=_MAX_LOG_RATIO).exp()


def log_ratio(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """logprobs - others [B, T]; 0 on padding."""
    # Not a product with the mask: padding may hold nan, and 0 * nan is nan.
    return torch.where(mask > 0, logprobs - others, 0.0)


def sequence_ratio(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """Geometric mean s_b of each sequence's ratios, at each of its tokens [B, T].

    The gradient at token t is s_b grad log pi(t): the mean over tokens has the gradient of s_b
    itself, and weights per token stay possible (GSPO-token, Zheng et al. 2025, section 4.3).

    Example:
        >>> old = torch.tensor([[-1.0, -1.0]])
        >>> sequence_ratio(old + torch.tensor([[1.0, -1.0]]), old, torch.ones(1, 2))
        tensor([[1., 1.]])
    """
    logs = log_ratio(logprobs, others, mask)
    mean = logs.detach().sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1.0)
    return (mean + logs - logs.detach()).clamp(max=_MAX_LOG_RATIO).exp()


def token_mean(values: Tensor, inputs: LossInputs) -> Tensor:
    """Contribution of this micro-batch to the mean of ``values`` [B, T] over all answer tokens."""
    total = torch.where(inputs.mask > 0, values, 0.0).sum()
    return total.detach() / max(1, inputs.total_tokens)


def aggregate(loss: Tensor, inputs: LossInputs, how: str, max_generation_len: int) -> Tensor:
    """Scalar loss from per-token losses [B, T]; micro-batches sum to that of the step.

    With L_bt the loss of token t of sequence b, N sequences and n_b tokens in sequence b:

    Args:
        how: ``token_mean`` is sum_bt L_bt / sum_b n_b (DAPO, Yu et al. 2025); ``sequence_mean``
            sum_b (1 / n_b) sum_t L_bt / N (GRPO, Shao et al. 2024, eq. 3); ``constant`` sum_bt L_bt
            / (N * max_generation_len) (Dr. GRPO, Liu et al. 2025).
    """
    # token_mean weighs all tokens alike, sequence_mean those of long answers less.
    per_sequence = torch.where(inputs.mask > 0, loss, 0.0).sum(dim=1)
    if how == "token_mean":
        return per_sequence.sum() / max(1, inputs.total_tokens)
    if how == "sequence_mean":
        lengths = inputs.mask.sum(dim=1).clamp(min=1.0)
        return (per_sequence / lengths).sum() / max(1, inputs.total_sequences)
    if how == "constant":
        return per_sequence.sum() / (max(1, inputs.total_sequences) * max_generation_len)
    raise ValueError(f"no such aggregation: {how!r}")


def importance_weights(
    logprobs: Tensor, inputs: LossInputs, cap: float | None, floor: float | None = None
) -> TokenLoss:
    """Importance weights exp(logprobs - behaviour) [B, T], bounded, without gradient, as ``loss``.

    They correct for an engine whose distribution differs: another kernel, an older version.

    Args:
        cap: min(w, cap) (V-trace, Espeholt et al. 2018; truncated importance sampling, Yao et al.
            2025); None: all ones.
        floor: 0 where w is outside [floor, cap] (masked importance sampling: IcePop, Ling Team
            2025, arXiv:2510.18855, eq. 5). Masked tokens still count in the totals of means.
    """
    if cap is None:
        return TokenLoss(loss=torch.ones_like(logprobs), metrics={})
    raw = ratio(logprobs.detach(), inputs.behaviour_logprobs, inputs.mask)
    if floor is None:
        name, outside, weights = "importance_capped_fraction", raw > cap, raw.clamp(max=cap)
    else:
        name, outside = "importance_masked_fraction", (raw < floor) | (raw > cap)
        weights = torch.where(outside, 0.0, raw)
    return TokenLoss(
        loss=weights,
        metrics={
            "importance_weight_mean": token_mean(weights, inputs),
            name: token_mean(outside.float(), inputs),
        },
    )


def score_function_loss(
    inputs: LossInputs, cap: float | None, floor: float | None = None
) -> TokenLoss:
    """-w_t A log pi(a_t | s_t) (Williams 1992), w_t of ``importance_weights(cap, floor)``."""
    weights = importance_weights(_present(inputs), inputs, cap, floor)
    loss = -weights.loss * inputs.advantages[:, None] * _logprobs(inputs)
    return TokenLoss(loss=loss, metrics=weights.metrics)


def cispo_loss(
    inputs: LossInputs,
    cap: float | None,
    clip_low: float,
    clip_high: float,
    floor: float | None = None,
) -> TokenLoss:
    """-w_t sg[clip(r_t, 1 - clip_low, 1 + clip_high)] A log pi(a_t | s_t), r_t = pi / pi_old.

    CISPO (MiniMax-M1, Chen et al. 2025, arXiv:2506.13585, eq. 4). pi_old and w_t are as in
    ``clipped_loss``. ``clip_low`` 1 leaves no lower bound. ``clip_fraction``: share of the tokens
    whose ratio is clipped.

    Example:
        >>> logprobs, old = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])  # r = e
        >>> inputs = LossInputs(
        ...     logprobs=logprobs, behaviour_logprobs=old, proximal_logprobs=old,
        ...     mask=torch.ones(1, 1), advantages=torch.tensor([2.0]),
        ...     total_tokens=1, total_sequences=1,
        ... )
        >>> cispo_loss(inputs, None, 1.0, 0.5).loss  # -(1 + 0.5) * 2 * -1
        tensor([[3.]])
    """
    weights = importance_weights(inputs.proximal_logprobs, inputs, cap, floor)
    # The ratio has no gradient, so that clipping bounds the step on a token and never drops it.
    ratios = ratio(inputs.logprobs.detach(), inputs.proximal_logprobs, inputs.mask)
    clipped = ratios.clamp(1 - clip_low, 1 + clip_high)
    loss = -weights.loss * clipped * inputs.advantages[:, None] * _logprobs(inputs)
    cut = token_mean((clipped != ratios).float(), inputs)
    return TokenLoss(loss=loss, metrics={**weights.metrics, "clip_fraction": cut})


def _present(inputs: LossInputs) -> Tensor:
    """Log-probs of the policy in training for importance weights."""
    return inputs.logprobs if inputs.present_logprobs is None else inputs.present_logprobs


def _logprobs(inputs: LossInputs) -> Tensor:
    """Log-probs with gradient; 0 on padding."""
    return torch.where(inputs.mask > 0, inputs.logprobs, 0.0)


def clipped_loss(
    inputs: LossInputs,
    cap: float | None,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    floor: float | None = None,
    *,
    sequences: bool = False,
) -> TokenLoss:
    """-w_t min(r_t A, clip(r_t, 1 - clip_low, 1 + clip_high) A), r_t = pi / pi_old per token.

    PPO (Schulman et al. 2017, eq. 7) with separate bounds (DAPO's "clip-higher"). pi_old is the
    proximal policy; w_t = pi_old / pi_behaviour corrects for the engine (decoupled PPO, Hilton et
    al. 2022). ``clip_fraction``: share of tokens whose gradient a bound sets to zero.

    Args:
        cap, floor: Bounds of w_t, as in ``importance_weights``.
        dual_clip: Where A < 0 the objective is at least ``dual_clip`` * A (Ye et al. 2020, eq. 5).
        sequences: r_t is ``sequence_ratio``, so that answers are clipped as a whole (GSPO, Zheng et
            al. 2025, arXiv:2507.18071, eq. 5-7, with ``loss_aggregation: sequence_mean``).

    Example:
        >>> logprobs, old = torch.tensor([[-1.0]]), torch.tensor([[-2.0]])  # r = e
        >>> inputs = LossInputs(
        ...     logprobs=logprobs, behaviour_logprobs=old, proximal_logprobs=old,
        ...     mask=torch.ones(1, 1), advantages=torch.tensor([2.0]),
        ...     total_tokens=1, total_sequences=1,
        ... )
        >>> clipped_loss(inputs, None, 0.2, 0.5, None).loss  # -(1 + 0.5) * 2
        tensor([[-3.]])
    """
    weights = importance_weights(inputs.proximal_logprobs, inputs, cap, floor)
    ratio_of = sequence_ratio if sequences else ratio
    ratios = ratio_of(inputs.logprobs, inputs.proximal_logprobs, inputs.mask)
    advantages = inputs.advantages[:, None]
    plain = ratios * advantages
    clipped = ratios.clamp(1 - clip_low, 1 + clip_high) * advantages
    objective = torch.minimum(plain, clipped)
    cut = clipped < plain
    # Where A < 0 the minimum does not bound the gradient at huge ratios.
    if dual_clip is not None:
        least = dual_clip * advantages
        cut = cut | ((advantages < 0) & (objective < least))
        objective = torch.where(advantages < 0, torch.maximum(objective, least), objective)
    return TokenLoss(
        loss=-weights.loss * objective,
        metrics={**weights.metrics, "clip_fraction": token_mean(cut.float(), inputs)},
    )


def kl_penalty(
    inputs: LossInputs, estimator: str, cap: float | None, floor: float | None = None
) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref) [B, T] from the sampled tokens.

    With d = log pi - log pi_ref (Schulman 2020, "Approximating KL divergence"): k1 = d, k2 = d^2 /
    2, k3 = exp(-d) - 1 + d. k1 and k3 are unbiased; only k1 may be negative. Gradients in
    expectation under pi (Tang and Munos 2025): k1 and k2 give that of KL(pi || pi_ref); k3 that of
    KL(pi_ref || pi), as in GRPO (Shao et al. 2024, eq. 4): equal to first order, and bounded where
    pi_ref is the smaller. Weights pi / pi_behaviour (``importance_weights``) correct for the
    behaviour policy.
    """
    if inputs.reference_logprobs is None:
        raise ValueError("a KL penalty needs reference_logprobs")
    d = log_ratio(inputs.logprobs, inputs.reference_logprobs, inputs.mask)
    if estimator == "k1":
        # The derivative of d is grad log pi, zero on average. A term of value 0 replaces it by d *
        # grad log pi, the score-function gradient.
        score = d.detach() * d
        estimate = d.detach() + score - score.detach()
    elif estimator == "k2":
        estimate = 0.5 * d.square()
    elif estimator == "k3":
        estimate = (-d).clamp(max=_MAX_LOG_RATIO).exp() - 1.0 + d
    else:
        raise ValueError(f"no such KL estimator: {estimator!r}")
    return importance_weights(_present(inputs), inputs, cap, floor).loss * estimate


def legal_entropy(legal_logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy [...] in nats of log-probs [..., K] renormalised over the K legal tokens.

    Minus infinity stands for an absent token. The second result is False, and the entropy 0, where
    all are absent. Summed over an answer's tokens, the mean over answers is the entropy of the
    distribution over legal answers.

    Example: two legal tokens of equal probability, whatever is left to others.
        >>> legal_entropy(torch.tensor([[-3.0, -3.0, float("-inf")]]))  # log 2
        (tensor([0.6931]), tensor([True]))
    """
    logs, known = _over_legal(legal_logprobs)
    return -(logs.exp() * logs).masked_fill(legal_logprobs.isneginf(), 0.0).sum(-1), known


def legal_kl(legal_logprobs: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """KL(pi || other) [...] of log-probs [..., K], both renormalised over the legal tokens.

    The second result is as in ``legal_entropy``.

    Example:
        >>> ours, theirs = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-5.0, -5.0]])
        >>> legal_kl(ours, theirs)[0]  # the same once they are renormalised
        tensor([0.])
    """
    logs, known = _over_legal(legal_logprobs)
    reference, _ = _over_legal(others)
    terms = logs.exp() * (logs - reference)
    return terms.masked_fill(legal_logprobs.isneginf(), 0.0).sum(-1), known


def _over_legal(logprobs: Tensor) -> tuple[Tensor, Tensor]:
    """Renormalised log-probs [..., K], 0 where absent; whether any is present [...]."""
    absent = logprobs.isneginf()
    known = ~absent.all(-1)
    total = logprobs.masked_fill(~known[..., None], 0.0).logsumexp(-1, keepdim=True)
    # Absent tokens are 0 before the subtraction, too: infinity minus infinity would be nan, also
    # in gradients.
    return (logprobs.masked_fill(absent, 0.0) - total).masked_fill(absent, 0.0), known


def value_loss(inputs: LossInputs, value_clip: float | None) -> Tensor:
    """Critic's mean squared error sum_b (V_b - R_b)^2 / N over the optimizer step.

    value_clip: takes the larger of the errors of V and of V clamped to within ``value_clip`` of its
    value at the start of the update (OpenAI Baselines, Dhariwal et al. 2017).
    """
    if inputs.values is None or inputs.returns is None:
        raise ValueError("a critic needs values and returns")
    errors = (inputs.values - inputs.returns).square()
    if value_clip is not None:
        if inputs.old_values is None:
            raise ValueError("a value clip needs old_values")
        change = (inputs.values - inputs.old_values).clamp(-value_clip, value_clip)
        # The worse error counts, so that no step beyond the clip pays.
        errors = torch.maximum(errors, (inputs.old_values + change - inputs.returns).square())
    return errors.sum() / max(1, inputs.total_sequences)
