"""Which algorithm a configuration asks for."""

from dataclasses import replace

import pytest

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import Reference
from rlforge.algorithms.policy_gradient import A2c, Grpo, Ppo, Reinforce, WindowGrpo
from rlforge.config.training import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
    KlConfig,
    PpoConfig,
    ReinforceConfig,
    WindowGrpoConfig,
)


@pytest.mark.parametrize(
    ("config", "kind", "values"),
    [
        (AlgorithmConfig(), Reinforce, False),
        (ReinforceConfig(), Reinforce, False),
        (GrpoConfig(), Grpo, False),
        (WindowGrpoConfig(), WindowGrpo, False),
        (A2cConfig(), A2c, True),
        (PpoConfig(), Ppo, True),
    ],
)
def test_the_name_chooses_the_algorithm(config, kind, values):
    algorithm = make_algorithm(config, max_tokens=16)
    assert type(algorithm) is kind
    assert algorithm.needs_values is values
    assert algorithm.reference is None
    assert not algorithm.needs_entropy


def test_kl_penalty_and_entropy_bonus_state_their_inputs():
    algorithm = make_algorithm(AlgorithmConfig(kl=KlConfig(coef=0.1), entropy_coef=0.01), 16)
    assert algorithm.reference == Reference(to="base", every=40)
    assert algorithm.needs_entropy


def test_clips_that_are_switched_off_are_accepted():
    config = replace(PpoConfig(), dual_clip=None, value_clip=None, importance_cap=None)
    assert isinstance(make_algorithm(config, max_tokens=16), Ppo)
