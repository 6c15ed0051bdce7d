"""RL algorithms: advantages of samples and losses of tokens, as pure functions.

An algorithm is a class of (config, max_tokens), most simply a subclass of ``PolicyGradient``.
"""

from __future__ import annotations

from rlforge.algorithms.base import Algorithm, LossInputs, LossOutput, Targets
from rlforge.config.plugins import ALGORITHMS
from rlforge.config.training import AlgorithmConfig

__all__ = ["Algorithm", "LossInputs", "LossOutput", "Targets", "make_algorithm"]


def make_algorithm(config: AlgorithmConfig, max_tokens: int) -> Algorithm:
    """Algorithm that ``config`` names; ``max_tokens`` is the longest answer of the engine.

    Example:
        >>> make_algorithm(AlgorithmConfig(name="reinforce"), max_tokens=64).needs_values
        False
    """
    algorithm: Algorithm = ALGORITHMS.find(config.name)(config, max_tokens)
    return algorithm
