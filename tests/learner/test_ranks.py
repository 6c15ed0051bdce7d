"""Several ranks make the update that one rank would have made alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learner import parts, rank_scenarios
from torch import nn
from transformers import AutoModelForCausalLM

from rlforge.learner.ranks import Ranks, stay_local
from rlforge.learner.sharding import clip_gradient

NAMES = pytest.mark.parametrize("name", rank_scenarios.SCENARIOS)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Folder with the results of two processes that ran every scenario together."""
    folder = tmp_path_factory.mktemp("ranks")
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", rank_scenarios.__name__, str(rank), "2", str(folder)],
            cwd=Path(__file__).parents[2],
            stderr=pipe,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, stderr = process.communicate(timeout=200)
            assert process.returncode == 0, stderr
            assert "Warning" not in stderr
    finally:
        for process in processes:
            process.kill()
    return folder


def results(folder: Path, rank: int, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(folder / f"rank-{rank}.pt")[name]
    return loaded


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.ray
@NAMES
def test_two_ranks_give_the_weights_and_metrics_of_one(name, two_ranks, tmp_path):
    alone = rank_scenarios.play(name, Ranks(), tmp_path)
    together = results(two_ranks, 0, name)
    assert distance(together["weights"], alone["weights"]) <= 1e-5
    for ours, theirs in zip(together["metrics"], alone["metrics"], strict=True):
        wanted = parts.outcome(theirs)
        assert parts.outcome(ours) == pytest.approx(wanted, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.ray
@pytest.mark.parametrize("name", ["resumed", "spread full, resumed"])
def test_one_rank_resumes_from_the_state_of_two(name, two_ranks):
    own = two_ranks / name / "alone"
    own.mkdir()
    alone = rank_scenarios.play(name, Ranks(), own, resume_from=two_ranks / name / "state")
    assert distance(results(two_ranks, 0, name)["weights"], alone["weights"]) <= 1e-5


@pytest.mark.ray
@NAMES
def test_all_ranks_report_the_same_and_only_the_first_holds_files(name, two_ranks):
    first, second = (results(two_ranks, rank, name) for rank in range(2))
    for ours, theirs in zip(first["metrics"], second["metrics"], strict=True):
        wanted = parts.outcome(theirs)
        assert parts.outcome(ours) == pytest.approx(wanted, rel=0, abs=0, nan_ok=True)
    assert all(tensor.numel() == 0 for tensor in second["weights"].values())


@pytest.mark.ray
@NAMES
def test_a_rank_holds_only_its_part_of_a_spread_model(name, two_ranks):
    held = [results(two_ranks, rank, name)["held"] for rank in range(2)]
    assert held == (pytest.approx([0.5, 0.5]) if "spread" in name else [1.0, 1.0])


@pytest.mark.ray
def test_spread_weights_are_gathered_in_bfloat16_and_trained_in_float32(two_ranks):
    """The gradient is no further from that of float32 than where one rank computes in bfloat16."""
    spread = results(two_ranks, 0, "bfloat16")
    assert spread["gathered"] == {torch.bfloat16}
    assert spread["dtypes"] == {torch.float32}
    gradient = rank_scenarios.bfloat16_gradient
    alone, exact = (gradient(Ranks(), dtype) for dtype in (torch.bfloat16, torch.float32))

    def error(found):
        ours, theirs = (
            torch.cat([each["gradient"][name].flatten() for name in exact["gradient"]])
            for each in (found, exact)
        )
        return float((ours - theirs).norm() / theirs.norm())

    assert error(spread) < 1.5 * error(alone) < 0.1


@pytest.mark.ray
@pytest.mark.parametrize("name", ["lagged", "spread, lagged"])
def test_ranks_measure_the_gap_of_tokens_that_earlier_versions_drew(name, two_ranks):
    for metrics in results(two_ranks, 0, name)["metrics"]:
        assert metrics["logprob_gap_mean"] > 0


@pytest.mark.ray
def test_each_rank_shares_prefixes_among_its_own_rows(two_ranks):
    for metrics in results(two_ranks, 0, "shared beginnings")["metrics"]:
        assert metrics["reused_share"] > 0.5


@pytest.mark.ray
def test_a_step_not_finite_on_one_rank_is_skipped_by_all(two_ranks):
    for rank in range(2):
        metrics = results(two_ranks, rank, "not finite")["metrics"]
        assert [each["nonfinite_steps"] for each in metrics] == [0, 1, 0]


@pytest.mark.ray
@pytest.mark.parametrize("name", ["spread full", "spread full, own head"])
def test_spread_weights_are_saved_whole_in_the_usual_layout(name, two_ranks):
    model = AutoModelForCausalLM.from_pretrained(two_ranks / name / "saved")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert model.config.architectures == ["LlamaForCausalLM"]
    saved = {name: parameter.detach() for name, parameter in model.named_parameters()}
    weights = results(two_ranks, 0, name)["weights"]
    trained = {n: tensor for n, tensor in weights.items() if not n.startswith("value_head")}
    assert distance(saved, trained) == 0


@pytest.mark.parametrize("name", ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"])
def test_ranks_of_one_machine_listen_on_loopback_only(name, monkeypatch):
    environment = {}
    monkeypatch.setattr(os, "environ", environment)
    stay_local("192.0.2.7")
    assert not environment
    stay_local("127.0.0.1")
    assert environment[name] == "lo"
    environment[name] = "eth7"
    stay_local("127.0.0.1")
    assert environment[name] == "eth7"  # as the user has it


def test_a_rank_alone_changes_nothing():
    ranks = Ranks()
    parameter = nn.Parameter(torch.ones(2))
    ranks.sum_gradients([parameter])
    assert parameter.grad is None
    assert ranks.add_up({"loss": 0.5}) == {"loss": 0.5}
    assert torch.equal(ranks.sum_(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("largest", [0.1, 1e9])
def test_the_gradient_is_clipped_as_torch_does(largest):
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,))]
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    for parameter, copy in zip(parameters, copies, strict=True):
        parameter.grad = torch.randn(parameter.shape)
        copy.grad = parameter.grad.clone()
    norm = clip_gradient(parameters, largest, Ranks())
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(copies, largest)))
    for parameter, copy in zip(parameters, copies, strict=True):
        assert torch.allclose(parameter.grad, copy.grad)
