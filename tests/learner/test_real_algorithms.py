"""The learner with the algorithms that ship."""

import dataclasses
import math
import random

import pytest
from tests.harness.composed import composed
from tests.learner import parts

from rlforge.algorithms import make_algorithm
from rlforge.config.schema import A2cConfig, AlgorithmConfig, GrpoConfig, KlConfig, PpoConfig

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
    steps = [
        dataclasses.replace(
            step,
            game_id=f"game-{index // 3}",
            turn_index=index % 3,
            last_turn=index % 3 == 2,
            reward=final,
            raw_reward=final,
        )
        for index, (step, final) in enumerate(
            zip(parts.random_steps(12, group_id="group"), finals, strict=True)
        )
    ]
    return parts.batch(steps, whole_episodes=True)


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
