"""The learner on models of published shapes: what runs on a GPU, tried on a small one."""

import importlib
import re
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlforge.config.training import LearnerConfig
from rlforge.learner.batching import select_rows
from rlforge.learner.policy import Policy
from rlforge.learner.ranks import Ranks


@pytest.fixture
def shapes():
    return importlib.import_module("shapes")


def test_a_batch_has_the_prompts_of_simpletak_and_about_the_tokens_asked_for(shapes):
    steps = shapes.make_steps(512, tokens=20_000)
    total = sum(len(step.prompt_token_ids) + len(step.token_ids) for step in steps)
    assert 20_000 <= total <= 20_000 + 510 + shapes.LONGEST_ANSWER
    assert all(344 <= len(step.prompt_token_ids) <= 510 for step in steps)


@pytest.mark.parametrize("packed_tokens", [4096, 16384])
def test_a_batch_fills_four_passes_and_begins_no_fifth(packed_tokens, shapes):
    config = LearnerConfig(micro_batch_tokens=packed_tokens, packing="on")
    spec = shapes.policy_spec("tiny", "cpu")
    policy = Policy(spec, config, device=torch.device("cpu"), ranks=Ranks())

    def passes(steps):
        rows = select_rows(steps, None).rows
        return [part.micro.input_ids.numel() for part in policy.passes(rows)]

    steps = shapes.full_passes(512, packed_tokens)
    assert len(passes(steps)) == 4
    assert all(size <= packed_tokens for size in passes(steps))
    one_more = shapes.make_steps(512, tokens=5 * packed_tokens)[: len(steps) + 1]
    assert one_more[:-1] == steps
    assert len(passes(one_more)) == 5


def test_on_a_gpu_weights_are_bfloat16_and_the_rotation_is_not_rounded(monkeypatch, shapes):
    monkeypatch.setattr(torch, "device", lambda name: nullcontext())  # there may be no GPU
    model, plain = (shapes.random_model("tiny", device) for device in ("cuda", "cpu"))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    buffers = dict(plain.named_buffers())
    assert buffers
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def test_a_learner_that_pads_on_a_gpu_is_not_measured(monkeypatch, shapes):
    class Padding:
        def update(self, batch):
            return SimpleNamespace(metrics={"padding_share": 0.2, "tokens_per_s": 1.0})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(shapes, "make_learner", lambda *arguments: Padding())
    with pytest.raises(SystemExit, match="pads instead of packing"):
        shapes.measure_shape("tiny", "cuda", 1024, 2)


@pytest.mark.ray
def test_the_measurement_needs_neither_ray_nor_games_and_records_nothing_on_a_cpu(
    on_path, bare_environment
):
    before = {file: file.stat().st_mtime_ns for file in on_path.glob("results/*")}
    options = ["--shape", "tiny", "--packed-tokens", "1024", "--repeats", "2"]
    command = [sys.executable, str(on_path / "learner.py"), *options]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.fullmatch(r"tiny: \d+ \[\d+, \d+\] tokens/s", run.stdout.strip())
    assert {file: file.stat().st_mtime_ns for file in on_path.glob("results/*")} == before


@pytest.mark.parametrize(("name", "billions"), [("qwen3-0.6b", 0.6), ("qwen3-1.7b", 1.72)])
def test_shapes_have_the_published_number_of_weights(name, billions, shapes):
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**(shapes.QWEN3 | shapes.SHAPES[name][0])))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(billions * 1e9, rel=0.01)
