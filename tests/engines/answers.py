"""Prompts to ask a generator, its answers, and what they must be."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from rlforge.engines.base import Answer
from rlforge.engines.batching import BatchGenerator
from rlforge.types import Completion, PolicyRef, SamplingParams

from .conftest import VOCABULARY

Prompt = tuple[int, ...]
BASE_POLICY = PolicyRef(uid="base", kind="checkpoint")


def random_prompts(count: int, seed: int = 0, longest: int = 20) -> list[Prompt]:
    rng = random.Random(seed)
    return [words(rng, 1, longest) for _ in range(count)]


def finish(core: BatchGenerator) -> dict[int, Answer]:
    answers: dict[int, Answer] = {}
    while core.has_work:
        answers |= {answer.id: answer for answer in core.step()}
    return answers


def completion_of(answer: Answer) -> Completion:
    assert answer.error is None, answer.error
    assert answer.completion is not None
    return answer.completion


@torch.no_grad()
def direct_logprobs(model: Any, completion: Completion, temperature: float = 1.0) -> list[float]:
    """The answer's log-probs from one plain forward pass over prompt and answer."""
    ids = torch.tensor([completion.prompt_token_ids + completion.token_ids])
    logits = model(input_ids=ids).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    start = len(completion.prompt_token_ids) - 1
    return [float(logprobs[start + i, t]) for i, t in enumerate(completion.token_ids)]


def assert_true_logprobs(model: Any, completion: Completion, temperature: float = 1.0) -> None:
    expected = direct_logprobs(model, completion, temperature)
    assert list(completion.logprobs) == pytest.approx(expected, abs=1e-4)


def words(rng: random.Random, least: int, most: int) -> Prompt:
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(least, most)))


def ask(
    core: BatchGenerator, prompt: Prompt, policy: PolicyRef, *, keep: bool = True, **given: Any
) -> Completion:
    params = SamplingParams(
        conversation=0 if keep else None, **{"max_tokens": 5, "seed": len(prompt), **given}
    )
    number = core.submit(prompt, params, policy)
    return completion_of(finish(core)[number])


def ask_all(core: BatchGenerator, prompts: list[Prompt], policy: PolicyRef) -> list[Completion]:
    numbers = [
        core.submit(prompt, SamplingParams(max_tokens=4, seed=place), policy)
        for place, prompt in enumerate(prompts)
    ]
    answers = finish(core)
    return [completion_of(answers[number]) for number in numbers]
