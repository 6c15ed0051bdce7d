"""RL algorithms: advantages of a batch's steps and losses of its tokens, as pure functions.

A new algorithm is a config class in ``rlforge.config.schema``, a subclass of ``PolicyGradient``
(or anything with the methods of ``base.Algorithm``), and a line in ``_ALGORITHMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlforge.algorithms.actor_critic import A2c, Ppo
from rlforge.algorithms.base import Algorithm, LossInputs, LossOutput, Targets
from rlforge.algorithms.losses import AGGREGATIONS, KL_ESTIMATORS
from rlforge.algorithms.policy_gradient import ADVANTAGES, KL_TARGETS, Grpo, Reinforce, WindowGrpo
from rlforge.config.schema import (
    A2cConfig,
    AlgorithmConfig,
    GrpoConfig,
    PpoConfig,
    WindowGrpoConfig,
)
from rlforge.errors import ConfigError, nearest

__all__ = ["Algorithm", "LossInputs", "LossOutput", "Targets", "make_algorithm"]

#: Name -> its config class and how to make it.
_ALGORITHMS: dict[str, tuple[type[AlgorithmConfig], Callable[[Any, int], Algorithm]]] = {
    "reinforce": (AlgorithmConfig, Reinforce),
    "grpo": (GrpoConfig, Grpo),
    "window_grpo": (WindowGrpoConfig, WindowGrpo),
    "a2c": (A2cConfig, A2c),
    "ppo": (PpoConfig, Ppo),
}


def make_algorithm(config: AlgorithmConfig, max_tokens: int) -> Algorithm:
    """The algorithm ``config`` asks for; ``max_tokens``: longest answer of the engine.

    Raises ConfigError, naming the key, for an unknown name or word and a value out of range.

    Example:
        >>> make_algorithm(PpoConfig(), max_tokens=64).needs_values
        True
    """
    if config.name not in _ALGORITHMS:
        raise ConfigError(
            f"algorithm.name: no algorithm {config.name!r}{nearest(config.name, _ALGORITHMS)} "
            f"(known: {', '.join(sorted(_ALGORITHMS))})"
        )
    config_class, make = _ALGORITHMS[config.name]
    if not isinstance(config, config_class):
        raise ConfigError(
            f"algorithm.name: {config.name} needs its own settings; choose the option "
            f"algorithm={config.name} instead of the name alone"
        )
    _check(config)
    return make(config, max_tokens)


def _check(config: AlgorithmConfig) -> None:
    words = {
        "loss_aggregation": (config.loss_aggregation, AGGREGATIONS),
        "kl.estimator": (config.kl.estimator, KL_ESTIMATORS),
        "kl.to": (config.kl.to, KL_TARGETS),
    }
    if isinstance(config, WindowGrpoConfig):
        words["advantage"] = (config.advantage, ADVANTAGES)
    for key, (word, known) in words.items():
        if word not in known:
            raise ConfigError(f"algorithm.{key}: {word!r} is none of {', '.join(known)}")
    _require("importance_cap", config.importance_cap, lambda cap: cap > 0, "above 0")
    _require("max_generation_len", config.max_generation_len, lambda n: n >= 1, "at least 1")
    _require("kl.coef", config.kl.coef, lambda coef: coef >= 0, "at least 0")
    if isinstance(config, GrpoConfig):
        _require("group_size", config.group_size, lambda n: n >= 2, "at least 2")
    if isinstance(config, A2cConfig):
        _require("gamma", config.gamma, lambda g: 0 <= g <= 1, "in [0, 1]")
        _require("gae_lambda", config.gae_lambda, lambda g: 0 <= g <= 1, "in [0, 1]")
        _require("value_coef", config.value_coef, lambda coef: coef >= 0, "at least 0")
    if isinstance(config, GrpoConfig | WindowGrpoConfig | PpoConfig):
        _require("clip_low", config.clip_low, lambda clip: 0 <= clip <= 1, "in [0, 1]")
        _require("clip_high", config.clip_high, lambda clip: clip >= 0, "at least 0")
        _require("dual_clip", config.dual_clip, lambda clip: clip > 1, "above 1")
    if isinstance(config, PpoConfig):
        _require("value_clip", config.value_clip, lambda clip: clip > 0, "above 0")


def _require(key: str, given: float | None, holds: Callable[[float], bool], should_be: str) -> None:
    """Raise ConfigError unless ``given`` is null (where that is allowed) or ``holds``."""
    if given is not None and not holds(given):
        raise ConfigError(f"algorithm.{key}: {given} should be {should_be}")
