"""Whether a folder holds weights for the configured model: an adapter, or full weights.

Only names and shapes are read, from the headers of files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError, first_line
from rlforge.models.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, MODEL_CONFIG
from rlforge.record.files import RunPaths
from rlforge.system.checkpoint import find_checkpoint, step_name
from rlforge.system.files import unreadable

C = TypeVar("C", bound=PolicyConfig)

#: The shapes of tensors by name.
Shapes = dict[str, tuple[int, ...]]

#: Settings in ``adapter_config.json`` that plain LoRA has: W x + s B (A x) with one scale s on the
#: target modules. Some are about training, or matter only with others.
_PLAIN = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version"),
        *("revision", "task_type", "runtime_config", "megatron_config", "megatron_core"),
        *("r", "lora_alpha", "use_rslora", "target_modules", "lora_dropout", "qalora_group_size"),
        "fan_in_fan_out",
        *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
    }
)
#: Settings that choose among the layers.
_LAYERS = frozenset({"layers_to_transform", "layers_pattern", "exclude_modules"})
#: Settings by which layers compute more, which PEFT loads as saved.
_VARIANTS = frozenset(
    {"rank_pattern", "alpha_pattern", "use_dora", "modules_to_save", "trainable_token_indices"}
)
#: First values of A and B that leave the base weights as they are; others change those, too.
_FIRST_VALUES = (True, False, "gaussian", "orthogonal", "eva")
_MERGE = (
    "and {} LoRA without that; merge it into its base model (PEFT: merge_and_unload, then "
    "save_pretrained) and set model.name to that folder"
)


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


def settings_beyond(described: Mapping[str, Any], known: Collection[str] = ()) -> list[str]:
    """Settings, as KEY=VALUE, not ``known``, by which an adapter is more than plain LoRA.

    Example:
        >>> settings_beyond({"peft_type": "LORA", "r": 4, "use_dora": True, "bias": "none"})
        ['use_dora=True']
    """

    def is_off(name: str, value: Any) -> bool:
        if name == "init_lora_weights":
            return value in _FIRST_VALUES
        return value is None or value is False or value in ("none", [], {})

    # Unknown settings count, too: a later version of PEFT may change what layers compute.
    return [
        f"{name}={value!r}"
        for name, value in sorted(described.items())
        if name not in _PLAIN and name not in known and not is_off(name, value)
    ]


def untrainable(described: Mapping[str, Any], lora: LoraConfig, base: str = "") -> str | None:
    """Why training an adapter of ``lora`` cannot continue a saved one; None where it can.

    described: by ``read_adapter``. base: the base model; empty: not compared.
    """

    def ordered(targets: Any) -> Any:
        return sorted(targets) if isinstance(targets, list) else targets

    layers = described.get("layers_to_transform")
    # Adapters made with ``model.lora.last_layers`` have a list; any other form is refused.
    of_last = isinstance(layers, list)
    kind = described["peft_type"]
    beyond = settings_beyond(described, ("layers_to_transform",) if of_last else ())
    if kind != "LORA" or beyond:
        what = ", ".join(beyond) or f"peft_type={kind!r}"
        return f"has {what}, {_MERGE.format('the learner trains')}"
    targets, theirs = described.get("target_modules"), described.get("base_model_name_or_path")
    compared = [
        ("model.lora.rank", described.get("r"), lora.rank),
        ("model.lora.alpha", described.get("lora_alpha"), lora.alpha),
        ("model.lora.use_rslora", bool(described.get("use_rslora")), lora.use_rslora),
        ("model.lora.target_modules", ordered(targets), ordered(lora.target_modules)),
        ("model.lora.last_layers", len(layers) if layers else None, lora.last_layers),
    ]
    if theirs and base and not same_model(str(theirs), base):
        compared.append(("base model", theirs, base))
    different = [
        f"{key} {there!r} against {here!r}" for key, there, here in compared if there != here
    ]
    if not different:
        return None
    return (
        f"does not fit the configuration: {'; '.join(different)} (adapter against configuration); "
        "change the configuration to match"
    )


def largest_rank(described: dict[str, Any]) -> int:
    """The largest rank among the layers of an adapter."""
    ranks: list[int] = [described.get("r", 1), *(described.get("rank_pattern") or {}).values()]
    return max(ranks)


def read_shapes(file: Path) -> Shapes:
    """The shapes in a safetensors file; ConfigError where it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: tuple(opened.get_slice(name).get_shape()) for name in names}
    except FileNotFoundError:
        raise ConfigError(unreadable(file) or f"{file} is missing") from None
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{file} is damaged or truncated: {error}") from error


def shapes_of(tensors: Mapping[str, Any]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def misfit(found: Shapes, expected: Shapes) -> str | None:
    """The first difference, by name, from the tensors that the model takes; None: there is none.

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
    """``misfit`` of the file of an adapter."""
    # The file may also hold copies of base weights, which are not compared.
    return misfit({n: s for n, s in found.items() if "lora_" in n or n in expected}, expected)


def copy_adapter(peft_model: Any, tensors: Mapping[str, Any]) -> str | None:
    """Copy an adapter's tensors into a PEFT model; else return the ``adapter_misfit``."""
    import torch
    from peft import get_peft_model_state_dict

    places = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    if (problem := adapter_misfit(shapes_of(tensors), shapes_of(places))) is not None:
        return problem
    # PEFT's own loader takes some names for experts, and ignores unknown ones without an error.
    with torch.no_grad():
        for name, place in places.items():
            place.copy_(tensors[name])
    return None


def check_adapter_fits(path: Path, config: ModelConfig, base: str) -> list[str]:
    """Last parts of the names of the layers that an adapter changes; ConfigError for a misfit.

    base: as ``resolve_model(config)`` returns it.
    """
    described, file = read_adapter(path), path / ADAPTER_WEIGHTS
    beyond = settings_beyond(described, _LAYERS | _VARIANTS)
    if described["peft_type"] == "LORA" and beyond:
        raise ConfigError(
            f"the adapter in {path} has {', '.join(beyond)}, {_MERGE.format('rlforge plays')}"
        )
    theirs = described.get("base_model_name_or_path")
    if theirs and not same_model(theirs, base):
        raise ConfigError(
            f"the adapter in {path} is for another base model: {theirs}; this one is {base}"
        )
    found, expected = read_shapes(file), _expected_shapes(path, config)
    if (problem := adapter_misfit(found, expected)) is not None:
        raise ConfigError(f"{file} does not fit the model: {problem}")
    return sorted({name.partition(".lora_")[0].rsplit(".", 1)[-1] for name in expected})


def check_lora(path: Path, config: ModelConfig, most: int, *, vllm: bool = False) -> int:
    """The largest rank of a LoRA; ConfigError for one above ``most``, and for other weights.

    vllm: refuse variants of LoRA, too.
    """
    other = "; use engine=transformers" if vllm else ""
    if vllm and kind_of_weights(path) == "model":
        raise ConfigError(f"{path} holds full weights, and vLLM plays adapters only{other}")
    described = read_adapter(path)
    kind, rank = described["peft_type"], largest_rank(described)
    beyond = settings_beyond(described, _LAYERS) if vllm and kind == "LORA" else []
    if kind != "LORA" or beyond:
        raise ConfigError(
            f"the adapter in {path} is of kind {kind}{''.join(f', with {one}' for one in beyond)}"
            f"; {'plain LORA' if vllm else 'LORA'} is needed{other}"
        )
    if rank > most:
        raise ConfigError(
            f"the adapter in {path} has rank {rank}, and model.lora.rank={config.lora.rank} makes "
            f"room for {most}; raise model.lora.rank{', or use engine=transformers' * vllm}"
        )
    return rank


#: The problem of a folder that is to be continued from.
NO_ADAPTER = (
    f"no adapter there, {ADAPTER_CONFIG} is missing; name a run of rlforge sft or train, or the "
    "folder of an adapter"
)


def check_initial_adapter(path: Path, config: ModelConfig, base: str) -> None:
    """Raise ConfigError where training cannot continue the adapter in ``path``.

    base: as ``resolve_model(config)`` returns it.
    """
    from rlforge.models.empty import empty_model
    from rlforge.models.targets import adapted_layers

    if not (path / ADAPTER_CONFIG).is_file():
        raise ConfigError(f"learner.initial_adapter={path}: {NO_ADAPTER}")
    described, model = read_adapter(path), empty_model(config)
    lora = dataclasses.replace(config.lora, target_modules=adapted_layers(model, config.lora))
    theirs = dataclasses.replace(lora, target_modules=described.get("target_modules") or [])
    # Targets that this model lacks are shown as the file has them.
    with contextlib.suppress(ConfigError):
        described["target_modules"] = adapted_layers(model, theirs)
    if (problem := untrainable(described, lora, base)) is not None:
        raise ConfigError(f"learner.initial_adapter={path}: the adapter {problem}")


def check_model_fits(path: Path, config: ModelConfig, *, same_shapes: bool = False) -> None:
    """Raise ConfigError for full weights that are damaged, or have another vocabulary.

    same_shapes: the weights are to have the shapes of the configured model.
    """
    from rlforge.models.empty import empty_model
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
    expected = shapes_of(empty_model(config).state_dict()) if same_shapes else {}
    for file in _weight_files(path):
        found = {name: shape for name, shape in read_shapes(file).items() if name in expected}
        if (problem := misfit(found, {name: expected[name] for name in found})) is not None:
            raise ConfigError(f"{file} does not fit the model: {problem}")


def adapter_dropout(config: PolicyConfig) -> str | None:
    """A note on what ``model.lora.dropout`` does to the ratio of a loss; None without it."""
    dropout = config.model.lora.dropout
    if config.learner.train != "lora" or not dropout:
        return None
    return (
        f"model.lora.dropout={dropout:g}: old log-probs are measured without it, so the ratio of a "
        "loss differs from 1 by dropout alone, and where it is clipped a few tokens do not count"
    )


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        parts = _read_json(index).get("weight_map")
        if not isinstance(parts, dict):
            raise ConfigError(f"{index} lists no weights")
        return [path / name for name in sorted(set(parts.values()))]
    files = sorted(path.glob("*.safetensors"))
    # Weights in PyTorch's own format (*.bin) are accepted; only safetensors are looked at.
    if not files and not any(path.glob("*.bin")):
        raise ConfigError(f"{path} has no weights (*.safetensors)")
    return files


def _expected_shapes(path: Path, config: ModelConfig) -> Shapes:
    import torch
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    from rlforge.models.empty import empty_model

    model = empty_model(config)
    try:
        wanted: Any = PeftConfig.from_pretrained(str(path))
        if wanted.is_prompt_learning:
            raise ValueError("it changes prompts and no layers")
        # Some kinds compute their first values from base weights, which an empty model lacks.
        wanted.init_lora_weights = False
        # The caller compares base models; PEFT would warn of another name.
        wanted.base_model_name_or_path = model.name_or_path
        with torch.device("meta"):
            adapted = get_peft_model(model, wanted)
        return shapes_of(get_peft_model_state_dict(adapted, save_embedding_layers=False))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the adapter in {path} does not fit the model: {first_line(error)}"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is not a JSON object")
    return found


def same_model(first: str, second: str) -> bool:
    """Whether the last parts of two ids or paths are the same name, as the hub compares names.

    Example:
        >>> same_model("Qwen/Qwen3-1.7B-Base", "/models/qwen3-1.7b-base/")
        True
    """
    # Only the last parts count, because caches are at different paths on different machines.
    name, other = (model.rstrip("/").rsplit("/", 1)[-1].casefold() for model in (first, second))
    return name == other


def start_of(config: PolicyConfig, run_dir: Path | None = None) -> Path | None:
    """The folder of the adapter that the run starts from; None: it starts from the model.

    Raises CheckpointError where ``learner.initial_adapter`` is a run without a version.
    """
    given = config.learner.initial_adapter
    if given is None:
        return None
    # A run that has begun keeps a copy: the adapter may have changed since, or be deleted.
    if run_dir is not None and (own := RunPaths(root=run_dir).checkpoints / step_name(0)).exists():
        return own
    run = RunPaths(root=Path(given))
    return find_checkpoint(run.checkpoints) if run.is_run() else run.root
