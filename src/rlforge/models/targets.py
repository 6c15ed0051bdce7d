"""Which layers of a model get an adapter: ``model.lora.target_modules`` against its modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from rlforge.config.model import LoraConfig
from rlforge.errors import ConfigError
from rlforge.models.shape import unknown_targets

#: Linear layers; ``Conv1D``, of GPT-2 and its kin, holds its weight transposed.
LINEAR = (nn.Linear, Conv1D)


def linear_layers(model: Any) -> dict[str, bool]:
    """Names of the linear layers that can get an adapter; True: the output layer."""
    head, decoder = model.get_output_embeddings(), model.get_decoder()
    # ModernBERT's output layer is named ``decoder``, so ``get_decoder`` returns it.
    if decoder is head:
        decoder = model.base_model
    # Text does not pass the layers of images and sound, so an adapter there would learn nothing;
    # other names are left out because PEFT takes them for experts.
    reached, taken = {id(module) for module in decoder.modules()}, _names_of_experts(model)
    found = {
        name: module is head
        for name, module in model.named_modules()
        if _is_linear(module)
        and (module is head or id(module) in reached)
        and _last(name) not in taken
    }
    renamed = _renamed(model, found)
    return {name: is_head for name, is_head in found.items() if name not in renamed}


def adapted_layers(model: Any, lora: LoraConfig) -> list[str]:
    """Targets of an adapter of ``lora`` in ``model``, sorted, as a list that PEFT takes.

    Raises ConfigError for targets that the model does not have.
    """
    layers = linear_layers(model)
    if (problem := unknown_targets(type(model).__name__, layers, lora)) is not None:
        raise ConfigError(problem)
    chosen = {name for name, is_head in layers.items() if lora.adapts(name, head=is_head)}
    # Whole names are needed only where the last parts would name other modules, too.
    short = {_last(name) for name in chosen}
    meant = {name for name, _ in model.named_modules() if _last(name) in short}
    return sorted(short if meant == chosen else chosen)


def numbers_of_layers(model: Any, lora: LoraConfig) -> list[int] | None:
    """The decoder layers that get an adapter; None: all; ConfigError where there are fewer."""
    if lora.last_layers is None:
        return None
    layers = int(model.config.get_text_config().num_hidden_layers)
    if lora.last_layers > layers:
        raise ConfigError(f"model.lora.last_layers={lora.last_layers}: the model has {layers}")
    return list(range(layers - lora.last_layers, layers))


def experts_note(model: Any) -> str | None:
    """Which weights of experts get no adapter, for the user; None where there are none."""
    if not (experts := _experts(model)):
        return None
    taken = _names_of_experts(model)
    linear = (name for name, module in model.named_modules() if isinstance(module, LINEAR))
    shared = {".".join(name.split(".")[-2:]) for name in linear if _last(name) in taken}
    beside = f", and PEFT gives their names to {', '.join(sorted(shared))}" if shared else ""
    return (
        f"{type(model).__name__} holds its experts in single tensors, "
        f"{', '.join(sorted(experts))}{beside}: these get no adapter and stay as they are; "
        "learner.train=full trains them, too"
    )


def _renamed(model: Any, names: Iterable[str]) -> set[str]:
    """The ``names`` whose adapters PEFT renames when it reads them."""
    from peft import LoraConfig as PeftLoraConfig
    from peft.utils.transformers_weight_conversion import (
        convert_peft_adapter_state_dict_for_transformers as as_read,
    )

    written = {f"base_model.model.{name}.lora_A.weight": name for name in names}
    tensors = {key: torch.zeros(1, 1) for key in written}
    read = as_read(model, PeftLoraConfig(), tensors)
    return {name for key, name in written.items() if key not in read}


def _is_linear(module: nn.Module) -> bool:
    """Whether a module multiplies by its weight."""
    if not isinstance(module, LINEAR):
        return False
    if type(module).forward in (nn.Linear.forward, Conv1D.forward):
        return True
    outputs, inputs = module.weight.shape
    # A subclass may be a router or a grouped layer, which computes more: a trial shows.
    try:
        with torch.no_grad():
            out: Any = module(module.weight.new_zeros(1, 1, inputs))
    except (RuntimeError, ValueError):
        return False
    return isinstance(out, torch.Tensor) and out.shape == (1, 1, outputs)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _experts(model: Any) -> set[str]:
    """The tensors that hold all experts of a layer, by the last two parts of their names."""
    # Experts are [experts, outputs, inputs]; weights of convolutions have three dimensions, too.
    return {
        f"{_last(path)}.{name}"
        for path, module in model.get_decoder().named_modules()
        if "Conv" not in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim == 3
    }


def _names_of_experts(model: Any) -> set[str]:
    """Names of linear layers by which PEFT means the experts."""
    if not _experts(model):
        return set()
    from peft import LoraConfig as PeftLoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    # In former versions of transformers experts were layers, and PEFT still reads adapters by
    # their names: it would take an adapter of a linear layer so named for one of experts.
    names = {_last(name) for name, module in model.named_modules() if isinstance(module, LINEAR)}
    taken = set()
    for name in names:
        config = PeftLoraConfig(target_modules=[name])
        try:
            convert_peft_config_for_transformers(config, model, None)
        except ValueError:
            # PEFT takes some names of experts only together with others.
            taken.add(name)
        else:
            taken |= {name} if config.target_parameters else set()
    return taken
