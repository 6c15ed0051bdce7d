"""What all algorithms share: aggregation, the penalty towards the reference, the entropy bonus."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from rlforge.algorithms.base import LossInputs, LossOutput, Targets
from rlforge.algorithms.losses import TokenLoss, aggregate, kl_penalty, token_mean
from rlforge.config.schema import AlgorithmConfig
from rlforge.types import Step

#: Whom the penalty measures the distance from: the untrained model, the policy before the update.
KL_TARGETS = ("base", "previous")


class PolicyGradient(ABC):
    """loss = aggregate(policy loss + kl.coef * KL - entropy_coef * entropy), summed per token.

    A subclass gives the advantages and the policy loss. Metrics, all additive: ``policy_loss`` as
    aggregated, ``kl`` and ``entropy`` as means over tokens, and those of the policy loss. The
    distance from the previous policy (``kl.to``) is measured even where its weight is 0: the
    log-probs it needs are there anyway.

    max_tokens: longest answer of the engine, the divisor of aggregation ``constant`` unless
    ``config.max_generation_len`` is set.
    """

    needs_values = False

    def __init__(self, config: AlgorithmConfig, max_tokens: int) -> None:
        self._config = config
        self._max_generation_len = config.max_generation_len or max_tokens

    @property
    def needs_reference(self) -> bool:
        return self._config.kl.coef > 0 and self._config.kl.to == "base"

    @property
    def needs_entropy(self) -> bool:
        return self._config.entropy_coef != 0

    @abstractmethod
    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets: ...

    @abstractmethod
    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy's own loss per token."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Loss of one micro-batch. Raises ValueError when an input it needs is missing."""
        config = self._config
        policy = self.policy_loss(inputs)
        per_token = policy.loss
        metrics = {
            **policy.metrics,
            "policy_loss": self._aggregate(per_token, inputs).detach(),
        }
        if self.needs_reference or config.kl.to == "previous":
            penalty = self._penalty(inputs)
            if config.kl.coef > 0:
                per_token = per_token + config.kl.coef * penalty.loss
            metrics.update(penalty.metrics)
        if self.needs_entropy:
            if inputs.entropy is None:
                raise ValueError("an entropy bonus needs entropy")
            per_token = per_token - config.entropy_coef * inputs.entropy
        if inputs.entropy is not None:
            metrics["entropy"] = token_mean(inputs.entropy, inputs)
        return LossOutput(loss=self._aggregate(per_token, inputs), metrics=metrics)

    def _penalty(self, inputs: LossInputs) -> TokenLoss:
        kl = self._config.kl
        if kl.to == "previous":
            inputs = dataclasses.replace(inputs, ref_logprobs=inputs.old_logprobs)
        with torch.set_grad_enabled(kl.coef > 0):
            return kl_penalty(inputs, kl.estimator, self._config.importance_cap)

    def _aggregate(self, per_token: Tensor, inputs: LossInputs) -> Tensor:
        return aggregate(per_token, inputs, self._config.loss_aggregation, self._max_generation_len)
