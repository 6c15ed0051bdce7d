"""Trading computation for memory in the training pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlforge.config.schema import LearnerConfig
from rlforge.errors import ConfigError


def apply_memory_options(model: Any, config: LearnerConfig) -> None:
    """Switch on the checkpointing that ``config`` asks for; results stay the same.

    ``gradient_checkpointing`` keeps one activation per decoder layer, ``activation_checkpointing``
    one per module (attention, MLP, norms) of each layer. Raises ConfigError for a contradiction
    or a model that has no such layers.
    """
    recompute = config.gradient_checkpointing or config.activation_checkpointing
    if config.use_trainer_cache and recompute:
        raise ConfigError(
            "learner.use_trainer_cache: a KV cache cannot be kept while activations are "
            "recomputed; switch it off, or gradient_checkpointing and activation_checkpointing"
        )
    if config.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise ConfigError(
                f"learner.gradient_checkpointing: {type(model).__name__} does not support it"
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.activation_checkpointing:
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            raise ConfigError(
                f"learner.activation_checkpointing: {type(model).__name__} has no layers to wrap"
            )
        for layer in layers:
            for module in layer.children():
                module.forward = functools.partial(_recomputed, module.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
