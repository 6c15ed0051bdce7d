"""Optimizer, its learning-rate schedule, and the number of steps of a pass."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlforge.config.training import LearnerConfig
from rlforge.errors import RunError
from rlforge.learner.ranks import Ranks
from rlforge.learner.sharding import clip_gradient, cpu_copy, spread_optimizer_state


def learning_rate_factor(
    update: int, config: LearnerConfig, total_updates: int | None = None
) -> float:
    """Learning rate of ``update`` (counted from 0) relative to ``config.learning_rate``.

    Linear warm-up (u + 1) / w for u < w; then, with x = (u - w) / (total - w) in 0..1 and final
    ratio f: constant 1, linear 1 - (1 - f) x, or cosine f + (1 - f)(1 + cos pi x) / 2 (Loshchilov
    and Hutter 2017, one period). Past ``total_updates`` the last value stays.

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


def steps_per_pass(config: LearnerConfig, rows: int) -> int:
    """Optimizer steps of one epoch over ``rows`` rows."""
    if config.gradient_accumulation_steps is None:
        return config.optimizer_steps
    together = config.gradient_accumulation_steps * (config.mini_batch_size or 1)
    return max(1, -(-rows // together))


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019) over the policy and, with its own rate, the value head.

    Ranks make the same steps; one is left out where loss or gradient are not finite.
    """

    def __init__(
        self,
        policy: Iterable[nn.Parameter],
        value_head: nn.Module | None,
        config: LearnerConfig,
        value_learning_rate: float | None,
        *,
        total_updates: int | None = None,
        ranks: Ranks | None = None,
        max_nonfinite: int = 5,
    ) -> None:
        """Take ``total_updates`` as the schedule's length; ``max_nonfinite`` as ``Learner``."""
        self._config, self._total_updates = config, total_updates
        self._ranks, self._max_nonfinite = ranks or Ranks(), max_nonfinite
        #: Factor of the learning rates beside their schedule.
        self.factor = 1.0
        self._nonfinite_in_a_row = 0
        parameters = self._policy = list(policy)
        # Vectors are norm gains and biases; weight decay would pull the gains towards 0.
        matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
        vectors = [parameter for parameter in parameters if parameter.ndim < 2]
        value_rate = config.learning_rate if value_learning_rate is None else value_learning_rate
        groups = [
            (matrices, config.learning_rate, config.weight_decay),
            (vectors, config.learning_rate, 0.0),
            ([] if value_head is None else list(value_head.parameters()), value_rate, 0.0),
        ]
        first, second = config.betas
        #: ``initial_lr`` of a group is its rate before the schedule.
        self.adamw = torch.optim.AdamW(
            [
                {"params": params, "lr": rate, "initial_lr": rate, "weight_decay": decay}
                for params, rate, decay in groups
                if params
            ],
            betas=(first, second),
            fused=True,
        )

    def begin(self, update: int) -> float:
        """Set the rates of ``update`` (counted from 0); returns the policy's."""
        factor = learning_rate_factor(update, self._config, self._total_updates) * self.factor
        for group in self.adamw.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return self._config.learning_rate * factor

    def step(self, loss: float, update: int, *, policy: bool = True) -> tuple[float, bool]:
        """Apply and forget the ranks' gradients; returns their norm, and whether they were applied.

        Without ``policy`` only those of the value head are. Raises RunError, which names
        ``update``, where too many in a row were not finite.
        """
        if not policy:
            for parameter in self._policy:
                parameter.grad = None
        parameters = [p for group in self.adamw.param_groups for p in group["params"]]
        self._ranks.sum_gradients(parameters)
        norm = clip_gradient(parameters, self._config.grad_clip, self._ranks)
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            self.adamw.step()
        # AdamW skips a gradient of None; one of zero would still decay the weights.
        self.adamw.zero_grad(set_to_none=True)
        self._nonfinite_in_a_row = 0 if applied else self._nonfinite_in_a_row + 1
        if self._nonfinite_in_a_row >= self._max_nonfinite:
            raise RunError(
                f"update {update}: loss {loss} and gradient norm {norm} were not finite "
                f"{self._nonfinite_in_a_row} times in a row; lower learner.learning_rate, or look "
                "at the rewards of the last batch"
            )
        return norm, applied

    def forget(self) -> None:
        self.adamw.state.clear()

    def tensors(self) -> Iterator[Tensor]:
        for state in self.adamw.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def state_dict(self, *, keep: bool) -> dict[str, Any]:
        """CPU copy of whole moments, where ``keep``; every rank calls it."""
        state = self.adamw.state_dict()
        # Moments are copied one by one: a second copy of all may not fit on the device.
        moments = {
            index: {name: cpu_copy(tensor, keep) for name, tensor in entry.items()}
            for index, entry in state["state"].items()
        }
        groups = copy.deepcopy(state["param_groups"])
        return {
            "nonfinite_in_a_row": self._nonfinite_in_a_row,
            "step_factor": self.factor,
            "optimizer": {"state": moments, "param_groups": groups},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.adamw.load_state_dict(spread_optimizer_state(state["optimizer"], self.adamw))
        self._nonfinite_in_a_row, self.factor = state["nonfinite_in_a_row"], state["step_factor"]
