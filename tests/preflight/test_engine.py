"""Which engine ``engine=auto`` starts on a machine, and why."""

import dataclasses

import pytest
from tests.harness.composed import composed

from rlforge.engines import vllm_settings
from rlforge.preflight import plan
from rlforge.preflight.memory.needs import GIB
from rlforge.system.hardware import Gpu

QUICK_START = "+experiment=qwen3_1p7b_simpletak"
ADA = Gpu(name="RTX 6000 Ada", memory=48 * GIB, capability=8.9)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENROUTER_API_KEY", "a key")


@pytest.fixture
def vllm(monkeypatch):
    """vLLM for GPUs is installed."""
    installed = {"vllm": vllm_settings.VLLM_VERSION}.get
    monkeypatch.setattr(vllm_settings, "version_of", installed)


def chosen(*overrides):
    """What ``engine=auto`` starts: the name, vLLM's share of the card, and the note."""
    smaller = ("learner.gradient_checkpointing=true", "engine.max_model_len=4096")
    made = plan.make_plan(composed(QUICK_START, *smaller, *overrides).config, plan.detect())
    engine = made.config.engine
    return engine.name, engine.vllm.gpu_memory_utilization, made.engine


def test_auto_tries_vllm_on_a_gpu_where_it_is_installed_and_gives_it_its_share(machine, vllm):
    machine(ADA)
    name, share, note = chosen()
    assert name == "auto"
    assert "if it passes a trial at the start" in note
    assert 0.3 < share < 0.9


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("hardware=cpu", "it runs on the CPU"),
        ("determinism=strict", "what the embedded engine can do"),
        ("learner.train=full", "learner.train: vLLM swaps adapters"),
        ("engine.temperature=2.5", "engine.temperature: vLLM samples at"),
        ("eval.temperature=0.001", "eval.temperature: vLLM samples at"),
        ("model.lora.rank=600", "model.lora.rank: vLLM runs adapters up to rank 512"),
    ],
)
def test_auto_is_the_embedded_engine_where_vllm_cannot_be(override, why, machine, vllm):
    machine(dataclasses.replace(ADA, memory=141 * GIB))
    name, share, note = chosen(override)
    assert (name, share) == ("transformers", None)
    assert note.startswith("transformers, not vLLM: ")
    assert why in note


def test_auto_says_how_to_install_vllm_where_there_is_a_gpu(machine, monkeypatch):
    machine(ADA)
    monkeypatch.setattr(vllm_settings, "version_of", lambda name: None)
    name, _, note = chosen()
    assert name == "transformers"
    assert note.endswith("vLLM is not installed; pip install 'rlforge[vllm]'")


def test_a_named_engine_is_not_chosen_anew(machine, vllm):
    machine(ADA)
    assert chosen("engine=transformers") == ("transformers", None, "")
    assert chosen("engine=vllm")[0] == "vllm"
