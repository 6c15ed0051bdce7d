"""Compiled decoder layers make the same update; missing requirements are errors."""

import importlib.util
import shutil

import pytest
import torch
from tests.learner import parts

from rlforge.errors import ConfigError
from rlforge.learner.layers import check_compiling, compile_layers


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    "settings",
    [
        {"packing": "off"},
        {"packing": "on"},
        {"packing": "on", "gradient_checkpointing": True},
        {"packing": "off", "train": "full"},
    ],
    ids=str,
)
def test_compiled_layers_have_the_same_gradients(settings):
    torch._dynamo.reset()
    drawn = parts.random_steps(9)
    (plain, expected), (compiled, metrics) = (
        parts.first_update(drawn, parts.PolicyGradient(entropy=True), compile=compiled, **settings)
        for compiled in (False, True)
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    one, other = (torch.cat([g[name].flatten() for name in plain]) for g in (plain, compiled))
    assert (other - one).norm() <= 1e-4 * one.norm()
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("packing", ["on", "off"])
def test_passes_of_other_lengths_do_not_compile_again(packing):
    torch._dynamo.reset()
    learner = parts.learner(parts.model(num_hidden_layers=4), compile=True, packing=packing)
    graphs = []
    for seed in range(4):
        learner.update(parts.batch(parts.random_steps(9 + seed, seed=seed)))
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert graphs[1] == graphs[-1]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cpu", r"no g\+\+ here; install one"),
        ("cuda", r"needs Triton on a GPU.*learner\.compile=false"),
    ],
)
def test_a_machine_without_a_compiler_is_a_config_error(device, message, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        check_compiling(device)


def test_a_compiler_by_another_name_is_found(monkeypatch):
    monkeypatch.setenv("CXX", "own-compiler")
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "own-compiler" else None)
    check_compiling("cpu")


def test_a_model_without_decoder_layers_cannot_be_compiled():
    with pytest.raises(ConfigError, match=r"learner\.compile: Linear has no layers"):
        compile_layers(torch.nn.Linear(2, 2))
