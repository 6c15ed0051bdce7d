"""REINFORCE, GRPO and window GRPO without a critic, A2C and PPO with one; supervised learning."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from rlforge.algorithms.advantages import (
    Formula,
    episodes_of,
    explained_variance,
    generalized_advantages,
    group_metrics,
    in_groups,
    leave_one_out,
    max_rl,
    standardize,
    turn_rewards,
)
from rlforge.algorithms.base import LossInputs, LossOutput, Reference, Targets
from rlforge.algorithms.losses import (
    TokenLoss,
    aggregate,
    cispo_loss,
    clipped_loss,
    kl_penalty,
    legal_entropy,
    legal_kl,
    score_function_loss,
    token_mean,
    value_loss,
)
from rlforge.config.training import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
    PpoConfig,
    RatioConfig,
    ReinforceConfig,
    SupervisedConfig,
    WindowGrpoConfig,
)
from rlforge.rewards.sampling import is_constant
from rlforge.samples import Sample

Config = TypeVar("Config", bound=AlgorithmConfig)


class PolicyGradient(ABC, Generic[Config]):
    """loss = aggregate(L + kl.coef KL(pi || reference) + proximal_coef KL(pi || pi_old) -
    entropy_coef H(pi)) of per-token terms, L the policy loss.

    A subclass gives advantages and policy loss; ``config_class`` holds its settings. Metrics, all
    additive: ``policy_loss`` as aggregated; ``kl``, ``proximal_kl``, ``entropy`` and
    ``legal_entropy`` as means over tokens; those of the policy loss.

    ``max_tokens``, the longest answer of the engine, is the divisor of aggregation ``constant``
    unless ``config.max_generation_len`` is set.

    Example: each reward against the mean of the batch.
        >>> class Centred(Reinforce):
        ...     def targets(self, samples, values):
        ...         mean = sum(sample.reward for sample in samples) / len(samples)
        ...         return Targets(advantages=tuple(s.reward - mean for s in samples), metrics={})
        >>> Centred(ReinforceConfig(), max_tokens=64).needs_values
        False
    """

    config_class: ClassVar[type[AlgorithmConfig]]
    needs_values = False

    def __init__(self, config: Config, max_tokens: int) -> None:
        self.config = config
        self._max_generation_len = config.max_generation_len or max_tokens

    @property
    def reference(self) -> Reference | None:
        kl = self.config.kl
        if kl.coef == 0 or kl.to == "previous":
            return None
        return Reference(to=kl.to, every=kl.refresh_every)

    @property
    def moving_reference(self) -> bool:
        """Whether the policy follows a snapshot or average of itself, or a mirror descent.

        Such an algorithm (``nash_pg``, ``mmd``) steps without signal, too. A subclass may set it.
        """
        kl = self.config.kl
        followed = kl.coef > 0 and kl.to in ("snapshot", "average")
        return followed or self.config.proximal_coef > 0

    @property
    def needs_entropy(self) -> bool:
        return self.config.entropy_coef != 0

    @abstractmethod
    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets: ...

    @abstractmethod
    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        """Policy loss per token."""

    def loss(self, inputs: LossInputs) -> LossOutput:
        """Loss of one micro-batch. Raises ValueError when an input it needs is missing."""
        config = self.config
        policy = self.policy_loss(inputs)
        per_token = policy.loss
        metrics = {**policy.metrics, "policy_loss": self._aggregate(per_token, inputs).detach()}
        for name, coef, given in self._penalties(inputs):
            # A penalty without weight is only measured, which needs no graph.
            with torch.set_grad_enabled(coef > 0):
                penalty = self._penalty(given)
            if coef > 0:
                per_token = per_token + coef * penalty
            metrics[name] = token_mean(penalty, inputs)
        if self.needs_entropy:
            if inputs.entropy is None:
                raise ValueError("an entropy bonus needs entropy")
            bonus = inputs.entropy
            if config.entropy_over == "legal" and inputs.legal_logprobs is not None:
                legal, known = legal_entropy(inputs.legal_logprobs)
                # Once an answer is illegal, its tokens get no bonus: variety gains nothing there.
                bonus = torch.where(known.any(-1, keepdim=True), legal, bonus)
                metrics["legal_entropy"] = token_mean(legal, inputs)
            coef = annealed(config.entropy_coef, config.entropy_final_ratio, inputs.progress)
            per_token = per_token - coef * bonus
        if inputs.entropy is not None:
            metrics["entropy"] = token_mean(inputs.entropy, inputs)
        return LossOutput(loss=self._aggregate(per_token, inputs), metrics=metrics)

    def _penalties(self, inputs: LossInputs) -> Iterator[tuple[str, float, LossInputs]]:
        """Metric, weight, and ``inputs`` with its reference, of each KL penalty."""
        kl = self.config.kl
        coef = annealed(kl.coef, kl.final_ratio, inputs.progress)
        if kl.to == "previous":
            # This KL is measured even where the coefficient is 0: its log-probs exist anyway.
            yield "kl", coef, _with_previous(inputs)
        elif self.reference is not None:
            yield "kl", coef, inputs
        if self.config.proximal_coef > 0:
            yield "proximal_kl", self.config.proximal_coef, _with_previous(inputs)

    def _penalty(self, inputs: LossInputs) -> Tensor:
        """KL to ``inputs.reference_logprobs`` per token: exact over legal actions, or estimated."""
        config = self.config
        penalty = kl_penalty(
            inputs, config.kl.estimator, config.importance_cap, config.masked_below
        )
        if (
            config.kl.over == "tokens"
            or inputs.legal_logprobs is None
            or inputs.reference_legal is None
        ):
            return penalty
        legal, known = legal_kl(inputs.legal_logprobs, inputs.reference_legal)
        # ``legal`` is 0 where no legal token is known: there the policy would move freely.
        return torch.where(known, legal, penalty)

    def _aggregate(self, per_token: Tensor, inputs: LossInputs) -> Tensor:
        return aggregate(per_token, inputs, self.config.loss_aggregation, self._max_generation_len)


class Reinforce(PolicyGradient[AlgorithmConfig]):
    """grad J = E[A grad log pi(a | s)] (Williams 1992), with the shaped reward as A.

    Baselines are reward transforms (``role_advantage_by_env``, ``normalize_by_env``). The bounded
    importance weight is the only bias.

    Example:
        >>> Reinforce(ReinforceConfig(entropy_coef=0.01), max_tokens=64).needs_entropy
        True
    """

    config_class = ReinforceConfig

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        return Targets(advantages=tuple(sample.reward for sample in samples), metrics={})

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self.config.importance_cap, self.config.masked_below)


class Grpo(PolicyGradient[GrpoConfig]):
    """A loss of the policy ratio, on advantages relative to a group of games from the same start.

    ``algorithm=grpo`` is Shao et al. 2024 (DeepSeekMath), eq. 3, published with aggregation
    ``sequence_mean`` and KL estimator k3. Dr. GRPO (Liu et al. 2025) is ``normalize_std: false``
    with ``loss_aggregation: constant``. GSPO, CISPO, RLOO, MaxRL and DAPO set ``loss``,
    ``advantage`` and ``dynamic_sampling``: ``algorithm=gspo`` and so on.

    Example:
        >>> Grpo(GrpoConfig(group_size=8), max_tokens=64).config.group_size
        8
    """

    config_class = GrpoConfig

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        formulas: dict[str, Formula] = {
            "group_relative": partial(standardize, divide=self.config.normalize_std),
            "leave_one_out": leave_one_out,
            "max_rl": max_rl,
        }
        return in_groups(samples, formulas[self.config.advantage])

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return ratio_loss(inputs, self.config)


class Supervised(PolicyGradient[SupervisedConfig]):
    """-log pi(a_t | s_t) per answer token: the score-function loss at advantage 1, unweighted.

    Its mean is the answers' cross-entropy. Rewards and engine log-probs are not read.

    Example:
        >>> Supervised(SupervisedConfig(), max_tokens=64).targets((), None).advantages
        ()
    """

    config_class = SupervisedConfig

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        return Targets(advantages=(1.0,) * len(samples), metrics={})

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, None)


class WindowGrpo(PolicyGradient[WindowGrpoConfig]):
    """The clipped objective on the decisions of a time window, grouped by agent.

    A group is an agent's decisions in the batch: samples of one episode, which need not be whole.
    ``advantage: documented`` is r - mean over the batch, ``group_relative`` r - mean of the agent.
    With ``kl.to: previous`` the objective is E[log pi(a | s) A] - beta KL(pi || pi_old) within the
    clip.
    """

    config_class = WindowGrpoConfig

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        rewards = [sample.reward for sample in samples]
        by_agent: dict[tuple[str, int], list[int]] = {}
        for index, sample in enumerate(samples):
            by_agent.setdefault(sample.episode, []).append(index)
        # Metrics count agents even where the whole batch is compared.
        agents = list(by_agent.values())
        compared = [list(range(len(samples)))] if self.config.advantage == "documented" else agents
        advantages = [0.0] * len(samples)
        for group in compared:
            relative = standardize([rewards[i] for i in group], self.config.normalize_std)
            for index, advantage in zip(group, relative, strict=True):
                advantages[index] = advantage
        constant = sum(is_constant([rewards[i] for i in group]) for group in agents)
        return Targets(advantages=tuple(advantages), metrics=group_metrics(len(agents), constant))

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return ratio_loss(inputs, self.config)


CriticConfig = TypeVar("CriticConfig", bound=A2cConfig)


class ActorCritic(PolicyGradient[CriticConfig]):
    """GAE over a player's turns; the loss is policy loss + value_coef * (V - R)^2.

    The critic V is a value head on the last prompt token of every turn; all tokens of a turn share
    its advantage. The return is R_t = A_t + V_t (TD(lambda)). Discount with ``gamma``; the step
    transform ``discount`` is for algorithms without a critic.
    """

    needs_values = True

    def targets(self, samples: Sequence[Sample], values: Sequence[float] | None) -> Targets:
        """Raises ValueError without values, RunError where an episode is not whole."""
        if values is None or len(values) != len(samples):
            raise ValueError("an actor-critic needs one value per sample")
        config = self.config
        advantages: list[float] = []
        for where in episodes_of(samples):
            advantages += generalized_advantages(
                turn_rewards(samples[where]), values[where], config.gamma, config.gae_lambda
            )
        returns = tuple(a + v for a, v in zip(advantages, values, strict=True))
        # Normalised after the returns, because the critic learns them in units of reward.
        if config.normalize_advantages:
            advantages = standardize(advantages)
        return Targets(
            advantages=tuple(advantages),
            returns=returns,
            metrics={"explained_variance": explained_variance(values, returns)},
        )

    def loss(self, inputs: LossInputs) -> LossOutput:
        output = super().loss(inputs)
        critic = self.critic_loss(inputs)
        return LossOutput(
            loss=output.loss + self.config.value_coef * critic,
            metrics={**output.metrics, "value_loss": critic.detach()},
        )

    def critic_loss(self, inputs: LossInputs) -> Tensor:
        return value_loss(inputs, value_clip=None)


class A2c(ActorCritic[A2cConfig]):
    """Advantage actor-critic (Mnih et al. 2016): the score-function loss on GAE advantages.

    Example:
        >>> A2c(A2cConfig(), max_tokens=64).needs_values
        True
    """

    config_class = A2cConfig

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return score_function_loss(inputs, self.config.importance_cap, self.config.masked_below)


class Ppo(ActorCritic[PpoConfig]):
    """Proximal policy optimisation (Schulman et al. 2017): the clipped loss on GAE advantages.

    Example:
        >>> Ppo(PpoConfig(clip_high=0.28), max_tokens=64).needs_values
        True
    """

    config_class = PpoConfig

    def policy_loss(self, inputs: LossInputs) -> TokenLoss:
        return ratio_loss(inputs, self.config)

    def critic_loss(self, inputs: LossInputs) -> Tensor:
        return value_loss(inputs, self.config.value_clip)


def _with_previous(inputs: LossInputs) -> LossInputs:
    """``inputs`` with the policy at the start of the update as the reference."""
    return dataclasses.replace(
        inputs, reference_logprobs=inputs.proximal_logprobs, reference_legal=inputs.proximal_legal
    )


def annealed(coef: float, final_ratio: float, progress: float) -> float:
    """``coef`` at the first update, ``final_ratio`` times it at the end, linear in between.

    Example:
        >>> annealed(0.2, final_ratio=0.5, progress=0.5)
        0.15000000000000002
    """
    return coef * (1.0 + (final_ratio - 1.0) * progress)


def ratio_loss(inputs: LossInputs, config: RatioConfig) -> TokenLoss:
    """Policy loss that ``config.loss`` names, with the bounds of ``config``."""
    cap, floor = config.importance_cap, config.masked_below
    low, high = config.clip_low, config.clip_high
    if config.loss == "score_function":
        return score_function_loss(inputs, cap, floor)
    if config.loss == "cispo":
        return cispo_loss(inputs, cap, low, high, floor)
    by_sequence = config.loss == "sequence_clip"
    return clipped_loss(inputs, cap, low, high, config.dual_clip, floor, sequences=by_sequence)
