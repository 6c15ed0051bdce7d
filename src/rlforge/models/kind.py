"""What a causal language model must be: a decoder that attends to all tokens before."""

from __future__ import annotations

from typing import Any

from rlforge.errors import ConfigError

#: Layers that carry a state from token to token instead of attending to all tokens before.
_RECURRENT = {"linear_attention", "conv", "mamba", "recurrent"}

#: Model types whose attention to later tokens no module tells.
_BOTH_WAYS = {"cpmant", "xlnet"}


def untrainable(model: Any) -> str:
    """The property for which a causal language model cannot be trained; "" where there is none.

    model: may be an empty one, on the meta device.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> untrainable(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1)))
        ''
    """
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    if layers & _RECURRENT or getattr(model, "_is_stateful", False):
        return "a recurrent state"
    if getattr(model.config, "is_encoder_decoder", False):
        return "an encoder beside its decoder"
    both_ways = any(getattr(module, "is_decoder", True) is False for module in model.modules())
    if both_ways or config.model_type in _BOTH_WAYS:
        return "the attention of an encoder, to later tokens too"
    return ""


def check_trainable(model: Any) -> None:
    """Raise ConfigError for a model that has a property for which it cannot be trained."""
    if problem := untrainable(model):
        raise ConfigError(
            f"{type(model).__name__} has {problem}: what it says of a token must follow from the "
            "tokens before by attention; choose another model"
        )
