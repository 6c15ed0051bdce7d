"""Loads every kind of model as a Hugging Face model and tokenizer."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlforge.config.model import ModelConfig
from rlforge.config.schema import PolicyConfig
from rlforge.errors import ConfigError
from rlforge.models.files import ADAPTER_CONFIG, MODEL_CONFIG, VALUE_HEAD, no_progress_bars
from rlforge.models.made import made_model
from rlforge.system.files import unreadable
from rlforge.system.hub import hub_errors, hub_silence
from rlforge.system.network import (
    ProxyError,
    check_proxies,
    spare_loopback,
    through,
    without_credentials,
)

# Locating a model and reading its tokenizer need no torch, whose import takes seconds.
if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: Tokens that end a turn of chat models, apart from the end of the text.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>", "<|end|>")

#: Seconds within which the hub answers, or counts as out of reach.
_HUB_TIMEOUT_S = 5.0

#: Files of a model beside its weights.
_DESCRIPTIONS = ("*config.json", "tokenizer.json", "*.index.json", "*.jinja")

#: Model types that count positions from behind that of the padding token.
_AFTER_PADDING = {
    *("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta"),
    *("xlm-roberta-xl", "xmod"),
}


def resolve_model(config: ModelConfig, progress: Callable[[str], None] = log.info) -> str:
    """The folder or Hugging Face id of a model, which is made where it is not made yet.

    progress: called with a line on each slow step. Raises ConfigError.
    """
    if made := made_model(config.kind):
        return str(made.make(progress))
    assert config.name is not None, f"model.kind={config.kind} without model.name"
    folder = Path(config.name).expanduser()
    if not folder.is_dir():
        return _hub_id(config.name)
    if (folder / MODEL_CONFIG).is_file():
        return str(folder)
    if (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(
            f"model.name {config.name} is an adapter; take the model that its "
            f"{ADAPTER_CONFIG} names, and learner.initial_adapter={config.name}"
        )
    raise ConfigError(f"model.name {config.name} is a directory without {MODEL_CONFIG}")


def local_copy(config: ModelConfig) -> Path | None:
    """The folder with the model's files; None where it is still to be made or fetched."""
    made = made_model(config.kind)
    folder = made.folder if made is not None else Path(config.name or "").expanduser()
    # A folder that may not be looked into counts as not there.
    if os.path.isfile(folder / MODEL_CONFIG):
        return folder
    return None if made is not None else _cached(config.name or "")


def unfetched(config: ModelConfig) -> bool:
    """Whether the weights of a model of the hub are not, or not all, on this machine."""
    name = config.name or ""
    if made_model(config.kind) is not None or Path(name).expanduser().is_dir():
        return False
    folder, shards = _cached(name), set()
    if folder is None:
        return True
    for index in folder.glob("*.index.json"):
        try:
            shards |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, TypeError, KeyError, AttributeError):
            # A damaged index counts as unfetched; loading says what is wrong.
            return True
    found = [*folder.glob("*.safetensors"), *folder.glob("*_model*.bin")]
    return not found or not shards <= {file.name for file in found}


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(name, MODEL_CONFIG)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def check_source(config: ModelConfig) -> None:
    """Raise ConfigError where the model is neither on this machine nor on the hub; fetches none."""
    if made_model(config.kind) is not None:
        return
    name = resolve_model(config)
    if local_copy(config) is not None:
        return
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    name = _where(name)
    try:
        HfApi(endpoint=constants.ENDPOINT).model_info(name, timeout=10)
    except GatedRepoError:
        problem = "its licence is to be accepted on the hub first, and HF_TOKEN to be set"
    except RepositoryNotFoundError:
        problem = "neither a folder nor a model of the hub, or a private one: then set HF_TOKEN"
    except hub_errors() as error:
        problem = f"the hub does not answer{hub_silence(error)}"
        if through(constants.ENDPOINT):
            raise ProxyError(f"model.name={name}: {problem}") from error
    else:
        return
    raise ConfigError(f"model.name={name}: {problem}")


def _hub_id(name: str) -> str:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise ConfigError(f"model.name={name}: there is no such directory")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(
            f"model.name={name} is no directory and no Hugging Face id: {error}"
        ) from error
    return name


def load_tokenizer(config: ModelConfig) -> Any:
    """The tokenizer, with a padding token and the arguments of its template; or ConfigError."""
    tokenizer = _load(config, _read_tokenizer)
    tokenizer.chat_template_args = config.chat_template_args
    if tokenizer.pad_token_id is None:
        # Nothing reads padding, so any token will do.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _read_tokenizer(place: str) -> Any:
    file = Path(place) / "tokenizer_config.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    # ``TokenizersBackend`` needs only its tokenizer.json and no torch: a collector of a tiny model
    # takes 0.1 GB instead of 0.5, and starts 4 seconds sooner.
    if known.get("tokenizer_class") == "TokenizersBackend":
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(place)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(place)


def load_decoder(config: ModelConfig) -> Callable[[Iterable[Sequence[int]]], list[str]]:
    """A function that gives the texts of sequences of token ids, with their control tokens."""
    folder = local_copy(config)
    if folder is not None and (folder / "tokenizer.json").is_file():
        # Without transformers, an actor that only decodes starts seconds sooner.
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokenizer = load_tokenizer(config)
    return lambda texts: [tokenizer.decode(ids, skip_special_tokens=False) for ids in texts]


def load_base_model(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """The untrained causal language model, in evaluation mode; or ConfigError."""
    from rlforge.models.products import speed_up_linear_layers

    model, lacking = _load(config, read_model, dtype=dtype)
    if lacking:
        raise ConfigError(f"{config.place}: {lacking}")
    # Adapters record this as their base: a copy's path in some cache would not say which.
    model.name_or_path = model.config._name_or_path = resolve_model(config)
    model.to(device).eval()
    speed_up_linear_layers(model)
    return model


def lacking_weights(config: ModelConfig) -> str:
    """Which weights the model's files lack, or hold in other forms; "" if they are complete."""
    from transformers.quantizers.auto import AutoHfQuantizer

    lacking = str(_load(config, read_model, device_map="meta")[1])
    folder = local_copy(config)
    how = getattr(load_model_config(config), "quantization_config", None)
    if lacking or folder is None or (how and AutoHfQuantizer.supports_quant_method(how)):
        return lacking
    return _quantised(folder)


def _quantised(folder: Path) -> str:
    """The first weight that is stored with a scale of its own, for the user; "" without one."""
    from safetensors import safe_open

    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # not a dictionary
                kind = opened.get_slice(name).get_dtype()
                # Transformers would load quantised weights as if they had no scale.
                if name.endswith("weight") and kind not in ("F64", "F32", "F16", "BF16"):
                    return (
                        f"{name} is of {kind} numbers, and its config.json has no "
                        "quantization_config that transformers knows; take a version of it that is "
                        "not quantised"
                    )
    return ""


def read_model(place: str, **options: Any) -> tuple[Any, str]:
    """The model in ``place``, and what its files lack or hold in other shapes; "" if nothing."""
    from transformers import AutoModelForCausalLM

    # Transformers draws missing weights at random, and says so only in its log.
    model, found = AutoModelForCausalLM.from_pretrained(
        place, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    model.config.return_dict = model.config.get_text_config().return_dict = True
    wrong = [
        f"{name} is {tuple(theirs)} in its files and {tuple(ours)} by its config.json"
        for name, theirs, ours in sorted(found["mismatched_keys"])
    ]
    wrong += [f"its files lack {name}" for name in sorted(found["missing_keys"])]
    if not wrong:
        return model, ""
    more = f" (and {len(wrong) - 1:,} more)" if wrong[1:] else ""
    return model, f"{wrong[0]}{more}; take a complete version of it"


def load_model_config(config: ModelConfig) -> Any:
    """The Hugging Face configuration of the model; or ConfigError."""
    from transformers import AutoConfig
    from transformers.utils import find_adapter_config_file

    # Transformers would load that adapter, too, and a new adapter would then be on its layers.
    if _load(config, find_adapter_config_file) is not None:
        raise ConfigError(
            f"{config.place}: there is an {ADAPTER_CONFIG} beside {MODEL_CONFIG}; take the model "
            "that the former names, or one into which the adapter is merged"
        )
    # Otherwise transformers asks whether to run a model's own code, which rlforge never does.
    return _load(config, AutoConfig.from_pretrained, trust_remote_code=False)


def positions(described: Any) -> int:
    """Most tokens that a model has positions for. described: its Hugging Face configuration."""
    text = described.get_text_config()
    given = (getattr(text, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    most = next((int(each) for each in given if each), sys.maxsize)
    if text.model_type in _AFTER_PADDING:
        most -= (text.pad_token_id or 0) + 1
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for each in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        # Past its original positions LongRoPE rotates all earlier tokens differently, so a pass
        # over a whole sequence does not give the log-probs that its tokens were drawn from.
        if each.get("rope_type", each.get("type")) in ("longrope", "su"):
            first = each.get("original_max_position_embeddings")
            first = first or getattr(text, "original_max_position_embeddings", None)
            most = min(most, first or most)
    return most


def model_positions(config: ModelConfig) -> int:
    """``positions`` of a configured model; ConfigError as ``load_model_config``."""
    folder = local_copy(config)
    if folder is not None and made_model(config.kind) is not None:
        # Transformers' classes import torch, which takes seconds; a damaged file is left to them,
        # because their errors say what is wrong.
        with contextlib.suppress(OSError, ValueError, KeyError):
            described = json.loads((folder / MODEL_CONFIG).read_text(encoding="utf-8"))
            if described["model_type"] == "llama":
                return int(described["max_position_embeddings"])
    return positions(load_model_config(config))


def prompt_room(config: PolicyConfig) -> int:
    """Tokens of the longest prompt that an answer of ``engine.max_tokens`` can follow."""
    engine = config.engine
    most = min(engine.max_model_len, model_positions(config.model))
    if most <= engine.max_tokens:
        raise ConfigError(
            f"engine.max_tokens={engine.max_tokens} leaves no room for a prompt: {most} tokens of "
            f"both fit into engine.max_model_len and the model {config.model.label}; lower it"
        )
    return most - engine.max_tokens


def model_source(config: ModelConfig) -> str:
    """The directory to load the model from, or its hub id if the hub can be reached."""
    return _where(resolve_model(config))


def listed_ends(config: ModelConfig) -> set[int]:
    """Ids of the tokens that end an answer by ``generation_config.json``; or ConfigError."""
    from transformers.utils import cached_file

    try:
        file = cached_file(model_source(config), "generation_config.json")
        described = json.loads(Path(str(file)).read_text(encoding="utf-8"))
        if not isinstance(described, dict):
            raise ValueError("it holds no object")
        listed = described.get("eos_token_id")
        ids = {*(listed if isinstance(listed, list) else [listed])} - {None}
        if wrong := [each for each in ids if type(each) is not int]:
            raise ValueError(f"eos_token_id holds {wrong[0]!r}, which is no id of a token")
    except OSError:
        # Base models often lack this file, which is no error.
        return set()
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{config.place}: its generation_config.json cannot be read: {error}; mend or delete it"
        ) from error
    return ids


def stop_token_ids(config: ModelConfig, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end an answer: ``listed_ends``, end of text, end of turn."""
    vocabulary = tokenizer.get_vocab()
    ids = {vocabulary[token] for token in _END_OF_TURN if token in vocabulary}
    return tuple(sorted((ids | listed_ends(config) | {tokenizer.eos_token_id}) - {None}))


def load_value_head(config: ModelConfig) -> dict[str, torch.Tensor] | None:
    """Initial weights of a value head, weight [1, H] and bias [1], if the model has some.

    The head reads the last hidden state (after the final norm) of the last prompt token.
    """
    from safetensors.torch import load_file

    path = Path(resolve_model(config)) / VALUE_HEAD
    if denied := unreadable(path):
        raise ConfigError(f"{config.place}: {denied}")
    return load_file(path) if path.is_file() else None


def _load(config: ModelConfig, loader: Callable[..., Any], **options: Any) -> Any:
    source = resolve_model(config)
    place = _where(source)
    try:
        with no_progress_bars():
            return loader(place, **options)
    except Exception as error:
        # OSError for missing files, ValueError for an unknown architecture, ImportError for formats
        # that need a package, and each configuration raises its own for sizes that cannot be.
        if denied := unreadable(Path(place)):
            raise ConfigError(
                f"model {source!r} cannot be loaded: {denied}; its owner can open it to others "
                "with chmod -R a+rX"
            ) from error
        lines = [line.strip() for line in str(error).strip().splitlines()]
        reason = _damaged(Path(place)) or next(iter(lines), type(error).__name__)
        if reason.endswith(":") and lines[1:]:
            reason = f"{reason} {lines[1]}"
        mend = "check model.name" if config.kind == "hf" else "delete it, and it is made again"
        raise ConfigError(f"model {source!r} cannot be loaded: {reason}; {mend}") from error


def _damaged(folder: Path) -> str:
    # Errors of libraries say what is wrong in a file, but not in which one.
    for file in sorted(each for form in _DESCRIPTIONS for each in folder.glob(form)):
        try:
            text = file.read_text(encoding="utf-8")
            if file.suffix == ".json" and not isinstance(json.loads(text), dict):
                return f"{file} is no JSON object"
        except ValueError as error:
            return f"{file} is damaged: {error}"
    return ""


def _where(source: str) -> str:
    """The directory or id to load from, or the hub's local copy; ConfigError without one."""
    if Path(source).is_dir() or hub_is_reachable():
        return source
    # Without a network the hub's client tries for a minute per file before it reads its copy.
    cached = _cached(source)
    if cached is None:
        from huggingface_hub import constants

        proxy = ""
        if not constants.HF_HUB_OFFLINE:
            check_proxies()
            proxy = through(constants.ENDPOINT)
        hub = "the Hugging Face hub"
        if os.environ.get("HF_ENDPOINT"):
            hub = f"the hub at HF_ENDPOINT={without_credentials(constants.ENDPOINT)}"
        raise (ProxyError if proxy else ConfigError)(
            f"model.name={source}: not on this machine, neither a folder nor a copy of the hub's, "
            f"and {hub} cannot be reached{proxy}"
        )
    return str(cached)


@lru_cache(maxsize=1)
def hub_is_reachable() -> bool:
    """Whether the Hugging Face hub can be reached; tried once per process."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    spare_loopback(constants.ENDPOINT)
    try:
        check_proxies()
        get_session().head(constants.ENDPOINT, timeout=_HUB_TIMEOUT_S)
    except ConfigError:
        return False
    except hub_errors():
        return False
    return True
