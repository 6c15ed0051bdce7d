"""Operations against torch's own count, and the phases of an update."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rlforge.config.schema import LoraConfig
from rlforge.learner.batching import Row
from rlforge.learner.speed import Operations, Stopwatch, peak_operations
from rlforge.models.lora import attach_lora


@pytest.mark.parametrize("full", [True, False])
def test_operations_are_those_that_torch_counts(parts, full):
    """Torch counts attention as if it were not causal, and leaves out what needs no gradient."""
    model = parts.model(
        hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2
    )
    model.set_attn_implementation("eager")
    if not full:
        attach_lora(model, LoraConfig(rank=8, alpha=8), seed=0)
        model.enable_input_require_grads()
    ids = torch.randint(0, 40, (1, 48))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids).logits.sum().backward()
    operations = Operations.of(model)
    row = Row(step=0, prompt=(1,) * 48, answer=())
    noncausal = 6 * operations.attention * 48**2
    head = 48 * operations.head * (6 if full else 4)
    counted = counter.get_total_flops() - noncausal - head
    assert operations.training([row], reused=0) == pytest.approx(counted, rel=0.03)


def test_shared_tokens_padding_and_prompts_in_the_head_cost_nothing(parts):
    operations = Operations(linear=100, trained=10, head=1000, attention=7)
    rows = [Row(step=0, prompt=(1, 2, 3), answer=(4, 5)), Row(step=1, prompt=(1, 2), answer=(9,))]
    by_hand = (6 - 2) * (4 * 100 + 2 * 10) + 3 * 4 * 1000 + (16 + 4) * 6 * 7
    assert operations.training(rows, reused=2) == by_hand


def test_an_update_says_where_its_time_went(parts):
    learner = parts.learner(algorithm=parts.PolicyGradient(reference=True, values=True))
    metrics = learner.update(parts.batch(parts.random_steps(9))).metrics
    phases = {name: number for name, number in metrics.items() if name.startswith("seconds_")}
    assert phases.keys() == {
        f"seconds_{name}" for name in ("targets", "scoring", "gradient", "optimizer")
    }
    assert all(number > 0 for number in phases.values())
    assert sum(phases.values()) <= metrics["seconds"]
    assert metrics["tflops"] > 0
    assert metrics["memory_peak_gb"] > 0.05
    assert "mfu" not in metrics


def test_phases_of_the_same_name_add_up():
    watch = Stopwatch(torch.device("cpu"))
    for _ in range(2):
        with watch.phase("a"):
            torch.randn(100, 100) @ torch.randn(100, 100)
    metrics = watch.metrics(tokens=10, operations=5e12)
    assert 0 < metrics["seconds_a"] < metrics["seconds"]
    assert metrics["tflops"] == pytest.approx(5 / metrics["seconds"])


def test_the_peak_is_known_for_cards_only(monkeypatch):
    assert peak_operations(torch.device("cpu")) is None
    for name, peak in {
        "NVIDIA H100 80GB HBM3": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA RTX 6000 Ada Generation": 364e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L4": 121e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA A10G": 125e12,
        "Something Else": None,
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device, name=name: name)
        assert peak_operations(torch.device("cuda")) == peak
