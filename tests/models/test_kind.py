"""Which causal language models can be trained, seen from an empty one."""

from __future__ import annotations

import pytest
import torch
from tests.factories import causal_lm

from rlforge.errors import ConfigError
from rlforge.models.kind import check_trainable, untrainable, whole_passes_note


def empty(kind, **changes):
    with torch.device("meta"):
        return causal_lm(kind, **changes)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bloom", "gpt_neox", "gemma3_text"])
def test_decoders_can_be_trained(kind):
    assert untrainable(empty(kind)) == ""


def test_an_encoder_can_be_trained_once_it_is_a_decoder():
    assert "encoder" in untrainable(empty("bert"))
    assert untrainable(empty("bert", is_decoder=True)) == ""


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        ("mamba", {"intermediate_size": None}, "recurrent state"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "recurrent state"),
        ("qwen3_next", {}, "recurrent state"),
        ("roberta", {}, "attention to later tokens"),
        ("xlnet", {"max_position_embeddings": None, "d_head": 8}, "attention to later tokens"),
    ],
)
def test_a_refusal_names_a_property_of_the_model(kind, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        check_trainable(empty(kind, **changes))


def test_a_note_says_which_models_are_read_whole():
    assert "read whole" in (whole_passes_note(empty("openai-gpt", head_dim=None)) or "")
    assert whole_passes_note(empty("llama")) is None
