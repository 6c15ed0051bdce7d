"""Trained weights: attaching a new adapter; saving, loading and digests of what is trained.

An adapter has PEFT's own layout on disk, full weights Hugging Face's, and a critic adds
``value_head.safetensors``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlforge.config.model import LoraConfig
from rlforge.errors import CheckpointError, ConfigError
from rlforge.learner.sharding import whole
from rlforge.models.files import ADAPTER_WEIGHTS, VALUE_HEAD
from rlforge.models.fit import copy_adapter, misfit, read_adapter, shapes_of, untrainable
from rlforge.models.targets import adapted_layers, numbers_of_layers
from rlforge.system.files import unreadable


def attach_lora(model: Any, lora: LoraConfig, seed: int) -> Any:
    """PEFT model around ``model`` with one trainable adapter, which does not change it yet.

    B starts at zero and A from ``seed`` (Hu et al. 2021, "LoRA", section 4.1). Raises ConfigError
    for target modules and layers that the model does not have.
    """
    targets = adapted_layers(model, lora)
    config = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        use_rslora=lora.use_rslora,
        target_modules=targets,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        layers_to_transform=numbers_of_layers(model, lora),
        task_type="CAUSAL_LM",
    )
    # PEFT draws A from torch's global generators, whose state is restored for other users.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wrapped = get_peft_model(model, config)
    # PEFT shortens a long list in its configuration; the saved file must name all targets.
    config.target_modules = set(targets)
    return wrapped


def save_adapter(peft_model: Any, directory: Path) -> None:
    """Write the adapter of ``peft_model`` in PEFT's layout."""
    # save_pretrained also renders a model card and may ask the hub about the base model.
    tensors = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        directory / ADAPTER_WEIGHTS,
    )
    config = copy.copy(peft_model.peft_config["default"])
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)
    config.save_pretrained(directory)


def load_adapter(peft_model: Any, directory: Path) -> None:
    """Copy the adapter in ``directory``, of the same shape, into ``peft_model``.

    Raises CheckpointError naming the path and the first difference.
    """
    tensors = _read(directory / ADAPTER_WEIGHTS)
    expected = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    check_fit(tensors, expected, f"adapter {directory}")
    made = peft_model.peft_config["default"]
    try:
        described = read_adapter(directory)
    except ConfigError as error:
        raise CheckpointError(str(error)) from error
    config = LoraConfig(
        rank=made.r,
        alpha=made.lora_alpha,
        use_rslora=made.use_rslora,
        # The tensors fit, so the modules are the same, by whatever names the file has.
        target_modules=described.get("target_modules") or [],
        last_layers=made.layers_to_transform and len(made.layers_to_transform),
    )
    if (problem := untrainable(described, config)) is not None:
        raise CheckpointError(f"adapter {directory} {problem}")
    copy_adapter(peft_model, tensors)


def save_model(model: Any, directory: Path | None, dtype: torch.dtype) -> None:
    """Write all weights of ``model`` as ``dtype`` in Hugging Face's layout.

    Every rank of a spread model must call this; ``directory`` None: gather without writing.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        gathered = whole(tensor)
        if directory is not None:
            # Gathered tensors leave the device at once: it may not have room for all of them.
            gathered = gathered if gathered is tensor else gathered.cpu()
            tensors[name] = gathered.to(dtype) if gathered.is_floating_point() else gathered
    if directory is None:
        return
    model.save_pretrained(directory, state_dict=tensors)
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    config.save_pretrained(directory)


def save_value_head(value_head: nn.Module, directory: Path) -> None:
    state = value_head.state_dict()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, directory / VALUE_HEAD)


def load_value_head(value_head: nn.Module, directory: Path) -> None:
    """Copy the critic in ``directory`` into ``value_head``; CheckpointError if it does not fit."""
    tensors = _read(directory / VALUE_HEAD)
    check_fit(tensors, value_head.state_dict(), f"value head {directory}")
    value_head.load_state_dict(tensors)


def check_fit(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Raise CheckpointError naming the first tensor that is missing, extra or misshapen."""
    if (problem := misfit(shapes_of(actual), shapes_of(expected))) is not None:
        raise CheckpointError(f"{what} does not fit: {problem}")


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError as error:
        lacking = f"{file.parent} holds no {file.name}"
        raise CheckpointError(unreadable(file) or lacking) from error
    except SafetensorError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def digest_of_weights(state: Any) -> str:
    """SHA-256 of nested mappings, lists, tensors and numbers."""
    digest = hashlib.sha256()

    def add(name: str, part: Any) -> None:
        if isinstance(part, Mapping):
            for key, each in part.items():
                add(f"{name}/{key}", each)
        elif isinstance(part, list | tuple):
            for place, each in enumerate(part):
                add(f"{name}/{place}", each)
        elif isinstance(part, Tensor):
            here = part.detach().cpu().contiguous()
            digest.update(f"{name} {here.dtype} {tuple(here.shape)}\n".encode())
            digest.update(here.reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {part!r}\n".encode())

    add("", state)
    return digest.hexdigest()
