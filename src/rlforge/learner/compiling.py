"""Decoder layers compiled with torch.compile.

Each layer's forward pass is compiled for itself, for any number of rows and tokens; layers that are
alike share the result. Around it everything stays as it is: gradient checkpointing runs the
compiled layer a second time. The attention of packed sequences stays outside
(``rlforge.learner.attention``). Weights divided over ranks are refused: no test shows yet that a
compiled layer and FSDP2, which gathers them around it, make the same update.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from rlforge.config.schema import LearnerConfig
from rlforge.errors import ConfigError


def check_compiling(config: LearnerConfig, device: str | None) -> None:
    """Raise ConfigError where ``learner.compile`` cannot work on ``device`` of this machine.

    device: cpu or cuda; None: it is another machine's.
    """
    if not config.compile:
        return
    if config.use_trainer_cache:
        raise ConfigError(
            "learner.compile: compiled layers keep no cache; set learner.use_trainer_cache=false"
        )
    if config.shard_weights:
        raise ConfigError(
            "learner.compile: not together with weights that are divided over ranks; set "
            "learner.compile=false or learner.shard_weights=false"
        )
    if config.activation_checkpointing:
        raise ConfigError(
            "learner.compile: modules of a compiled layer are not recomputed one by one; use "
            "learner.gradient_checkpointing instead of learner.activation_checkpointing"
        )
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


def compile_layers(model: Any) -> None:
    """Compile the decoder layers of ``model``, in place; ConfigError where it has none."""
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"learner.compile: {type(model).__name__} has no layers to compile; switch it off"
        )
    for layer in layers:
        layer.forward = torch.compile(layer.forward, dynamic=True)
