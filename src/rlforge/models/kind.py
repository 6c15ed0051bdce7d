"""Checks whether a causal language model is a decoder that attends to all tokens before."""

from __future__ import annotations

from typing import Any

from rlforge.errors import ConfigError

#: Layers that carry a state from token to token instead of attending to all tokens before.
_RECURRENT = {"linear_attention", "conv", "mamba", "recurrent"}

_LATER = "attention to later tokens, as an encoder has"

#: Properties of a model type that no module shows.
_KNOWN = {
    "cpmant": _LATER,
    "prophetnet": "log-probs that depend on how many tokens follow",
    "xlnet": _LATER,
}

#: Model types whose answers from kept keys and values fail or differ in the engine's trial.
_WHOLE = {
    *("axk2", "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "blt", "deepseek_v32"),
    *("deepseek_v4", "git", "glm_moe_dsa", "hy_v4", "inkling_text", "marian", "mbart", "mvp"),
    *("openai-gpt", "pegasus", "plbart", "trocr"),
}


def untrainable(model: Any) -> str:
    """The property for which a model, which may be an empty one, cannot be trained; "": none.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> untrainable(GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1)))
        ''
    """
    config = model.config.get_text_config()
    layers = set(getattr(config, "layer_types", None) or ())
    # ``_is_stateful`` marks a class of hybrids, of which a model may have only attention layers.
    attends = bool(layers) and all(each.endswith("_attention") for each in layers)
    if (getattr(model, "_is_stateful", False) and not attends) or layers & _RECURRENT:
        return "a recurrent state"
    if getattr(model.config, "is_encoder_decoder", False):
        return "an encoder beside its decoder"
    if any(getattr(module, "is_decoder", True) is False for module in model.modules()):
        return _LATER
    return _KNOWN.get(config.model_type, "")


def check_trainable(model: Any) -> None:
    """Raise ConfigError for a model that is ``untrainable``."""
    if problem := untrainable(model):
        raise ConfigError(
            f"{type(model).__name__} has {problem}: what it says of a token must follow from the "
            "tokens before by attention; choose another model"
        )


def whole_passes_note(model: Any) -> str | None:
    """A note on a model that the engine ``transformers`` reads whole; None for others."""
    if model.config.get_text_config().model_type not in _WHOLE:
        return None
    return (
        f"{type(model).__name__} is read whole for each token that engine=transformers draws: it "
        "keeps more than keys and values, or counts positions without their mask; answers are "
        "exact, and take longer"
    )
