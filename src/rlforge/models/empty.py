"""Facts about a model without its weights: it is built on torch's meta device."""

from __future__ import annotations

from typing import Any

from rlforge.config.model import ModelConfig
from rlforge.errors import ConfigError, first_line
from rlforge.models.load import load_model_config

#: Ends of the names of architectures in ``config.json`` that score texts and write none.
_OTHER_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice", "RewardModel")


def empty_model(config: ModelConfig) -> Any:
    """The configured model with shapes and no storage; ConfigError where it writes no text."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    described = load_model_config(config)
    # Loading would not fail: with tied embeddings such files have all weights of a text writer.
    named = [one for one in described.architectures or () if one.endswith(_OTHER_HEADS)]
    if type(described) not in MODEL_FOR_CAUSAL_LM_MAPPING or named:
        kind = f"it is a {named[0]}" if named else f"its model_type is {described.model_type}"
        raise ConfigError(
            f"{config.place} is no causal language model ({kind}); choose another model"
        )
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(described)
    except Exception as error:
        # Architectures raise errors of many kinds for impossible sizes.
        raise ConfigError(
            f"{config.place} cannot be built from its configuration: {first_line(error)}; check "
            "its config.json"
        ) from error


def embedded_tokens(model: Any) -> int:
    """How many tokens have a row in the input embedding, and in the output layer."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    return min(int(layer.weight.shape[0]) for layer in layers if layer is not None)


def tokens_without_row(tokenizer: Any, rows: int) -> list[str]:
    """Tokens that prompts and answers may hold and a model of ``rows`` tokens does not have.

    Example:
        >>> from tests.factories import byte_tokenizer
        >>> tokens_without_row(byte_tokenizer(), 10**6)
        []
    """
    # A special token counts only if template or tokenizer writes it: others, such as those of
    # images in a tokenizer that several models share, never appear in text.
    written = str(tokenizer.chat_template or "")
    own = {tokenizer.pad_token, tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token}
    special = {number for number, t in tokenizer.added_tokens_decoder.items() if t.special}
    return [
        token
        for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        if number >= rows and (number not in special or token in own or token in written)
    ]


def head_sizes(model: Any) -> tuple[list[int], bool]:
    """Sizes of the attention heads in all layers, and whether they are of latent vectors."""
    text = model.config.get_text_config()
    # DeepSeek-V2 caches one latent vector for all heads.
    if rank := getattr(text, "kv_lora_rank", None):
        return [rank + text.qk_rope_head_dim], True
    # Modules tell their own sizes, because one model may have several (Gemma 4).
    found = (getattr(module, "head_dim", None) for module in model.modules())
    sizes = sorted({size for size in found if isinstance(size, int)})
    return sizes or [text.hidden_size // text.num_attention_heads], False
