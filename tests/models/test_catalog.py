"""A model's shape is found where the model is, without loading it."""

import json

import pytest
from tests.harness.hub import copy_of_hub

from rlforge.config.model import ModelConfig
from rlforge.models.catalog import locate
from rlforge.models.devices import resolve_device, resolve_dtype
from rlforge.models.files import cache_dir
from rlforge.models.load import load_base_model
from rlforge.models.shape import KNOWN
from rlforge.models.smollm2 import CACHE_NAME

COMPLETE = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 10}
COMPLETE |= {"num_attention_heads": 2, "intermediate_size": 16}


def test_the_shape_of_a_local_model_counts_its_parameters(small_model):
    config = ModelConfig(name=str(small_model))
    device = resolve_device("cpu")
    model = load_base_model(config, device, resolve_dtype("float32", device))
    found = locate(config)
    assert found.place == str(small_model)
    assert found.shape.parameters == model.num_parameters()


def test_the_hubs_local_copy_is_read(tmp_path, monkeypatch):
    snapshot = copy_of_hub(monkeypatch, tmp_path)
    (snapshot / "config.json").write_text(json.dumps(COMPLETE))
    found = locate(ModelConfig(name="org/m"))
    assert found.place == str(snapshot)
    assert (found.shape.layers, found.shape.kv_heads, found.shape.head_dim) == (2, 2, 4)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("Qwen/Qwen3-4B-Base", KNOWN[1]), ("some/unknown", None), ("not a name", None), (None, None)],
)
def test_published_models_are_known_without_a_network(name, shape):
    found = locate(ModelConfig(name=name))
    assert found.shape == shape
    assert "not on this machine" in found.place


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"model_type": "llama"}', '{"model_type": "mamba"}'),
        json.dumps(COMPLETE | {"vocab_size": "10"}),
        json.dumps(COMPLETE | {"num_hidden_layers": "2"}),
        json.dumps(COMPLETE | {"intermediate_size": 16.5}),
        json.dumps(COMPLETE | {"hidden_size": -8}),
    ],
)
def test_an_incomplete_config_gives_no_shape(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    assert locate(ModelConfig(name=str(tmp_path))).shape is None


def test_the_shape_of_a_tiny_model_is_known_once_it_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("RLFORGE_CACHE", str(tmp_path))
    assert locate(ModelConfig(kind="tiny")).shape is None
    assert locate(ModelConfig(kind="smollm2_135m")).shape == KNOWN[-1]
    made = cache_dir() / CACHE_NAME
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    assert locate(ModelConfig(kind="smollm2_135m")).place == str(made)
