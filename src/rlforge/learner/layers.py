"""Decoder layers that recompute their activations in the backward pass, or are compiled.

``learner.compile`` compiles each layer's forward pass; equal layers share the result. Checkpointing
runs the compiled layer a second time. Compiling with weights divided over ranks is refused: no test
shows yet that a compiled layer and FSDP2 make the same update.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from rlforge.config.training import LearnerConfig
from rlforge.errors import ConfigError


def decoder_layers(model: nn.Module, key: str) -> list[Any]:
    """Decoder layers of ``model``; ConfigError naming ``learner.KEY`` where it has none."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"learner.{key}: {type(model).__name__} has no layers that transformers marks as "
            "decoder layers; switch it off"
        )
    return layers


def apply_memory_options(model: Any, config: LearnerConfig) -> None:
    """Switch on the checkpointing that ``config`` asks for; results stay the same.

    ``gradient_checkpointing`` keeps one activation per decoder layer, ``activation_checkpointing``
    one per module of each layer. Raises ConfigError for a model without such layers.
    """
    modules: list[Any] = []
    if config.gradient_checkpointing:
        modules += decoder_layers(model, "gradient_checkpointing")
    if config.activation_checkpointing:
        for layer in decoder_layers(model, "activation_checkpointing"):
            modules += layer.children()
    for module in modules:
        # Transformers' own switch works in training mode only, which turns on the model's dropout.
        module.forward = functools.partial(_recomputed, module.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def check_compiling(device: str) -> None:
    """Raise ConfigError where ``learner.compile`` cannot work on ``device`` (cpu or cuda) here."""
    compiler = os.environ.get("CXX", "g++")
    if device == "cpu" and shutil.which(compiler) is None:
        raise ConfigError(
            f"learner.compile: needs a C++ compiler, and there is no {compiler} here; install one "
            "(Debian: apt install g++), name it in CXX, or set learner.compile=false"
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise ConfigError(
            "learner.compile: needs Triton on a GPU, which is not installed; install it with a "
            "CUDA build of torch, or set learner.compile=false"
        )


def compile_layers(model: nn.Module) -> None:
    """Compile the decoder layers of ``model``, in place; ConfigError where it has none."""
    for layer in decoder_layers(model, "compile"):
        # Otherwise each new number of rows or tokens would compile the layer again.
        layer.forward = torch.compile(layer.forward, dynamic=True)
