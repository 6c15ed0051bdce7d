"""Whether a directory holds weights for the configured model: an adapter, or full weights.

Preflight, engines, learner and serving all use these checks. They read names and shapes from the
headers of files, neither the weights themselves nor those of the base model.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlforge.config.schema import ModelConfig
from rlforge.errors import ConfigError
from rlforge.models.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODEL_CONFIG

Shapes = dict[str, tuple[int, ...]]
"""The shapes of tensors by name."""

#: Settings of PEFT that make an adapter more than the matrices A and B.
_BEYOND_PLAIN_LORA = ("use_dora", "lora_bias", "modules_to_save", "layer_replication")


def kind_of_weights(path: Path) -> Literal["adapter", "model"]:
    """Whether ``path`` holds an adapter or full weights; ConfigError where it holds neither."""
    if (path / ADAPTER_CONFIG).is_file():
        return "adapter"
    if (path / MODEL_CONFIG).is_file():
        return "model"
    neither = f"has neither {ADAPTER_CONFIG} nor {MODEL_CONFIG}"
    raise ConfigError(f"{path} {neither if path.is_dir() else 'is missing'}")


def read_adapter(path: Path) -> dict[str, Any]:
    """The ``adapter_config.json`` in ``path``; ConfigError where it is damaged."""
    found = _read_json(path / ADAPTER_CONFIG)
    rank = found.get("r", 1)
    if not isinstance(found.get("peft_type"), str) or not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"{path / ADAPTER_CONFIG} describes no adapter of PEFT")
    return found


def largest_rank(described: dict[str, Any]) -> int:
    """The largest rank among the layers of an adapter that ``read_adapter`` returned.

    Example:
        >>> largest_rank({"r": 4, "rank_pattern": {"q_proj": 12}})
        12
    """
    ranks: list[int] = [described.get("r", 1), *(described.get("rank_pattern") or {}).values()]
    return max(ranks)


def read_shapes(file: Path) -> Shapes:
    """The shapes in a safetensors file. Raises ConfigError when it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is damaged or truncated: {error}") from error


def shapes_of(tensors: Mapping[str, Any]) -> Shapes:
    """The shapes of tensors in memory."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def adapter_shapes(peft_model: Any) -> Shapes:
    """The shapes of the tensors that the file of an adapter over this PEFT model holds."""
    from peft import get_peft_model_state_dict

    return shapes_of(get_peft_model_state_dict(peft_model, save_embedding_layers=False))


def misfit(found: Shapes, expected: Shapes) -> str | None:
    """The first difference between tensors found and those the model takes, by name; None if none.

    Example:
        >>> misfit({"q_proj": (4, 16)}, {"q_proj": (8, 16)})
        'q_proj is (4, 16), and the model takes (8, 16)'
        >>> misfit({}, {"q_proj": (8, 16)})
        'it lacks q_proj'
    """
    for name in sorted(found.keys() | expected.keys()):
        if name not in found:
            return f"it lacks {name}"
        if name not in expected:
            return f"the model has no {name}"
        if found[name] != expected[name]:
            return f"{name} is {found[name]}, and the model takes {expected[name]}"
    return None


def adapter_misfit(found: Shapes, expected: Shapes) -> str | None:
    """As ``misfit`` for the file of an adapter, which may also hold copies of base weights."""
    return misfit({n: s for n, s in found.items() if "lora_" in n or n in expected}, expected)


def check_adapter_fits(path: Path, config: ModelConfig, base: str) -> list[str]:
    """Refuse an adapter in ``path`` that PEFT cannot put over the whole of the configured model.

    base: as ``resolve_model(config)`` returns it. Returns the last parts of the names of the layers
    that the adapter changes, sorted. Raises ConfigError with the first difference: another base
    model by name (where the adapter names one), layers that the model does not have or that have no
    weights in the file, and weights of other shapes.
    """
    described, file = read_adapter(path), path / ADAPTER_WEIGHTS
    theirs = described.get("base_model_name_or_path")
    if theirs and _last_part(theirs) != _last_part(base):
        raise ConfigError(
            f"the adapter in {path} is for another base model: {theirs}; this one is {base}"
        )
    found, expected = read_shapes(file), _expected_shapes(path, config)
    if (problem := adapter_misfit(found, expected)) is not None:
        raise ConfigError(f"{file} does not fit the model: {problem}")
    return sorted({name.partition(".lora_")[0].rsplit(".", 1)[-1] for name in expected})


def check_lora(path: Path, config: ModelConfig, most: int, *, vllm: bool = False) -> int:
    """Refuse an adapter that is no LoRA or has a rank above ``most``; returns its largest rank.

    vllm: refuse full weights and variants of LoRA too, which vLLM has no kernels for.
    """
    other = "; use engine=transformers" if vllm else ""
    if vllm and kind_of_weights(path) == "model":
        raise ConfigError(f"{path} holds full weights, and vLLM plays adapters only{other}")
    described = read_adapter(path)
    kind, rank = described["peft_type"], largest_rank(described)
    beyond = [name for name in _BEYOND_PLAIN_LORA if vllm and described.get(name)]
    if kind != "LORA" or beyond:
        raise ConfigError(
            f"the adapter in {path} is of kind {kind}{''.join(f', with {name}' for name in beyond)}"
            f"; {'plain LORA' if vllm else 'LORA'} is needed{other}"
        )
    if rank > most:
        raise ConfigError(
            f"the adapter in {path} has rank {rank}, and model.lora.rank={config.lora.rank} makes "
            f"room for {most}; raise model.lora.rank{', or use engine=transformers' * vllm}"
        )
    return rank


def check_initial_adapter(path: Path, config: ModelConfig, base: str) -> None:
    """Refuse an adapter that training as ``config`` describes cannot continue.

    base: as ``resolve_model(config)`` returns it. Raises ConfigError when there is no adapter in
    ``path``, or its rank, alpha, target modules or base model differ.
    """
    file = path / ADAPTER_CONFIG
    if not file.is_file():
        raise ConfigError(f"no adapter in {path}: {ADAPTER_CONFIG} is missing")
    found = _read_json(file)
    targets = found.get("target_modules")
    theirs = str(found.get("base_model_name_or_path"))
    differences = [
        f"{key} {there!r} against {here!r}"
        for key, there, here in (
            ("model.lora.rank", found.get("r"), config.lora.rank),
            ("model.lora.alpha", found.get("lora_alpha"), config.lora.alpha),
            (
                "model.lora.target_modules",
                sorted(targets) if isinstance(targets, list) else targets,
                sorted(config.lora.target_modules),
            ),
            ("base model", _last_part(theirs), _last_part(base)),
        )
        if there != here
    ]
    if differences:
        raise ConfigError(
            f"the adapter in {path} does not fit the configuration: {'; '.join(differences)} "
            "(adapter against configuration); change the configuration to match"
        )


def check_model_fits(path: Path, config: ModelConfig, *, same_shapes: bool = False) -> None:
    """Refuse a directory of full weights that is damaged, or has another vocabulary.

    same_shapes: refuse weights of other shapes than the configured model's as well. Raises
    ConfigError with the first difference.
    """
    from rlforge.models.load import load_model_config

    _read_json(path / MODEL_CONFIG)
    theirs, ours = (
        load_model_config(each).get_text_config().vocab_size
        for each in (ModelConfig(kind="hf", name=str(path)), config)
    )
    if theirs != ours:
        raise ConfigError(
            f"the vocabulary of the model in {path} has {theirs} tokens, that of the configured "
            f"model {ours}"
        )
    expected = shapes_of(_without_weights(config).state_dict()) if same_shapes else {}
    for file in _weight_files(path):
        found = {name: shape for name, shape in read_shapes(file).items() if name in expected}
        if (problem := misfit(found, {name: expected[name] for name in found})) is not None:
            raise ConfigError(f"{file} does not fit the model: {problem}")


def unknown_targets(model: str, layers: Collection[str], targets: Sequence[str]) -> str | None:
    """Why an adapter of ``targets`` does not fit ``model``, for the user; None where it does.

    layers: last parts of the names of the model's linear layers. Empty ``targets`` are an error.

    Example:
        >>> unknown_targets("Llama", ["q_proj", "v_proj"], ["query"])
        'model.lora.target_modules: Llama has no linear layers named query; it has q_proj, v_proj'
    """
    missing = [name for name in targets if name not in layers]
    if targets and not missing:
        return None
    return (
        f"model.lora.target_modules: {model} has no linear layers named "
        f"{', '.join(missing) or 'nothing'}; it has {', '.join(sorted(layers))}"
    )


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files of full weights; none where they are in PyTorch's own format."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        parts = _read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ConfigError(f"{index} lists no weights")
        return [path / name for name in sorted(set(parts.values()))]
    files = sorted(path.glob("*.safetensors"))
    if not files and not any(path.glob("*.bin")):
        raise ConfigError(f"{path} has no weights (*.safetensors)")
    return files


def _without_weights(config: ModelConfig) -> Any:
    """The configured model on the meta device: shapes without storage."""
    import torch
    from transformers import AutoModelForCausalLM

    from rlforge.models.load import load_model_config

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(load_model_config(config))


def _expected_shapes(path: Path, config: ModelConfig) -> Shapes:
    """The tensors that PEFT wants for the adapter in ``path`` over the configured model."""
    import torch
    from peft import PeftConfig, get_peft_model

    model = _without_weights(config)
    try:
        wanted: Any = PeftConfig.from_pretrained(str(path))
        if wanted.is_prompt_learning:
            raise ValueError("it changes prompts and no layers")
        wanted.init_lora_weights = False  # some kinds start from the base weights, absent here
        wanted.base_model_name_or_path = model.name_or_path  # compared by the caller
        with torch.device("meta"):
            return adapter_shapes(get_peft_model(model, wanted))
    except (KeyError, TypeError, ValueError) as error:  # PEFT raises these for odd settings
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"the adapter in {path} does not fit the model: {reason[0]}") from error


def _read_json(file: Path) -> dict[str, Any]:
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


def _last_part(model: str) -> str:
    """The last part of an id or path: caches are at other paths on other machines."""
    return model.rstrip("/").rsplit("/", 1)[-1]
