"""RL algorithms: advantages of a batch's samples and losses of its tokens, as pure functions.

An algorithm is a class of (config, max_tokens), most simply a subclass of ``PolicyGradient``; its
``config_class`` holds its settings.
"""

from __future__ import annotations

from rlforge.algorithms.base import Algorithm, LossInputs, LossOutput, Targets
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.training import AlgorithmConfig

__all__ = ["Algorithm", "LossInputs", "LossOutput", "Targets", "make_algorithm"]


def make_algorithm(config: AlgorithmConfig, max_tokens: int) -> Algorithm:
    """The algorithm that ``config`` names; ``max_tokens``: the engine's limit for one answer.

    Example:
        >>> make_algorithm(AlgorithmConfig(name="reinforce"), max_tokens=64).needs_values
        False
    """
    algorithm: Algorithm = ALGORITHMS.find(config.name)(config, max_tokens)
    return algorithm
