from __future__ import annotations

import math

import pytest
import torch

from rlforge.config.training import LearnerConfig
from rlforge.learner.optim import Optimizer, learning_rate_factor

QUARTER = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))


@pytest.mark.parametrize(
    ("config", "total", "expected"),
    [
        ({"warmup_updates": 4}, 10, [0.25, 0.5, 0.75, 1.0, 1.0]),
        (
            {"schedule": "linear", "final_lr_ratio": 0.2, "warmup_updates": 2},
            6,
            [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2],
        ),
        (
            {"schedule": "cosine", "final_lr_ratio": 0.1},
            4,
            [1.0, QUARTER, 0.55, 1.1 - QUARTER, 0.1],
        ),
    ],
)
def test_rates_warm_up_and_follow_their_schedule(config, total, expected):
    settings = LearnerConfig(**config)
    found = [learning_rate_factor(update, settings, total) for update in range(len(expected))]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(("value_rate", "begun"), [(0.3, 0.15), (None, 0.05)])
def test_groups_have_their_own_rates_and_decay_only_matrices(value_rate, begun):
    matrix = torch.nn.Parameter(torch.ones(2, 2))
    vector = torch.nn.Parameter(torch.ones(2))
    head = torch.nn.Linear(2, 1)
    config = LearnerConfig(learning_rate=0.1, weight_decay=0.5, betas=[0.8, 0.95], warmup_updates=2)
    optimizer = Optimizer([matrix, vector], head, config, value_rate)
    assert optimizer.begin(0) == pytest.approx(0.05)
    for parameter in (matrix, vector, *head.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    before = head.weight.detach().clone()
    optimizer.step(loss=1.0, update=1)
    groups = optimizer.adamw.param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.05, 0.05, begun])
    assert {group["betas"] for group in groups} == {(0.8, 0.95)}
    assert torch.allclose(matrix, torch.full((2, 2), 1 - 0.05 * 0.5))
    assert torch.equal(vector, torch.ones(2))
    assert torch.equal(head.weight, before)
