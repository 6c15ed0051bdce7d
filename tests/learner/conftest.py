"""Real parts for the learner's tests: tiny random Llamas and an algorithm of a few lines."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlforge.algorithms.base import LossInputs, LossOutput, Reference, Targets
from rlforge.config.schema import LearnerConfig, LoraConfig
from rlforge.learner import Learner, PolicySpec
from rlforge.learner.ranks import Ranks
from rlforge.types import Step, TrainBatch

VOCABULARY = 40
PAD = 0


class PolicyGradient:
    """REINFORCE with a token mean, and the optional inputs that a test switches on.

    Keeps every ``LossInputs`` it was given in ``seen``.
    """

    def __init__(
        self, *, reference: bool = False, values: bool = False, entropy: bool = False
    ) -> None:
        self.reference = Reference(to="base") if reference else None
        self.needs_values = values
        self.needs_entropy = entropy
        self.seen: list[LossInputs] = []
        self.critic: list[Sequence[float] | None] = []

    def targets(self, steps: Sequence[Step], values: Sequence[float] | None) -> Targets:
        self.critic.append(values)
        rewards = tuple(step.reward for step in steps)
        return Targets(
            advantages=rewards,
            returns=rewards if values is not None else None,
            metrics={"targets_seen": float(len(steps))},
        )

    def loss(self, inputs: LossInputs) -> LossOutput:
        self.seen.append(inputs)
        weight = inputs.mask / inputs.total_tokens
        loss = -(inputs.logprobs * inputs.advantages[:, None] * weight).sum()
        if inputs.reference_logprobs is not None:
            loss = loss + ((inputs.logprobs - inputs.reference_logprobs) ** 2 * weight).sum()
        if inputs.entropy is not None:
            loss = loss - 0.1 * (inputs.entropy * weight).sum()
        if inputs.values is not None:
            assert inputs.returns is not None
            loss = loss + ((inputs.values - inputs.returns) ** 2).sum() / inputs.total_sequences
        return LossOutput(loss=loss, metrics={"share": weight.sum()})


def make_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    settings = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))


def make_step(**changes: Any) -> Step:
    step = Step(
        game_id="game",
        env_id="env",
        player_id=0,
        group_id=None,
        turn_index=0,
        last_turn=True,
        observation="",
        action="",
        prompt_token_ids=(5, 6, 7),
        token_ids=(8, 9),
        logprobs=(-1.0, -2.0),
        raw_reward=1.0,
        reward=1.0,
        policy_uid="uid",
        policy_version=0,
    )
    return dataclasses.replace(step, **changes)


def make_batch(steps: Sequence[Step]) -> TrainBatch:
    versions = [step.policy_version for step in steps] or [0]
    return TrainBatch(
        steps=tuple(steps),
        whole_episodes=False,
        min_version=min(versions),
        max_version=max(versions),
    )


def random_steps(count: int, seed: int = 0, **changes: Any) -> list[Step]:
    """Steps of different lengths with random tokens, log-probs and rewards."""
    draw = random.Random(seed)
    steps = []
    for _ in range(count):
        answer = draw.randint(1, 5)
        steps.append(
            make_step(
                prompt_token_ids=tuple(
                    draw.randrange(1, VOCABULARY) for _ in range(draw.randint(1, 9))
                ),
                token_ids=tuple(draw.randrange(1, VOCABULARY) for _ in range(answer)),
                logprobs=tuple(-draw.random() for _ in range(answer)),
                reward=draw.uniform(-1, 1),
                **changes,
            )
        )
    return steps


def randomise_adapter(model: torch.nn.Module, seed: int = 1) -> None:
    """B is zero in a fresh adapter, which would hide half of the gradient."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)


def make_learner(
    model: torch.nn.Module | None = None,
    algorithm: Any = None,
    *,
    lora: LoraConfig | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    ranks: Ranks | None = None,
    value_learning_rate: float | None = None,
    initial_value_head: dict[str, torch.Tensor] | None = None,
    max_nonfinite: int = 5,
    total_updates: int | None = None,
    kept_versions: int = 0,
    device: str = "cpu",
    name: str = "",
    beside: Learner | None = None,
    **config: Any,
) -> Learner:
    settings = {"mini_batch_size": 4, "learning_rate": 1e-2, "grad_clip": 1e9}
    spec = PolicySpec(
        model=make_model() if model is None else model,
        lora=lora or LoraConfig(rank=4, alpha=8),
        temperature=temperature,
        pad_token_id=PAD,
        seed=seed,
        initial_value_head=initial_value_head,
    )
    return Learner(
        spec,
        LearnerConfig(**{**settings, **config}),
        algorithm or PolicyGradient(),
        device=device,
        total_updates=total_updates,
        ranks=ranks,
        value_learning_rate=value_learning_rate,
        max_nonfinite=max_nonfinite,
        kept_versions=kept_versions,
        name=name,
        beside=beside,
    )


class Parts:
    """The functions and classes above, by name: tests cannot import from a conftest."""

    PolicyGradient = PolicyGradient
    model = staticmethod(make_model)
    step = staticmethod(make_step)
    batch = staticmethod(make_batch)
    random_steps = staticmethod(random_steps)
    randomise_adapter = staticmethod(randomise_adapter)
    learner = staticmethod(make_learner)

    @staticmethod
    def of_speed(name: str) -> bool:
        """Whether a metric describes the computation of an update, not its result."""
        speed = ("tokens_per_s", "padding_share", "reused_share", "tflops", "memory_peak_gb")
        return name in speed or name.startswith("seconds")

    @staticmethod
    def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """A copy of all parameters."""
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    @staticmethod
    def record_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Filled by each backward pass with the gradient accumulated so far."""
        gradients: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Callable[[torch.Tensor], None]:
            def hook(parameter: torch.Tensor) -> None:
                assert parameter.grad is not None
                gradients[name] = parameter.grad.clone()

            return hook

        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(keep(name))
        return gradients


@pytest.fixture
def parts() -> type[Parts]:
    return Parts


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
