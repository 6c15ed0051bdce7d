"""The interface between learner and algorithm.

Shapes: B sequences in a micro-batch, T answer tokens (padded). Loss, gradient and
metrics of an optimizer step are sums over its micro-batches, of any sizes: every mean divides by
the totals of the whole optimizer step, which ``LossInputs`` carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from rlforge.samples import Sample
from rlforge.types import value


@value
class Targets:
    """Per sample of a batch, in order: its advantage and, for a critic, its value target.

    metrics: statistics of the targets, e.g. ``constant_groups``.

    Example:
        >>> Targets(advantages=(0.5, -0.5), metrics={"groups": 1.0}).returns is None
        True
    """

    advantages: tuple[float, ...]
    returns: tuple[float, ...] | None = None
    metrics: Mapping[str, float]


@value
class LossInputs:
    """One micro-batch.

    logprobs [B, T]: of the sampled tokens under the policy being trained, with gradient.
    present_logprobs [B, T] | None: the same without gradient and without dropout of the adapter,
        for importance weights; None: there is no dropout.
    behaviour_logprobs [B, T]: of the engine that sampled the tokens.
    proximal_logprobs [B, T]: of the policy at the start of the update, without gradient; equal to
        ``logprobs.detach()`` when the update makes a single optimizer step.
    mask [B, T]: 1.0 for answer tokens, 0.0 for padding. advantages [B].
    reference_logprobs [B, T] | None: of the ``Algorithm.reference``. entropy [B, T] | None: in
        nats, over the vocabulary.
    legal_logprobs [B, T, K] | None: of the tokens with which a legal answer goes on, under the
        policy being trained, with gradient; minus infinity beyond their number, and at all K where
        they are not known. proximal_legal, reference_legal [B, T, K] | None: the same tokens under
        the other two policies.
    progress: share of the run's updates that are done, in [0, 1).
    values, old_values, returns [B] | None: the critic's estimate at the last prompt token, with
        gradient; the same at the start of the update; its target.
    total_tokens, total_sequences: of the whole optimizer step, with its part of the samples of
        which ``learner.max_train_len`` leaves only the prompt.

    Example: one answer of two tokens.
        >>> from torch import tensor
        >>> logprobs = tensor([[-0.1, -2.0]])
        >>> inputs = LossInputs(
        ...     logprobs=logprobs, behaviour_logprobs=logprobs, proximal_logprobs=logprobs,
        ...     mask=tensor([[1.0, 1.0]]), advantages=tensor([0.5]),
        ...     total_tokens=2, total_sequences=1,
        ... )
        >>> tuple(inputs.mask.shape)
        (1, 2)
    """

    logprobs: Tensor
    behaviour_logprobs: Tensor
    proximal_logprobs: Tensor
    mask: Tensor
    advantages: Tensor
    present_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None
    legal_logprobs: Tensor | None = None
    proximal_legal: Tensor | None = None
    reference_legal: Tensor | None = None
    progress: float = 0.0
    total_tokens: int
    total_sequences: float


@value
class Reference:
    """The policy that a KL penalty holds the trained one to.

    to: ``base``, the model before training; ``snapshot``, the policy after the last update whose
    number ``every`` divides; ``average``, the learner's average of its policies.

    Example:
        >>> Reference(to="snapshot", every=40).every
        40
    """

    to: Literal["base", "snapshot", "average"]
    every: int = 1


@value
class LossOutput:
    """loss: scalar with gradient. metrics: scalars without it, which add up over micro-batches.

    Kept as device tensors; reading a value forces a CUDA synchronisation.

    Example:
        >>> from torch import tensor
        >>> LossOutput(loss=tensor(0.25), metrics={"kl": tensor(0.01)}).loss.item()
        0.25
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Algorithm(Protocol):
    """Advantages from a batch of samples, and the loss of a micro-batch. Pure; holds only config.

    Example: see ``rlforge.algorithms.make_algorithm``.
    """

    @property
    def reference(self) -> Reference | None:
        """The policy whose ``reference_logprobs`` must be given; None: they are not read."""

    @property
    def needs_values(self) -> bool:
        """Whether the learner must carry a value head and the batch whole episodes."""

    @property
    def needs_entropy(self) -> bool:
        """Whether ``entropy`` must be given with gradient."""

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        """Advantages (and returns) of a batch's samples; ``values``: critic estimates or None."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Loss of one micro-batch."""
