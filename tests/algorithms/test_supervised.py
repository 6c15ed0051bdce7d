"""Supervised fine-tuning: the cross-entropy of the given answers, whatever else a sample says."""

import pytest
import torch
from tests.algorithms.parts import make_inputs
from torch.nn.functional import cross_entropy

from rlforge.algorithms import make_algorithm
from rlforge.config.training import KlConfig, SupervisedConfig

GENERATOR = torch.Generator().manual_seed(0)
LENGTHS = (3, 1, 5)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_loss_is_the_cross_entropy_of_the_answers(aggregation):
    logits = torch.randn(3, 5, 7, generator=GENERATOR)
    targets = torch.randint(7, (3, 5), generator=GENERATOR)
    mask = torch.tensor([[float(t < length) for t in range(5)] for length in LENGTHS])
    logprobs = logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    inputs = make_inputs(logprobs, mask=mask, behaviour_logprobs=torch.zeros(3, 5))  # of no engine
    per_sequence = [
        cross_entropy(logits[i, :length], targets[i, :length], reduction="sum")
        for i, length in enumerate(LENGTHS)
    ]
    if aggregation == "token_mean":
        expected = sum(per_sequence) / sum(LENGTHS)
    else:
        expected = sum(x / n for x, n in zip(per_sequence, LENGTHS, strict=True)) / 3
    algorithm = make_algorithm(SupervisedConfig(loss_aggregation=aggregation), max_tokens=8)
    assert algorithm.loss(inputs).loss.item() == pytest.approx(float(expected), rel=1e-6)


def test_what_needs_answers_of_an_engine_is_refused():
    config = SupervisedConfig(importance_cap=2.0, kl=KlConfig(coef=0.1))
    assert [key for key, _ in config.problems()] == ["importance_cap", "kl.coef"]
