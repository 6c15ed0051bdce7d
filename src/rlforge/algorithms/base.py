"""Interface between learner and algorithm.

Shapes: B sequences of a micro-batch, T answer tokens (padded). Loss, gradient and metrics of an
optimizer step are sums over its micro-batches, so every mean divides by the step's totals, which
``LossInputs`` carries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from rlforge.samples import Sample
from rlforge.types import value


@value
class Targets:
    """Advantage and, for a critic, value target of each sample of a batch, in order.

    ``metrics`` describe the targets, e.g. ``constant_groups``.

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

    Attributes:
        logprobs [B, T]: Sampled tokens under the policy in training, with gradient.
        present_logprobs [B, T]: The same without gradient and adapter dropout, for importance
            weights; None without dropout.
        behaviour_logprobs [B, T]: Under the engine that sampled them.
        proximal_logprobs [B, T]: Under the policy at the start of the update; ``logprobs.detach()``
            when the update makes one optimizer step.
        mask [B, T]: 1.0 for answer tokens, 0.0 for padding.
        advantages [B]: One per sequence.
        reference_logprobs [B, T]: Under ``Algorithm.reference``, if it has one.
        entropy [B, T]: In nats, over the vocabulary, if it was asked for.
        legal_logprobs [B, T, K]: Under the policy in training, with gradient, the tokens with which
            a legal answer goes on, padded with minus infinity.
        proximal_legal, reference_legal [B, T, K]: The same tokens under the other two policies.
        progress: Share of the run's updates that are done, in [0, 1).
        values, old_values, returns [B]: Critic's estimate at the last prompt token, with gradient;
            at the start of the update; its target.
        total_tokens, total_sequences: Totals of the whole optimizer step, with its part of the
            samples that ``learner.max_train_len`` leaves no answer.

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
    """Policy that a KL penalty holds the trained one to.

    Attributes:
        to: ``base`` is the model before training, ``snapshot`` the policy after the last update
            whose number ``every`` divides, ``average`` the learner's average of its policies.

    Example:
        >>> Reference(to="snapshot", every=40).every
        40
    """

    to: Literal["base", "snapshot", "average"]
    every: int = 1


@value
class LossOutput:
    """Scalar loss with gradient, and metrics that add up over micro-batches.

    Both stay on the device; reading a value forces a CUDA synchronisation.

    Example:
        >>> from torch import tensor
        >>> LossOutput(loss=tensor(0.25), metrics={"kl": tensor(0.01)}).loss.item()
        0.25
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


class Algorithm(Protocol):
    """Advantages of a batch, and loss of a micro-batch. Pure; holds only its config.

    An algorithm may also have an attribute or property ``moving_reference``. Where it is true, the
    policy steps towards a reference that moves on purpose, and batches without signal are no
    reason to skip the step (``rlforge.algorithms.advantages.has_signal``).

    Example: see ``rlforge.algorithms.make_algorithm``.
    """

    @property
    def reference(self) -> Reference | None:
        """Policy whose ``reference_logprobs`` are read; None: no policy."""

    @property
    def needs_values(self) -> bool:
        """Whether it needs a value head, and batches of whole episodes."""

    @property
    def needs_entropy(self) -> bool:
        """Whether ``entropy`` must be given with gradient."""

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        """Advantages and returns; ``values`` are the critic's estimates, None without one."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Loss of one micro-batch."""
