from __future__ import annotations

import math

import pytest
import torch

from rlforge.config.training import LearnerConfig
from rlforge.learner.optim import Optimizer, learning_rate_factor


def factors(count: int, total_updates: int | None = None, **config) -> list[float]:
    settings = LearnerConfig(**config)
    return [learning_rate_factor(update, settings, total_updates) for update in range(count)]


def test_constant_after_linear_warm_up():
    assert factors(5, warmup_updates=4, total_updates=10) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_falls_to_the_final_ratio_and_stays():
    got = factors(8, schedule="linear", final_lr_ratio=0.2, total_updates=6, warmup_updates=2)
    assert got == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_cosine_passes_through_the_middle():
    got = factors(5, schedule="cosine", final_lr_ratio=0.1, total_updates=4)
    quarter = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))
    assert got == pytest.approx([1.0, quarter, 0.55, 1.1 - quarter, 0.1])


def test_groups_have_their_own_rates_and_decay_only_matrices():
    matrix = torch.nn.Parameter(torch.ones(2, 2))
    vector = torch.nn.Parameter(torch.ones(2))
    head = torch.nn.Linear(2, 1)
    config = LearnerConfig(learning_rate=0.1, weight_decay=0.5, betas=[0.8, 0.95], warmup_updates=2)
    optimizer = Optimizer([matrix, vector], head, config, 0.3)
    assert optimizer.begin(0) == pytest.approx(0.05)
    for parameter in (matrix, vector, *head.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    before = head.weight.detach().clone()
    optimizer.step(loss=1.0, update=1)
    groups = optimizer.adamw.param_groups
    assert [group["lr"] for group in groups] == pytest.approx([0.05, 0.05, 0.15])
    assert {group["betas"] for group in groups} == {(0.8, 0.95)}
    assert torch.allclose(matrix, torch.full((2, 2), 1 - 0.05 * 0.5))
    assert torch.equal(vector, torch.ones(2))
    assert torch.equal(head.weight, before)
