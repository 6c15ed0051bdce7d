"""Whether a directory holds weights for the configured model: an adapter, or a model of its own.

Files and shapes are read, neither the weights themselves nor those of the base model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlforge.config.schema import ModelConfig
from rlforge.errors import ConfigError
from rlforge.models.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODEL_CONFIG

Shapes = dict[str, tuple[int, ...]]
"""Tensors of a file by name."""


def read_adapter(path: Path) -> dict[str, Any]:
    """What ``adapter_config.json`` in ``path`` says; ConfigError where it is not whole."""
    found = read_json(path / ADAPTER_CONFIG)
    rank = found.get("r", 1)
    if not isinstance(found.get("peft_type"), str) or not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"{path / ADAPTER_CONFIG} describes no adapter of PEFT")
    return found


def largest_rank(described: dict[str, Any]) -> int:
    """The largest rank among the layers of an adapter that ``read_adapter`` gave."""
    ranks: list[int] = [described.get("r", 1), *(described.get("rank_pattern") or {}).values()]
    return max(ranks)


def read_shapes(file: Path) -> Shapes:
    """What a safetensors file holds. Raises ConfigError when it is missing or not whole."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is damaged or truncated: {error}") from error


def check_adapter_fits(path: Path, config: ModelConfig, base: str) -> list[str]:
    """Refuse an adapter in ``path`` that PEFT cannot put over the whole of the configured model.

    base: what ``resolve_model`` gives for ``config``. Returns the last parts of the names of the
    layers that it changes, sorted. Raises ConfigError with the first difference: another base
    model by name (where the adapter names one), layers that the model does not have or that have
    no weights in the file, and weights of other shapes.
    """
    described, file = read_adapter(path), path / ADAPTER_WEIGHTS
    theirs = described.get("base_model_name_or_path")
    if theirs and last_part(theirs) != last_part(base):
        raise ConfigError(
            f"the adapter in {path} is for another base model: {theirs}; this one is {base}"
        )
    found, expected = read_shapes(file), _expected(path, config)
    for name, shape in found.items():
        if "lora_" in name and name not in expected:
            raise ConfigError(f"{file} changes {_layer(name)}, which the model does not have")
        if name in expected and shape != expected[name]:
            raise ConfigError(
                f"{file}: {name} is {shape}, and does not fit the model: it takes "
                f"{expected[name]} at {_layer(name)}"
            )
    for name in expected:
        if name not in found:
            raise ConfigError(f"{file} has no weights for {_layer(name)}, which it should change")
    return sorted({_layer(name).rsplit(".", 1)[-1] for name in expected})


def check_model_fits(path: Path, config: ModelConfig) -> None:
    """Refuse a directory of full weights that is not whole, or reads other tokens.

    Raises ConfigError with the first thing wrong.
    """
    from rlforge.models.load import load_model_config

    read_json(path / MODEL_CONFIG)
    theirs, ours = (
        load_model_config(each).get_text_config().vocab_size
        for each in (ModelConfig(kind="hf", name=str(path)), config)
    )
    if theirs != ours:
        raise ConfigError(
            f"the vocabulary of the model in {path} has {theirs} tokens, that of this one {ours}"
        )
    index = path / "model.safetensors.index.json"
    if index.is_file():
        parts = read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ConfigError(f"{index} lists no weights")
        files = [path / name for name in sorted(set(parts.values()))]
    elif not (files := sorted(path.glob("*.safetensors"))) and not any(path.glob("*.bin")):
        raise ConfigError(f"{path} has no weights (*.safetensors)")
    for file in files:
        read_shapes(file)


def _expected(path: Path, config: ModelConfig) -> Shapes:
    """The tensors that PEFT wants for the adapter in ``path`` over the configured model."""
    import torch
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict
    from transformers import AutoModelForCausalLM

    from rlforge.models.load import load_model_config

    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(load_model_config(config))
        try:
            wanted: Any = PeftConfig.from_pretrained(str(path))
            if wanted.is_prompt_learning:
                raise ConfigError(f"the adapter in {path} changes prompts and no layers")
            wanted.init_lora_weights = False  # some begin with the base weights, not here
            wanted.base_model_name_or_path = model.name_or_path  # compared, and told, elsewhere
            wrapped = get_peft_model(model, wanted)
        except (KeyError, TypeError, ValueError) as error:  # what PEFT raises for odd settings
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(
                f"the adapter in {path} does not fit the model: {reason[0]}"
            ) from error
    state = get_peft_model_state_dict(wrapped, save_embedding_layers=False)
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _layer(name: str) -> str:
    """The layer of the base model that a tensor of an adapter belongs to."""
    return name.removeprefix("base_model.model.").partition(".lora_")[0]


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``; ConfigError where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return found


def last_part(model: str) -> str:
    """The last part of an id or path: caches lie elsewhere on other machines."""
    return model.rstrip("/").rsplit("/", 1)[-1]
