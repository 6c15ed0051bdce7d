"""Inputs of the loss: values of the whole batch, and their part in one pass."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlforge.algorithms.base import LossInputs
from rlforge.learner.batching import MicroBatch
from rlforge.learner.policy import TokenLogprobs
from rlforge.learner.scorer import Scores
from rlforge.types import value


@value
class UpdateInputs:
    """Values computed once per update, for the S samples and N answer tokens of a batch.

    Attributes:
        behaviour [N]: Log-probs of the engine that sampled the tokens.
        proximal: Log-probs of the policy at the start of the update; an update of one optimizer
            step fills them in as it goes.
        advantages [S]: One per sample; with a critic also ``values`` and ``returns``.
        progress: Share of the run's updates that are done.
    """

    behaviour: Tensor
    proximal: TokenLogprobs
    reference: TokenLogprobs | None
    advantages: Tensor
    values: Tensor | None
    returns: Tensor | None
    progress: float
    metrics: Mapping[str, float]


def loss_inputs(
    micro: MicroBatch,
    scores: Scores,
    inputs: UpdateInputs,
    total_tokens: int,
    total_sequences: float,
    present: Tensor | None = None,
) -> LossInputs:
    """Part of ``inputs`` that belongs to ``micro``, with its ``scores``.

    Args:
        total_tokens, total_sequences: Totals of the whole optimizer step.
        present [N]: Log-probs without dropout, where ``scores`` have it.
    """
    legal = scores.legal_logprobs

    def of_tokens(numbers: Tensor) -> Tensor:
        return micro.padded(numbers[micro.flat])

    def of_legal(known: TokenLogprobs | None) -> Tensor | None:
        if legal is None or known is None or known.legal is None:
            return None
        return micro.padded(known.legal[micro.flat, : legal.shape[1]])

    def of_steps(numbers: Tensor | None) -> Tensor | None:
        return None if numbers is None else numbers[micro.samples]

    return LossInputs(
        logprobs=micro.padded(scores.logprobs),
        behaviour_logprobs=of_tokens(inputs.behaviour),
        present_logprobs=None if present is None else micro.padded(present),
        proximal_logprobs=of_tokens(inputs.proximal.sampled),
        mask=micro.mask,
        advantages=inputs.advantages[micro.samples],
        reference_logprobs=(
            None if inputs.reference is None else of_tokens(inputs.reference.sampled)
        ),
        entropy=None if scores.entropy is None else micro.padded(scores.entropy),
        values=scores.values,
        old_values=of_steps(inputs.values),
        returns=of_steps(inputs.returns),
        legal_logprobs=None if legal is None else micro.padded(legal),
        proximal_legal=of_legal(inputs.proximal),
        reference_legal=of_legal(inputs.reference),
        progress=inputs.progress,
        total_tokens=total_tokens,
        total_sequences=total_sequences,
    )
