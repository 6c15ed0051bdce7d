"""The learner with the algorithms that ship."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from rlforge.algorithms import make_algorithm
from rlforge.config.compose import compose
from rlforge.config.schema import A2cConfig, AlgorithmConfig, GrpoConfig, KlConfig, PpoConfig

SHARED = {"kl": KlConfig(coef=0.05), "entropy_coef": 0.01}
CONFIGS = {
    "reinforce": AlgorithmConfig(**SHARED),
    "grpo": GrpoConfig(**SHARED, group_size=4),
    "a2c": A2cConfig(**SHARED),
    "ppo": PpoConfig(**SHARED, value_clip=0.2),
    **{name: compose([f"algorithm={name}"]).config.algorithm for name in ("gspo", "cispo", "rloo")},
    "maxrl": compose(["algorithm=maxrl", "algorithm.importance=mask"]).config.algorithm,
}
ALGORITHMS = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def episodes(parts):
    """Four games of a group, three turns each; the last turn carries the reward."""
    draw = random.Random(0)
    steps = parts.random_steps(12, group_id="group", last_turn=False)
    for game in range(4):
        for turn in range(3):
            index = 3 * game + turn
            final = draw.choice([0.0, 1.0])
            steps[index] = dataclasses.replace(
                steps[index],
                game_id=f"game-{game}",
                turn_index=turn,
                last_turn=turn == 2,
                reward=final,
                raw_reward=final,
            )
    return dataclasses.replace(parts.batch(steps), whole_episodes=True)


@ALGORITHMS
def test_micro_batch_size_does_not_matter(parts, config):
    results = []
    for size in (12, 5):
        model = parts.model()
        learner = parts.learner(model, make_algorithm(config, 8), mini_batch_size=size)
        parts.randomise_adapter(model)
        gradients = parts.record_gradients(model)
        metrics = learner.update(episodes(parts)).metrics
        metrics = {name: m for name, m in metrics.items() if not parts.of_speed(name)}
        results.append((gradients, metrics))

    (whole, metrics), (split, split_metrics) = results
    assert split_metrics == pytest.approx(metrics, rel=1e-4, abs=1e-5)
    for name, gradient in whole.items():
        off = float((split[name] - gradient).norm())
        assert off <= 1e-4 * float(gradient.norm()) + 1e-7, name


@ALGORITHMS
def test_updates_stay_finite_over_epochs_and_optimizer_steps(parts, config):
    learner = parts.learner(
        algorithm=make_algorithm(config, 8), epochs=2, optimizer_steps=2, learning_rate=1e-3
    )

    for _ in range(3):
        result = learner.update(episodes(parts))

    assert result.version == 3
    assert all(math.isfinite(number) for number in result.metrics.values())
    assert result.metrics["nonfinite_steps"] == 0.0
