"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from rlforge.config.training import LearnerConfig


def learning_rate_factor(
    update: int, config: LearnerConfig, total_updates: int | None = None
) -> float:
    """Learning rate of ``update`` (counted from 0) relative to ``config.learning_rate``.

    Linear warm-up, (u + 1) / w for u < w; then, with x = (u - w) / (total - w) in 0..1 and the
    final ratio f: constant 1, linear 1 - (1 - f) x, or cosine f + (1 - f)(1 + cos pi x) / 2
    (Loshchilov and Hutter 2017, one period). Past ``total_updates`` the last value stays.

    Example:
        >>> learning_rate_factor(0, LearnerConfig(warmup_updates=4))
        0.25
    """
    warmup, final = config.warmup_updates, config.final_lr_ratio
    if update < warmup:
        return (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, (total_updates or 0) - warmup))
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "linear":
        return 1.0 - (1.0 - final) * progress
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_optimizer(
    policy: Iterable[nn.Parameter],
    value_head: nn.Module | None,
    config: LearnerConfig,
    value_learning_rate: float | None,
) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019) over the policy and, with its own rate, the value head.

    Weight decay acts on matrices only, not on norm gains and biases.
    ``initial_lr`` of each group is its rate before the schedule.
    """
    parameters = list(policy)
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    value_rate = config.learning_rate if value_learning_rate is None else value_learning_rate
    groups = [
        (matrices, config.learning_rate, config.weight_decay),
        (vectors, config.learning_rate, 0.0),
        ([] if value_head is None else list(value_head.parameters()), value_rate, 0.0),
    ]
    first, second = config.betas
    return torch.optim.AdamW(
        [
            {"params": params, "lr": rate, "initial_lr": rate, "weight_decay": decay}
            for params, rate, decay in groups
            if params
        ],
        betas=(first, second),
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Give every group ``factor`` times its initial rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def steps_per_pass(config: LearnerConfig, rows: int) -> int:
    """Optimizer steps of one epoch over ``rows`` rows."""
    if config.gradient_accumulation_steps is None:
        return config.optimizer_steps
    together = config.gradient_accumulation_steps * (config.mini_batch_size or 1)
    return max(1, -(-rows // together))
