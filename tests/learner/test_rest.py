"""A learner that rests between its updates makes the same ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.learner import parts

CASES = {
    "adapter": {},
    "adapter with critic": {"values": True, "entropy": True},
    "whole model with reference and critic": {"train": "full", "reference": True, "values": True},
    "several steps": {"epochs": 2, "optimizer_steps": 2},
    "adapter with earlier versions": {"kept_versions": 2},
}


def three_updates(case: dict[str, Any], rests: bool) -> tuple[Any, list[Any]]:
    options = dict(case)
    needs = {name: options.pop(name, False) for name in ("reference", "values", "entropy")}
    learner, _ = parts.adapted(parts.PolicyGradient(**needs), **options)
    results = []
    for seed in range(3):
        if rests:
            learner.rest()
            learner.wake()
        results.append(learner.update(parts.batch(parts.random_steps(8, seed=seed))))
    return learner, results


@pytest.mark.one_in(5)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_updates_after_rest_and_wake_are_bit_identical(case, elsewhere):
    steady, expected = three_updates(case, rests=False)
    assert not elsewhere
    resting, actual = three_updates(case, rests=True)
    for one, other in zip(expected, actual, strict=True):
        assert one.samples == other.samples
        assert parts.outcome(other.metrics) == parts.outcome(one.metrics)
    one, other = steady.state_dict(), resting.state_dict()
    for name, tensor in one["policy"].items():
        assert torch.equal(tensor, other["policy"][name]), name
    for index, state in one["optimizer"]["state"].items():
        for name, tensor in state.items():
            assert torch.equal(tensor, other["optimizer"]["state"][index][name]), name


def test_weights_and_both_moments_move(elsewhere):
    model = parts.model()
    learner = parts.learner(model)
    learner.update(parts.batch(parts.random_steps(8)))
    trained = [p for p in model.parameters() if p.requires_grad]
    learner.rest()
    states = 2 * sum(p.nbytes for p in trained) + 4 * len(trained)  # moments and step counts
    tensors = [*model.parameters(), *model.buffers()]
    assert sum(elsewhere) == sum(tensor.nbytes for tensor in tensors) + states
    assert all(p.grad is None for p in trained)


def test_critic_and_reference_move_too(elsewhere):
    model = parts.model()
    algorithm = parts.PolicyGradient(reference=True, values=True)
    learner = parts.learner(model, algorithm, train="full")
    learner.rest()
    weights = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    reference = sum(tensor.nbytes for tensor in model.parameters())  # of weights, not buffers
    critic = 4 * (model.config.hidden_size + 1)
    assert sum(elsewhere) == weights + reference + critic


def test_a_learner_at_rest_is_saved_and_loaded(elsewhere, tmp_path):
    learner, _ = three_updates({}, rests=True)
    learner.rest()
    (tmp_path / "adapter").mkdir()
    learner.save(tmp_path / "adapter")
    learner.save_state(tmp_path)
    other = parts.learner(parts.model())
    other.rest()
    other.load_state(tmp_path)
    other.wake()
    learner.wake()
    batch = parts.batch(parts.random_steps(8, seed=9))
    assert other.update(batch).metrics["loss"] == learner.update(batch).metrics["loss"]
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_weights_that_do_not_go_to_the_host_stay_where_they_are(elsewhere):
    learner = parts.learner(parts.model())
    learner.rest(offload=False)
    assert not elsewhere
    learner.update(parts.batch(parts.random_steps(8)))


@pytest.mark.gpu
def test_a_learner_at_rest_frees_the_gpu():
    model = parts.model(hidden_size=1024, intermediate_size=4096)
    learner = parts.learner(model, device="cuda", train="full")
    batch = parts.batch(parts.random_steps(8))
    learner.update(batch)
    learner.rest(offload=False)
    kept = torch.cuda.memory_reserved()
    learner.rest()
    assert torch.cuda.memory_reserved() < kept / 10
    learner.wake()
    assert learner.update(batch).samples == 8
