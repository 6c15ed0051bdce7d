"""Operations against torch's own count, and the phases of an update."""

import pytest
import torch
from tests.learner import parts
from torch.utils.flop_counter import FlopCounterMode

from rlforge.config.model import LoraConfig
from rlforge.learner import update_metrics
from rlforge.learner.batching import Row, collate
from rlforge.learner.scorer import Scorer, ScorerOptions
from rlforge.learner.update_metrics import Operations, Stopwatch, peak_operations
from rlforge.learner.weights import attach_lora


@pytest.mark.parametrize("full", [True, False])
def test_operations_are_those_that_torch_counts(full):
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
    row = Row(sample=0, prompt=(1,) * 48, answer=())
    noncausal = 6 * operations.attention * 48**2
    head = 48 * operations.head * (6 if full else 4)
    counted = counter.get_total_flops() - noncausal - head
    assert operations.training([row], reused=0, scored=0) == pytest.approx(counted, rel=0.03)


def test_shared_tokens_padding_and_prompts_in_the_head_cost_nothing():
    operations = Operations(linear=100, trained=10, head=1000, attention=7)
    rows = [
        Row(sample=0, prompt=(1, 2, 3), answer=(4, 5)),
        Row(sample=1, prompt=(1, 2), answer=(9,)),
    ]
    by_hand = (6 - 2) * (4 * 100 + 2 * 10) + 3 * 4 * 1000 + (16 + 4) * 6 * 7
    assert operations.training(rows, reused=2, scored=3) == by_hand


def test_positions_that_the_last_layer_leaves_out_cost_only_its_keys_and_values():
    """Torch's own counts of passes with and without them."""
    model = parts.model(hidden_size=64, intermediate_size=160, num_attention_heads=4)
    model.set_attn_implementation("eager")
    row = Row(sample=0, prompt=(1,) * 44, answer=(2,) * 4)
    micro = collate([row], 0, torch.device("cpu"))
    counted, planned = [], []
    for narrow in (False, True):
        scorer = Scorer(model, ScorerOptions(temperature=1.0, narrow=narrow))
        operations = Operations.of(model, scorer.narrowed)
        with FlopCounterMode(display=False) as counter:
            scores = scorer.score(micro)
            scores.logprobs.sum().backward()
        counted.append(counter.get_total_flops())
        planned.append(operations.training([row], reused=0, scored=4, unread=scores.unread))
    assert scores.unread == 47 - 4
    assert planned[0] - planned[1] == pytest.approx(counted[0] - counted[1], rel=0.001)


def test_an_update_reports_the_seconds_of_each_phase():
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


CARDS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200 144G HBM3e": 989e12,
    "NVIDIA RTX 6000 Ada Generation": 364e12,
    "NVIDIA RTX A6000": 154.8e12,
    "NVIDIA GeForce RTX 3090": 71e12,
    "NVIDIA GeForce RTX 3090 Ti": 80e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L4": 121e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "A100 80GB PCIe": 312e12,
    "NVIDIA A40": 149.7e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A10G": 70e12,
    "Something Else": None,
    "NVIDIA RTX A1000": None,  # not A10, nor A100
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": None,  # a MIG slice
    "NVIDIA A10-12Q": None,  # a virtual share of a card
    "Tesla T4": None,  # no bfloat16
    "Tesla V100-SXM2-16GB": None,
}


@pytest.mark.parametrize("name", CARDS)
def test_the_peak_is_that_of_the_card(monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: name)
    assert peak_operations(torch.device("cuda")) == CARDS[name]


def test_mfu_is_operations_over_time_and_peak(monkeypatch):
    """Worked by hand: a model with an adapter, two sequences, 0.5 ms on two cards of 70 TFLOPS."""
    operations = Operations(linear=1_000_000, trained=100_000, head=50_000, attention=1_000)
    rows = [
        Row(sample=0, prompt=(1,) * 900, answer=(1,) * 100),  # reads 999 tokens, all but the last
        Row(sample=1, prompt=(1,) * 900, answer=(1,) * 101),  # reads 1,000
    ]
    linear = 1_999 * 4_200_000  # 2 N forward, 2 N for the inputs, 2 for each trained weight
    head = 201 * 200_000  # forward and inputs, at answers only
    attention = 1_998_001 * 6_000  # 999^2 + 1,000^2; 2 d forward, 4 d backward
    assert linear + head + attention == 20_424_006_000
    now = iter([10.0, 10.0005])
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA A10G")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 3_000_000_000)
    monkeypatch.setattr(update_metrics.time, "perf_counter", lambda: next(now))
    watch = Stopwatch(cuda)
    metrics = watch.metrics(1_999, operations.training(rows, reused=0, scored=201), devices=2)
    assert metrics["tflops"] == pytest.approx(40.848012)
    assert metrics["mfu"] == pytest.approx(40.848012 / 140)
    assert metrics["tokens_per_s"] == pytest.approx(3_998_000)
    assert metrics["memory_peak_gb"] == 3
