"""What the loss reads of legal tokens and of the run's progress, seen from an algorithm."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.learner import parts

from rlforge.algorithms.base import Reference


def with_legal(count: int = 6):
    """Samples whose answers have 1, 2 or 3 legal tokens at each place; of every third none."""
    samples = []
    for n, sample in enumerate(parts.random_steps(count)):
        size = n % 3
        sets = tuple(tuple({token, *range(1, size + 2)}) for token in sample.token_ids)
        legal = tuple(tuple(sorted(tokens)) for tokens in sets) if size else ()
        # Rows are shuffled; the reward says which sample an entry belongs to.
        samples.append(dataclasses.replace(sample, legal_tokens=legal, reward=n / 8))
    return samples


def check(field, inputs, model, samples) -> None:
    """``field`` [B, T, K] holds the log-probs of ``model`` at the legal tokens of each sample."""
    assert field.shape[:2] == inputs.mask.shape
    for row, reward in enumerate(inputs.advantages.tolist()):
        sample = samples[round(reward * 8)]
        of_step = field[row, : len(sample.token_ids)]
        if not sample.legal_tokens:
            assert (of_step == -math.inf).all()
            continue
        table = parts.plain_logprobs(model, sample)
        for at, tokens in enumerate(sample.legal_tokens):
            logprobs = table[at, list(tokens)].tolist()
            assert of_step[at, : len(logprobs)].tolist() == pytest.approx(logprobs, abs=1e-5)
            assert (of_step[at, len(logprobs) :] == -math.inf).all()


@pytest.mark.parametrize(("packing", "share_prefixes"), [("off", False), ("on", True)])
def test_each_policy_scores_the_legal_tokens_of_each_answer(packing, share_prefixes):
    algorithm, samples = parts.PolicyGradient(), with_legal()
    algorithm.reference = Reference(to="base")
    base = parts.model()
    options = {"packing": packing, "share_prefixes": share_prefixes}
    learner, _ = parts.adapted(algorithm, mini_batch_size=2, optimizer_steps=2, **options)
    start = parts.adapted()[1].eval()

    learner.update(parts.batch(samples))

    seen = [inputs for inputs in algorithm.seen if inputs.legal_logprobs is not None]
    assert sum(len(inputs.mask) for inputs in algorithm.seen) == len(samples)
    assert len({inputs.legal_logprobs.shape[2] for inputs in seen}) > 1
    for inputs in seen:
        check(inputs.proximal_legal, inputs, start, samples)
        check(inputs.reference_legal, inputs, base, samples)
        assert inputs.legal_logprobs.shape == inputs.proximal_legal.shape
        assert inputs.legal_logprobs.requires_grad
        assert not inputs.proximal_legal.requires_grad
        assert not inputs.reference_legal.requires_grad
    check(seen[0].legal_logprobs, seen[0], start, samples)  # the first optimizer step begins there
    assert not torch.equal(seen[-1].legal_logprobs, seen[-1].proximal_legal)


def test_with_a_single_optimizer_step_the_proximal_policy_is_the_one_in_training():
    algorithm, samples = parts.PolicyGradient(), with_legal()
    learner = parts.learner(algorithm=algorithm, mini_batch_size=2)
    learner.update(parts.batch(samples))
    seen = [inputs for inputs in algorithm.seen if inputs.legal_logprobs is not None]
    assert seen
    for inputs in seen:
        assert torch.equal(inputs.proximal_legal, inputs.legal_logprobs.detach())
        assert torch.equal(inputs.proximal_logprobs, inputs.logprobs.detach())
        assert not inputs.proximal_logprobs.requires_grad
        assert inputs.reference_legal is None


def test_batches_without_legal_tokens_give_none():
    algorithm = parts.PolicyGradient(reference=True)
    learner = parts.learner(algorithm=algorithm)
    learner.update(parts.batch(parts.random_steps(4)))
    (inputs,) = algorithm.seen
    assert inputs.legal_logprobs is inputs.proximal_legal is inputs.reference_legal is None


def test_progress_is_the_share_of_updates_that_are_done():
    for total, shares in ((4, [0.0, 0.25, 0.5, 0.75]), (None, [0.0] * 4)):
        algorithm = parts.PolicyGradient()
        learner = parts.learner(algorithm=algorithm, total_updates=total)
        for _ in range(4):
            learner.update(parts.batch([parts.sample()]))
        assert [inputs.progress for inputs in algorithm.seen] == shares
