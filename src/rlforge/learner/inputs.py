"""What the loss of an update reads: values of the whole batch, and their part in one pass."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rlforge.algorithms.base import LossInputs
from rlforge.learner.batching import MicroBatch
from rlforge.learner.scorer import Scores
from rlforge.types import value


@value
class UpdateInputs:
    """Values computed once per update, for the S steps and N answer tokens of a batch.

    Log-probs of the tokens: behaviour [N], of the engine that sampled them; proximal [N], of the
    policy at the start of the update (an update of a single optimizer step fills it in as it goes);
    reference [N], of the model before training. advantages [S]. values [S], returns [S]: with a
    critic.
    """

    behaviour: Tensor
    proximal: Tensor
    reference: Tensor | None
    advantages: Tensor
    values: Tensor | None
    returns: Tensor | None
    metrics: Mapping[str, float]


def loss_inputs(
    micro: MicroBatch, scores: Scores, inputs: UpdateInputs, total_tokens: int, total_sequences: int
) -> LossInputs:
    """The part of ``inputs`` that belongs to ``micro``, and its ``scores``.

    total_tokens, total_sequences: of the whole optimizer step.
    """

    def of_tokens(numbers: Tensor) -> Tensor:
        return micro.padded(numbers[micro.flat])

    def of_steps(numbers: Tensor | None) -> Tensor | None:
        return None if numbers is None else numbers[micro.steps]

    return LossInputs(
        logprobs=micro.padded(scores.logprobs),
        behaviour_logprobs=of_tokens(inputs.behaviour),
        proximal_logprobs=of_tokens(inputs.proximal),
        mask=micro.mask,
        advantages=inputs.advantages[micro.steps],
        reference_logprobs=None if inputs.reference is None else of_tokens(inputs.reference),
        entropy=None if scores.entropy is None else micro.padded(scores.entropy),
        values=scores.values,
        old_values=of_steps(inputs.values),
        returns=of_steps(inputs.returns),
        total_tokens=total_tokens,
        total_sequences=total_sequences,
    )
