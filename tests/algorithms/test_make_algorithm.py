"""Which algorithm a configuration asks for, and which values make none."""

import re
from dataclasses import replace

import pytest

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.actor_critic import A2c, Ppo
from rlforge.algorithms.policy_gradient import Grpo, Reinforce
from rlforge.config.schema import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
    KlConfig,
    PpoConfig,
    ReinforceConfig,
)
from rlforge.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "kind", "values"),
    [
        (AlgorithmConfig(), Reinforce, False),
        (ReinforceConfig(), Reinforce, False),
        (GrpoConfig(), Grpo, False),
        (A2cConfig(), A2c, True),
        (PpoConfig(), Ppo, True),
    ],
)
def test_the_name_chooses_the_algorithm(config, kind, values):
    algorithm = make_algorithm(config, max_tokens=16)
    assert type(algorithm) is kind
    assert algorithm.needs_values is values
    assert not algorithm.needs_reference
    assert not algorithm.needs_entropy


def test_penalty_and_bonus_say_what_they_need():
    algorithm = make_algorithm(AlgorithmConfig(kl=KlConfig(coef=0.1), entropy_coef=0.01), 16)
    assert algorithm.needs_reference
    assert algorithm.needs_entropy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AlgorithmConfig(name="reinforced"), "algorithm.name: no algorithm 'reinforced'; did you"),
        (AlgorithmConfig(name="grpo"), "choose the option algorithm=grpo"),
        (A2cConfig(name="ppo"), "choose the option algorithm=ppo"),
        (AlgorithmConfig(loss_aggregation="mean"), "algorithm.loss_aggregation: 'mean' is none of"),
        (AlgorithmConfig(kl=KlConfig(estimator="k4")), "algorithm.kl.estimator: 'k4' is none of"),
        (AlgorithmConfig(kl=KlConfig(coef=-1)), "algorithm.kl.coef: -1 should be at least 0"),
        (AlgorithmConfig(importance_cap=0), "algorithm.importance_cap: 0 should be above 0"),
        (AlgorithmConfig(max_generation_len=0), "algorithm.max_generation_len: 0 should be"),
        (GrpoConfig(group_size=1), "algorithm.group_size: 1 should be at least 2"),
        (GrpoConfig(clip_low=1.5), "algorithm.clip_low: 1.5 should be in [0, 1]"),
        (GrpoConfig(clip_high=-0.1), "algorithm.clip_high: -0.1 should be at least 0"),
        (PpoConfig(dual_clip=1.0), "algorithm.dual_clip: 1.0 should be above 1"),
        (PpoConfig(value_clip=0.0), "algorithm.value_clip: 0.0 should be above 0"),
        (A2cConfig(gamma=1.1), "algorithm.gamma: 1.1 should be in [0, 1]"),
        (A2cConfig(gae_lambda=-0.1), "algorithm.gae_lambda: -0.1 should be in [0, 1]"),
        (A2cConfig(value_coef=-0.1), "algorithm.value_coef: -0.1 should be at least 0"),
    ],
)
def test_errors_name_the_key(config, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_algorithm(config, max_tokens=16)


def test_clips_that_are_switched_off_are_accepted():
    config = replace(PpoConfig(), dual_clip=None, value_clip=None, importance_cap=None)
    assert isinstance(make_algorithm(config, max_tokens=16), Ppo)
