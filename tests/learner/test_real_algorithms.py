"""The learner with the algorithms that ship."""

import dataclasses
import math
import random

import pytest
import torch
from tests.harness.composed import composed
from tests.learner import parts

from rlforge.algorithms import make_algorithm
from rlforge.config.training import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
    KlConfig,
    PpoConfig,
    ReinforceConfig,
)

SHARED = {"kl": KlConfig(coef=0.05), "entropy_coef": 0.01}
CONFIGS = {
    "reinforce": AlgorithmConfig(**SHARED),
    "grpo": GrpoConfig(**SHARED, group_size=4),
    "a2c": A2cConfig(**SHARED),
    "ppo": PpoConfig(**SHARED, value_clip=0.2),
    **{name: composed(f"algorithm={name}").config.algorithm for name in ("gspo", "cispo", "rloo")},
    "maxrl": composed("algorithm=maxrl", "algorithm.importance=mask").config.algorithm,
}


def episodes():
    """Four games of a group, three turns each; the last turn carries the reward."""
    draw = random.Random(0)
    finals = [draw.choice([0.0, 1.0]) for _ in range(12)]
    samples = [
        dataclasses.replace(
            sample,
            origin=f"game-{index // 3}",
            turn_index=index % 3,
            last_turn=index % 3 == 2,
            reward=final,
            raw_reward=final,
        )
        for index, (sample, final) in enumerate(
            zip(parts.random_steps(12, group_id="group"), finals, strict=True)
        )
    ]
    return parts.batch(samples, whole_episodes=True)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_updates_stay_finite_over_epochs_and_optimizer_steps(config):
    learner = parts.learner(
        algorithm=make_algorithm(config, 8), epochs=2, optimizer_steps=2, learning_rate=1e-3
    )
    for _ in range(3):
        result = learner.update(episodes())
    assert result.version == 3
    assert all(math.isfinite(number) for number in result.metrics.values())
    assert result.metrics["nonfinite_steps"] == 0.0


@pytest.mark.parametrize("how", ["constant", "sequence_mean"])
def test_a_prompt_beyond_max_train_len_counts_in_the_mean_with_a_loss_of_zero(how):
    limit, answer, rewards = 10, 4, (1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 1.5, -0.5)
    samples = [
        parts.sample(
            prompt_token_ids=tuple(range(1, length + 1)),
            token_ids=(5, 6, 7, 8),
            logprobs=(-1.0,) * answer,
            reward=reward,
        )
        for length, reward in zip((3, 12, 4, 9, 10, 5, 11, 8), rewards, strict=True)
    ]
    model = parts.model()
    losses = []
    for sample in samples:
        seen = parts.plain_logprobs(model, sample).gather(
            1, torch.tensor(sample.token_ids)[:, None]
        )
        seen = seen[: max(0, limit - len(sample.prompt_token_ids))]
        divisor = answer if how == "constant" else max(1, len(seen))
        losses.append(-sample.reward * float(seen.sum()) / divisor)
    algorithm = make_algorithm(ReinforceConfig(loss_aggregation=how, importance_cap=None), answer)

    learner = parts.learner(model, algorithm, max_train_len=limit)
    metrics = learner.update(parts.batch(samples)).metrics

    assert metrics["samples_too_long"] == 3.0
    assert metrics["loss"] == pytest.approx(sum(losses) / len(samples), abs=1e-6)
