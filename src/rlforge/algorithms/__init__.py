"""RL algorithms: advantages of a batch's steps and losses of its tokens, as pure functions.

A new algorithm is a config class in ``rlforge.config.training``, a subclass of ``PolicyGradient``
(or anything with the methods of ``base.Algorithm``), and a line in ``_ALGORITHMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlforge.algorithms.base import Algorithm, LossInputs, LossOutput, Targets
from rlforge.algorithms.policy_gradient import A2c, Grpo, Ppo, Reinforce, WindowGrpo
from rlforge.config.schema import AlgorithmConfig

__all__ = ["Algorithm", "LossInputs", "LossOutput", "Targets", "make_algorithm"]

_ALGORITHMS: dict[str, Callable[[Any, int], Algorithm]] = {
    "reinforce": Reinforce,
    "grpo": Grpo,
    "window_grpo": WindowGrpo,
    "a2c": A2c,
    "ppo": Ppo,
}


def make_algorithm(config: AlgorithmConfig, max_tokens: int) -> Algorithm:
    """The algorithm that ``config`` names; ``max_tokens``: the engine's limit for one answer.

    Example:
        >>> make_algorithm(AlgorithmConfig(name="reinforce"), max_tokens=64).needs_values
        False
    """
    return _ALGORITHMS[config.name](config, max_tokens)
