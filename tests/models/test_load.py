"""One loader for every kind of model, and clear messages when a model cannot be loaded."""

# ruff: noqa: N802 - names of the library

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session
from peft import LoraConfig, get_peft_model
from tests import factories
from tests.harness.hub import copy_of_hub
from tests.harness.hub import hub as local_hub
from tests.harness.permissions import public_folder, without_rights
from tests.harness.server import Answers
from transformers import (
    AutoTokenizer,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MptConfig,
    RobertaConfig,
)

from rlforge.config.model import ModelConfig
from rlforge.errors import ConfigError
from rlforge.models import load
from rlforge.models.load import (
    check_source,
    hub_is_reachable,
    load_base_model,
    load_model_config,
    load_tokenizer,
    positions,
)
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.system.network import ProxyError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub_is_reachable.cache_clear()
    yield
    hub_is_reachable.cache_clear()


@pytest.fixture
def local_model(tmp_path):
    """A chat model of random weights in a directory, without a padding token."""
    tokenizer = build_tokenizer([" a"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.pad_token = None
    model = factories.llama(vocab_size=len(tokenizer), num_hidden_layers=1)
    model.generation_config.eos_token_id = [1, 5]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return ModelConfig(kind="hf", name=str(tmp_path / "model"))


def test_a_local_directory_is_loaded(local_model, capfd):
    assert load.resolve_model(local_model) == local_model.name
    model = load_base_model(local_model, CPU, torch.bfloat16)
    assert model.dtype is torch.bfloat16
    assert not model.training
    assert model.name_or_path == local_model.name
    tokenizer = load_tokenizer(local_model)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert load.load_value_head(local_model) is None
    assert capfd.readouterr() == ("", "")


@pytest.mark.ray
def test_the_tokenizer_of_a_tiny_model_needs_no_torch(small_model):
    code = f"""
import sys
from rlforge.config.model import ModelConfig
from rlforge.models.load import load_tokenizer, stop_token_ids
model = ModelConfig(kind="hf", name={str(small_model)!r})
stop_token_ids(model, load_tokenizer(model))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    ours = load_tokenizer(ModelConfig(kind="hf", name=str(small_model)))
    theirs = AutoTokenizer.from_pretrained(str(small_model))
    assert type(ours) is type(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.init_kwargs.keys() == theirs.init_kwargs.keys()


def test_stop_tokens_come_from_generation_config_and_tokenizer(local_model):
    tokenizer = load_tokenizer(local_model)
    end_of_turn = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert load.stop_token_ids(local_model, tokenizer) == tuple(sorted({1, 5, end_of_turn}))
    (Path(local_model.name) / "generation_config.json").unlink()
    settings = Path(local_model.name) / "config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "eos_token_id": None}))
    assert load.stop_token_ids(local_model, tokenizer) == tuple(sorted({1, end_of_turn}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(kind="hf", name="org/absent"), "not on this machine.*cannot be reached"),
        (ModelConfig(kind="hf", name="not an id!"), "no Hugging Face id"),
        (ModelConfig(kind="hf", name="/nowhere/model"), "=/nowhere/model: there is no such"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_named(config, message):
    for loader in (load_tokenizer, load_model):
        with pytest.raises(ConfigError, match=message):
            loader(config)


def test_directories_without_a_model_are_named(local_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty is a directory without config\.json"):
        load.resolve_model(ModelConfig(kind="hf", name=str(tmp_path / "empty")))
    (Path(local_model.name) / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model '.*model' cannot be loaded"):
        load_base_model(local_model, CPU, torch.float32)


def test_a_model_with_an_adapter_beside_it_is_refused(local_model):
    model = get_peft_model(factories.llama(), LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(local_model.name)
    with pytest.raises(ConfigError, match=r"there is an adapter_config\.json beside config\.json"):
        load_model_config(local_model)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_named(name, content, local_model):
    file = Path(local_model.name) / name
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"cannot be loaded: {file} is (no JSON object|damaged)"):
        load_tokenizer(local_model)


def load_model(config):
    return load_base_model(config, CPU, torch.float32)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_of_another_user_is_not_told_as_a_missing_one(name, local_model):
    """The weights of a cache or an export that was made for its owner alone."""
    with public_folder() as folder:
        model = shutil.copytree(local_model.name, folder / "model")
        for file in model.iterdir():
            file.chmod(0 if file.name == name else 0o644)
        config = ModelConfig(kind="hf", name=str(model))
        load_it = load_tokenizer if name == "tokenizer.json" else load_model
        told = pytest.raises(
            ConfigError, match=f"loaded: {model / name}: Permission denied; .*chmod"
        )
        with without_rights(), told:
            load_it(config)


def test_an_unreachable_hub_falls_back_to_its_local_copy(local_model, tmp_path, monkeypatch):
    Path(local_model.name).rename(copy_of_hub(monkeypatch, tmp_path / "hub"))
    config = ModelConfig(kind="hf", name="org/m")
    assert load_tokenizer(config).eos_token == "<eos>"
    assert load_base_model(config, CPU, torch.float32).name_or_path == "org/m"
    assert 5 in load.stop_token_ids(config, load_tokenizer(config))


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ([], True),
        (["model.safetensors"], False),
        (["pytorch_model.bin"], False),
        (["model-1.safetensors"], True),
        (["model-1.safetensors", "model-2.safetensors"], False),
    ],
)
def test_weights_of_the_hub_are_here_once_all_their_files_are(
    files, missing, tmp_path, monkeypatch
):
    folder, config = copy_of_hub(monkeypatch, tmp_path), ModelConfig(kind="hf", name="org/m")
    assert load.unfetched(config)
    for name in ("config.json", *files):
        (folder / name).write_text("{}")
    index = folder / "model.safetensors.index.json"
    if "model-1.safetensors" in files:
        shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
        index.write_text(json.dumps({"weight_map": shards}))
    assert load.unfetched(config) == missing
    index.write_text("{")
    assert load.unfetched(config)
    for other in (ModelConfig(kind="hf", name=str(folder)), ModelConfig(kind="tiny")):
        assert not load.unfetched(other)


class Hub(Answers):
    """Answers about models as the hub does: by the last part of their name."""

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        code, reason = {
            "there": (200, ""),
            "none": (401, "RepoNotFound"),
            "gated": (403, "GatedRepo"),
            "broken": (500, ""),
        }[name]
        self.send(code, {"id": f"org/{name}"}, X_Error_Code=reason)

    def do_HEAD(self) -> None:
        self.send(200, b"")

    def do_CONNECT(self) -> None:
        self.send(407, b"")  # as a proxy that lets nobody through


@pytest.fixture
def hub(monkeypatch):
    with local_hub(monkeypatch, Hub) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("there", None),
        ("none", r"model\.name=org/none: neither a folder nor a model of the hub.*HF_TOKEN"),
        ("gated", r"model\.name=org/gated: its licence is to be accepted on the hub"),
        ("broken", r"model\.name=org/broken: the hub does not answer: .*500"),
    ],
)
def test_the_hub_is_asked_whether_it_has_the_model(name, problem, hub):
    config = ModelConfig(kind="hf", name=f"org/{name}")
    if problem is None:
        check_source(config)
    else:
        with pytest.raises(ConfigError, match=problem) as caught:
            check_source(config)
        assert "\n" not in str(caught.value)


def test_a_hub_on_this_machine_is_asked_without_a_proxy(hub, monkeypatch):
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert hub_is_reachable()
    check_source(ModelConfig(kind="hf", name="org/there"))


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "hub", "foo:bar:baz", "socks://a:1"])
def test_a_proxy_that_does_not_lead_to_the_hub_is_named(proxy, hub, monkeypatch, local_model):
    """One that is dead, one that refuses, and two that are none."""
    proxy = hub if proxy == "hub" else proxy
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.example")
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    config = ModelConfig(kind="hf", name="org/there")
    for ask in (check_source, load_tokenizer, load_model_config):
        hub_is_reachable.cache_clear()
        with pytest.raises(ProxyError, match=re.escape(f"HTTPS_PROXY={proxy}")) as caught:
            ask(config)
        assert "\n" not in str(caught.value)
    for here in (local_model, ModelConfig(kind="tiny")):
        check_source(here)
    load_tokenizer(local_model)


def test_a_hub_of_ones_own_that_cannot_be_reached_is_named_without_its_password(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("HF_ENDPOINT", "http://me:secret@127.0.0.1:9")
    hub_is_reachable.cache_clear()
    with pytest.raises(ConfigError, match="hub at HF_ENDPOINT=http://") as caught:
        load_tokenizer(ModelConfig(kind="hf", name="org/there"))
    assert "secret" not in str(caught.value)


def test_a_hub_in_no_proxy_is_asked_directly(hub, monkeypatch):
    url = hub.replace("127.0.0.1", "hub.example")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    monkeypatch.setenv("http_proxy", hub)  # a server that answers, as any proxy
    assert hub_is_reachable()
    hub_is_reachable.cache_clear()
    close_session()
    monkeypatch.setenv("no_proxy", "hub.example")  # there is no such host
    assert not hub_is_reachable()


def roped(kind: str, **settings) -> LlamaConfig:
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **settings}
    rope |= {"original_max_position_embeddings": 16}
    sizes = {"max_position_embeddings": 64, "hidden_size": 64, "num_attention_heads": 4}
    return LlamaConfig(rope_parameters=rope, **sizes)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (RobertaConfig(max_position_embeddings=514), 512),  # from behind its padding token, 1
        (GPT2Config(n_positions=96), 96),
        (MptConfig(max_seq_len=128), 128),
        (BloomConfig(), sys.maxsize),
        (roped("llama3", low_freq_factor=1.0, high_freq_factor=4.0), 64),
        (roped("longrope", long_factor=[4.0] * 8, short_factor=[1.0] * 8), 16),
    ],
)
def test_positions_are_found_by_the_names_of_each_architecture(config, most):
    assert positions(config) == most
