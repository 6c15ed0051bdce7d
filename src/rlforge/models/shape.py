"""The sizes of a decoder that its memory depends on; knows no torch."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlforge.config.model import ALL_LINEAR, LoraConfig
from rlforge.types import value

#: Architectures described here, by ``model_type``.
FAMILIES = ("llama", "qwen2", "qwen3")

_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")


@value
class ModelShape:
    """A model of the Llama kind: RMS norms, grouped-query attention, gated feed-forward.

    Attributes:
        heads, kv_heads, head_dim: Heads, and the width of one, in attention.
        tied: The output layer shares the weights of the input embedding.
        head_norms: Queries and keys are normalised per head (Qwen3).

    Example:
        >>> known_shape("Qwen/Qwen3-1.7B-Base").parameters
        1720574976
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool
    head_norms: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False

    @property
    def query(self) -> int:
        """Width of all queries."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers in one decoder layer, by name."""
        return {
            "q_proj": (self.hidden, self.query),
            "k_proj": (self.hidden, self.key),
            "v_proj": (self.hidden, self.key),
            "o_proj": (self.query, self.hidden),
            "gate_proj": (self.hidden, self.ffn),
            "up_proj": (self.hidden, self.ffn),
            "down_proj": (self.ffn, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of the linear layers in all decoder layers, without biases."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears.values())

    @property
    def parameters(self) -> int:
        """All parameters; a tied output layer counts once."""
        biases = self.qkv_bias * (self.query + 2 * self.key) + self.o_bias * self.hidden
        biases += self.mlp_bias * (2 * self.ffn + self.hidden)
        norms = 2 * self.hidden + self.head_norms * 2 * self.head_dim
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        # The last term is the norm behind all layers.
        return embeddings + self.linear_parameters + self.layers * (biases + norms) + self.hidden

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Parameters of a LoRA adapter: r (inputs + outputs) per adapted layer (Hu et al. 2021)."""
        sizes = self.linears | {"lm_head": (self.hidden, self.vocab)}
        return lora.rank * sum(
            layers * sum(sizes[name]) for name, layers in self.adapted(lora).items()
        )

    def adapted(self, lora: LoraConfig) -> Counter[str]:
        """How many linear layers an adapter targets, by the last part of their names."""
        targets = lora.target_modules
        fixed = targets if isinstance(targets, str) else tuple(targets)
        return _adapted(self, fixed, self.layers - lora.adapted_layers(self.layers))

    @property
    def layer_names(self) -> dict[str, bool]:
        """Names of all linear layers, as ``targets.linear_layers`` gives them."""
        names = {
            f"model.layers.{number}.{'self_attn' if name[0] in 'qkvo' else 'mlp'}.{name}": False
            for number in range(self.layers)
            for name in self.linears
        }
        return names | {"lm_head": True}


@functools.cache
def _adapted(shape: ModelShape, targets: str | tuple[str, ...], first: int) -> Counter[str]:
    """``ModelShape.adapted`` in the layers from ``first`` on."""
    # A plan asks many times, so counts are cached, by a tuple: a list cannot be a cache's key.
    lora = LoraConfig(target_modules=targets if isinstance(targets, str) else [*targets])
    return Counter(
        name.rpartition(".")[2]
        for name, is_head in shape.layer_names.items()
        if lora.adapts(name, head=is_head) and (is_head or int(name.split(".")[2]) >= first)
    )


def shape_from_config(name: str, config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a Hugging Face ``config.json`` describes; None for another architecture.

    Raises ValueError for a size that is none.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES or config.get("use_sliding_window"):
        return None
    heads = config["num_attention_heads"]
    biased = bool(config.get("attention_bias", False)) or kind == "qwen2"
    shape = ModelShape(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        head_norms=kind == "qwen3",
        qkv_bias=biased,
        o_bias=biased and kind != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
    )
    sizes = (getattr(shape, name) for name in _SIZES)
    if wrong := [size for size in sizes if type(size) is not int or size < 1]:
        raise ValueError(f"{wrong[0]!r} is no size")
    return shape


def _published(name: str, *sizes: int, tied: bool = True, head_norms: bool = False) -> ModelShape:
    named: dict[str, Any] = dict(zip(_SIZES, sizes, strict=True))
    return ModelShape(name=name, tied=tied, head_norms=head_norms, **named)


#: Published shapes, so that tables and plans need no network: the sizes of ``_SIZES``.
KNOWN = (
    _published("Qwen3-1.7B", 28, 2048, 16, 8, 128, 6144, 151936, head_norms=True),
    _published("Qwen3-4B", 36, 2560, 32, 8, 128, 9728, 151936, head_norms=True),
    _published("Qwen3-8B", 36, 4096, 32, 8, 128, 12288, 151936, tied=False, head_norms=True),
    _published("Llama-3.2-1B", 16, 2048, 32, 8, 64, 8192, 128256),
    _published("Llama-3.2-3B", 28, 3072, 24, 8, 128, 8192, 128256),
    _published("SmolLM2-135M", 30, 576, 9, 3, 64, 1536, 49152),
)


def known_shape(name: str) -> ModelShape | None:
    """The shape of a model of ``KNOWN``, by Hugging Face id; base and chat models share one."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    for ending in ("-base", "-instruct"):
        last = last.removesuffix(ending)
    return next((shape for shape in KNOWN if shape.name.lower() == last), None)


def unknown_targets(model: str, layers: Mapping[str, bool], lora: LoraConfig) -> str | None:
    """Why an adapter of ``lora`` does not fit ``model``, for the user; None where it does.

    layers: as ``ModelShape.layer_names``.

    Example:
        >>> layers = {"layers.0.q_proj": False, "layers.0.v_proj": False, "lm_head": True}
        >>> unknown_targets("Llama", layers, LoraConfig(target_modules=["q_proj", "query"]))
        'model.lora.target_modules: Llama has no linear layers named query; it has ...'
    """
    targets = lora.target_modules
    alone = [[one] for one in targets] if isinstance(targets, list) else [targets]
    missing = [
        "".join(one)
        for one in alone
        if not any(
            replace(lora, target_modules=one).adapts(name, head=is_head)
            for name, is_head in layers.items()
        )
    ]
    if alone and not missing:
        return None
    if isinstance(targets, list):
        what = f"named {', '.join(missing) or 'nothing'}"
    elif targets == ALL_LINEAR:
        what = "but its output layer"
    else:
        what = f"whose whole names are matched by {targets}; names are given as a list, [{targets}]"
    found = sorted({name.rpartition(".")[2] for name in layers})
    return (
        f"model.lora.target_modules: {model} has no linear layers {what}; it has "
        f"{', '.join(found) or 'none'}"
    )
