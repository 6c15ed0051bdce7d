"""The operations that MFU counts, against those that torch counts."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlforge.algorithms import make_algorithm
from rlforge.config.schema import LearnerConfig, LoraConfig, ReinforceConfig
from rlforge.learner import Learner
from rlforge.types import TrainBatch


def test_operations_are_those_of_an_update_without_what_is_computed_twice():
    shapes = importlib.import_module("shapes")
    sizes, rank = shapes.SHAPES["tiny"]
    config = Qwen3Config(**(shapes.QWEN3 | sizes | {"num_hidden_layers": 6}))
    config._attn_implementation = "eager"  # counted as matrix products, without the causal half
    model = Qwen3ForCausalLM(config)
    learner = Learner(
        model,
        LearnerConfig(),
        LoraConfig(rank=rank),
        make_algorithm(ReinforceConfig(), 64),
        temperature=1.0,
        pad_token_id=0,
        device="cpu",
        seed=0,
    )
    step = shapes.make_steps(1, config.vocab_size)[:1]
    length, answer = len(step[0].prompt_token_ids + step[0].token_ids), len(step[0].token_ids)

    with FlopCounterMode(display=False) as counter:
        learner.update(TrainBatch(steps=step, whole_episodes=False, min_version=0, max_version=0))

    causal_half = 6 * 6 * 64 * length**2
    head_again = 2 * answer * 64 * 512
    expected = shapes.operations(model, step) + causal_half + head_again
    # The first layer's input needs no gradient, and the last answer token is never read.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_a_batch_has_the_prompts_of_simpletak_and_about_the_tokens_asked_for():
    shapes = importlib.import_module("shapes")

    steps = shapes.make_steps(20_000, 512)

    total = sum(len(step.prompt_token_ids) + len(step.token_ids) for step in steps)
    assert 20_000 <= total <= 20_000 + 510 + shapes.LONGEST_ANSWER
    assert all(344 <= len(step.prompt_token_ids) <= 510 for step in steps)


@pytest.mark.parametrize(
    ("card", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA RTX 6000 Ada Generation", 364e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("Some Other Card", None),
    ],
)
def test_peak_of_a_card_by_its_name(card, peak):
    assert importlib.import_module("shapes").peak_of(card) == peak


def test_the_measurement_runs_on_a_cpu_and_records_nothing(on_path):
    before = {file: file.stat().st_mtime_ns for file in on_path.glob("results/*")}

    result = importlib.import_module("shapes").measure_shape("tiny", "cpu", 1024, 2)

    assert result["tokens"] >= 4 * 1024
    assert math.isfinite(result["tokens_per_second"]["median_per_s"])
    assert {file: file.stat().st_mtime_ns for file in on_path.glob("results/*")} == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_in_one_line():
    with pytest.raises(SystemExit, match="needs a GPU"):
        importlib.import_module("shapes").measure_shape("qwen3-0.6b", "cuda", 1024, 2)
