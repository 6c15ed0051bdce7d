"""Which algorithm a configuration asks for."""

import pytest

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.policy_gradient import A2c, Grpo, Ppo, Reinforce, WindowGrpo
from rlforge.config.training import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
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
