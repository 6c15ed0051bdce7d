"""The adapter that is trained: attaching a new one to the base model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlforge.config.schema import LoraConfig
from rlforge.errors import ConfigError
from rlforge.models.fit import unknown_targets


def linear_layers(model: nn.Module) -> list[str]:
    """Last parts of the names of all linear layers, sorted: what an adapter can target."""
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    return sorted({name.rsplit(".", 1)[-1] for name in linear})


def attach_lora(model: Any, lora: LoraConfig, seed: int) -> Any:
    """A PEFT model around ``model`` with one trainable adapter, which does not change it yet.

    B starts at zero and A from ``seed`` (Hu et al. 2021, "LoRA", section 4.1). Raises ConfigError
    for target modules that the model does not have.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    name, layers = type(model).__name__, linear_layers(model)
    if (problem := unknown_targets(name, layers, lora.target_modules)) is not None:
        raise ConfigError(problem)
    if lora.rank < 1:
        raise ConfigError(f"model.lora.rank is {lora.rank}; it must be at least 1")
    config = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
        task_type="CAUSAL_LM",
    )
    # PEFT draws A from the global generators, whose state is restored.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def skip_input_casts(model: nn.Module) -> None:
    """Skip the casts of inputs in the LoRA layers of ``model``; for use under autocast only.

    PEFT casts inputs to float32 like the adapter, and autocast casts them to bfloat16 again: the
    same numbers, at the cost of two passes and of a copy that each layer keeps for its gradient.
    """
    from peft.tuners.lora import LoraLayer

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.cast_input_dtype_enabled = False
