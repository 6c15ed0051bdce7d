"""The log-prob gap of tokens that earlier versions drew."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learner import parts

from rlforge.config.model import LoraConfig
from rlforge.models.files import ADAPTER_WEIGHTS
from rlforge.samples import Sample

#: How far the engine's log-probs are from the learner's in these tests.
OFFSET = 0.25


def drawn(model: Any, count: int, version: int) -> list[Sample]:
    """Random samples with the log-probs of ``model`` as it is now, and OFFSET."""
    samples = parts.random_steps(count, seed=version, policy_version=version)
    found = [parts.answer_logprobs(model, [sample]) + OFFSET for sample in samples]
    return [
        dataclasses.replace(sample, logprobs=tuple(logprobs.tolist()))
        for sample, logprobs in zip(samples, found, strict=True)
    ]


def gap(metrics: Any) -> tuple[float, float]:
    return metrics["logprob_gap_mean"], metrics["logprob_gap_max"]


@pytest.mark.parametrize("packing", ["off", "on"])
def test_tokens_of_an_earlier_version_are_scored_with_its_weights(packing):
    """Two versions back; the weights have moved far since."""
    learner, model = parts.adapted(kept_versions=2, learning_rate=0.1, packing=packing)
    old = drawn(model, 40, version=0)
    for version in range(2):
        learner.update(parts.batch(drawn(model, 8, version)))
    metrics = learner.update(parts.batch(old)).metrics
    assert metrics["lag_max"] == 2.0
    assert gap(metrics) == pytest.approx((OFFSET, OFFSET), abs=1e-4)
    learner.update(parts.batch(drawn(model, 8, version=3)))
    assert "logprob_gap_mean" not in learner.update(parts.batch(old)).metrics  # not kept any more


def test_the_newest_version_that_drew_tokens_is_the_one_that_is_measured():
    model = parts.model()
    learner = parts.learner(model, kept_versions=2, learning_rate=0.1)
    batches = []
    for version in range(2):
        batches.append(drawn(model, 8, version))
        learner.update(parts.batch(batches[-1]))
    wrong = [
        dataclasses.replace(sample, logprobs=(-50.0,) * len(sample.logprobs))
        for sample in batches[0]
    ]
    assert gap(learner.update(parts.batch(wrong + batches[1])).metrics) == pytest.approx(
        (OFFSET, OFFSET), abs=1e-4
    )


def test_one_turn_of_the_current_version_is_too_few_for_a_batch_of_many():
    model = parts.model()
    learner = parts.learner(model, kept_versions=1, learning_rate=0.1)
    old = drawn(model, 63, version=0)
    learner.update(parts.batch(drawn(model, 8, version=0)))
    wrong = parts.sample(policy_version=1, logprobs=(-50.0, -50.0))
    few = learner.update(parts.batch([*old, wrong])).metrics
    assert gap(few) == pytest.approx((OFFSET, OFFSET), abs=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_movement_is_the_divergence_of_a_turn_of_the_batch(steps):
    learner, model = parts.adapted(kept_versions=0, learning_rate=0.03, optimizer_steps=steps)
    batch = drawn(model, 20, version=0)
    before = parts.answer_logprobs(model, batch[:1])
    metrics = learner.update(parts.batch(batch)).metrics
    ratio = parts.answer_logprobs(model, batch[:1]) - before
    assert ratio.abs().min() > 1e-3
    assert metrics["moved"] == pytest.approx(float((ratio.exp() - 1 - ratio).mean()), rel=1e-2)
    of_answers = [-sum(sample.logprobs) for sample in batch]
    assert metrics["answer_entropy"] == pytest.approx(sum(of_answers) / 20, rel=1e-5)


CASES = {
    "adapter": {},
    "several steps": {"epochs": 2, "optimizer_steps": 2},
    "critic and reference": {"values": True, "reference": True},
    "dropout": {"lora": LoraConfig(rank=4, alpha=8, dropout=0.3)},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_measuring_changes_neither_weights_nor_other_metrics(case):
    """Bit-identical, over several updates whose tokens are one version old."""
    options = dict(case)
    needs = {name: options.pop(name, False) for name in ("values", "reference")}
    runs = []
    for kept in (0, 1):
        learner, model = parts.adapted(parts.PolicyGradient(**needs), kept_versions=kept, **options)
        metrics = []
        for version in range(3):
            samples = parts.random_steps(12, seed=version, policy_version=max(0, version - 1))
            metrics.append(dict(learner.update(parts.batch(samples)).metrics))
        runs.append((parts.weights(model), metrics))
    (weights, without), (measured, found) = runs
    assert all(torch.equal(measured[name], tensor) for name, tensor in weights.items())
    for plain, one in zip(without[1:], found[1:], strict=True):
        assert one.keys() - plain.keys() == {"logprob_gap_mean", "logprob_gap_max"}
        assert parts.outcome(one).items() >= parts.outcome(plain).items()


def test_a_sample_is_spread_over_the_whole_batch():
    """The engine's log-prob of sample i is -i."""
    learner = parts.learner(kept_versions=1, mini_batch_size=64)
    learner.update(parts.batch([parts.sample()]))
    samples = [
        parts.sample(origin=f"{i}", token_ids=(8,), logprobs=(-float(i),), policy_version=0)
        for i in range(960)
    ]
    mean, most = gap(learner.update(parts.batch(samples)).metrics)
    assert mean == pytest.approx(480, rel=0.1)
    assert most > 860


def saved_run(folder: Path) -> tuple[Any, list[Sample]]:
    """A learner after three updates, each version saved, and samples that version 2 drew."""
    model = parts.model()
    learner = parts.learner(model, kept_versions=2, learning_rate=0.1)
    samples: list[Sample] = []
    for version in range(4):
        checkpoint = folder / f"step-{version}"
        checkpoint.mkdir()
        learner.save(checkpoint)
        learner.save_state(checkpoint)
        if version < 3:
            samples = drawn(model, 8, version)
            learner.update(parts.batch(samples))
    return learner, samples


def saved_in(folder):
    return lambda name: path if (path := folder / name).exists() else None


def test_a_resumed_learner_reads_the_earlier_versions_of_its_run(tmp_path):
    learner, samples = saved_run(tmp_path)
    model = parts.model()
    resumed = parts.learner(model, kept_versions=2, learning_rate=0.1)
    resumed.load_state(tmp_path / "step-3")
    loaded = parts.weights(model)
    resumed.recall(saved_in(tmp_path))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in parts.weights(model).items())
    metrics = resumed.update(parts.batch(samples)).metrics
    assert gap(metrics) == pytest.approx((OFFSET, OFFSET), abs=1e-4)
    assert gap(metrics) == gap(learner.update(parts.batch(samples)).metrics)


def test_a_version_that_is_damaged_or_absent_only_leaves_its_gap_out(tmp_path, caplog):
    _, samples = saved_run(tmp_path)
    (tmp_path / "step-2" / ADAPTER_WEIGHTS).write_bytes(b"torn")
    (tmp_path / "step-1").rename(tmp_path / "elsewhere")
    resumed = parts.learner(kept_versions=2)
    resumed.load_state(tmp_path / "step-3")
    resumed.recall(saved_in(tmp_path))
    assert "logprob_gap_mean" not in resumed.update(parts.batch(samples)).metrics
    assert "the log-prob gap of step-2 is not measured" in caplog.text


def test_updates_counted_on_from_a_later_version_know_whose_weights_they_have(tmp_path):
    """After version 3 was refused, training goes on from version 2, and 3 has drawn tokens."""
    saved_run(tmp_path)
    model = parts.model()
    learner = parts.learner(model, kept_versions=2, learning_rate=0.1)
    refused = parts.model()
    parts.learner(refused).load_state(tmp_path / "step-3")
    by_refused = drawn(refused, 8, version=3)
    learner.load_state(tmp_path / "step-2")
    by_current = drawn(model, 8, version=2)
    learner.version = 3
    learner.recall(saved_in(tmp_path))
    for samples in (by_refused, by_current):
        learner.load_state(tmp_path / "step-2")
        learner.version = 3
        metrics = learner.update(parts.batch(samples)).metrics
        assert gap(metrics) == pytest.approx((OFFSET, OFFSET), abs=1e-4)
