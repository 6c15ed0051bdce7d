"""Failures of the generator: the requests that end with an error, and the state afterwards."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rlforge.engines.cache import RowLayer
from rlforge.errors import EngineError
from rlforge.types import SamplingParams

from .answers import BASE_POLICY, assert_true_logprobs, completion_of, finish, random_prompts


def test_a_failing_forward_pass_ends_the_requests_in_it_and_no_others(
    base, make_core, full_weights
):
    core, (policy, model) = make_core(), full_weights
    doomed = core.submit((1, 2), SamplingParams(max_tokens=9, seed=0), BASE_POLICY)
    safe = core.submit((1, 2), SamplingParams(max_tokens=9, seed=0), policy)
    core.step()
    with failing(base.model, RuntimeError("out of memory")):
        answers = {answer.id: answer for answer in core.step()}
    error = answers.pop(doomed).error
    assert error is not None
    assert "out of memory" in str(error)
    again = core.submit((1, 2), SamplingParams(max_tokens=2, seed=0), BASE_POLICY)
    answers |= finish(core)
    assert_true_logprobs(model, completion_of(answers[safe]))
    assert_true_logprobs(base, completion_of(answers[again]))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_nan_or_infinite_logits_end_their_own_requests_and_no_others(base, make_core, wrong):
    """Of five requests that run, two get wrong logits; of two that are new, one does."""
    core = make_core()
    prompts = random_prompts(7)
    greedy = SamplingParams(max_tokens=4, temperature=0.0, seed=0)
    drawn = SamplingParams(max_tokens=4, top_p=0.9, seed=0)
    settings = [drawn, greedy, greedy, drawn, drawn]
    ids = [core.submit(p, s, BASE_POLICY) for p, s in zip(prompts, settings, strict=False)]
    assert core.step() == []
    order = list(core.drawn(ids))
    ids += [core.submit(prompt, drawn, BASE_POLICY) for prompt in prompts[5:]]

    def spoil(_model, _inputs, output):
        rows = output.logits.shape[0]
        for row in [1, 3] if rows == 5 else [0]:
            output.logits[row, -1, 7] = wrong

    with base.register_forward_hook(spoil):
        failed = {answer.id: answer.error for answer in core.step()}
    shorter = min(ids[5:], key=lambda i: len(prompts[ids.index(i)]))
    assert set(failed) == {order[1], order[3], shorter}
    for error in failed.values():
        assert isinstance(error, EngineError)
    tokens = sorted(str(error).split(" of the answer")[0] for error in failed.values())
    assert tokens == [
        "the model computed NaN or infinite logits for token 1",
        "the model computed NaN or infinite logits for token 2",
        "the model computed NaN or infinite logits for token 2",
    ]
    answers = finish(core)
    assert set(answers) == set(ids) - set(failed)
    for answer in answers.values():
        assert len(completion_of(answer).token_ids) == 4


def _error(code: int) -> RuntimeError:
    error: RuntimeError = torch.AcceleratorError("CUDA error")
    error.error_code = code  # type: ignore[attr-defined]
    return error


@contextlib.contextmanager
def failing(module: Any, error: Exception) -> Iterator[None]:
    """Each forward pass of ``module`` raises ``error``."""

    def fail(*_: Any) -> None:
        raise error

    with module.register_forward_pre_hook(fail):
        yield


@pytest.mark.parametrize("when", ["forward", "load"])
def test_a_lost_device_ends_the_engine(base, make_core, make_adapter, when, monkeypatch):
    core = make_core()

    def fail(*_, **__):
        raise _error(710)

    if when == "load":
        monkeypatch.setattr("peft.PeftModel.from_pretrained", fail)
    policy = make_adapter(1)[0] if when == "load" else BASE_POLICY
    core.submit((1, 2), SamplingParams(max_tokens=9, seed=0), policy)
    with base.model.register_forward_pre_hook(fail), pytest.raises(torch.AcceleratorError):
        core.step()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), _error(2)])
def test_lack_of_memory_ends_only_the_requests_of_its_pass(base, make_core, error):
    core = make_core()
    request = core.submit((1, 2), SamplingParams(max_tokens=9, seed=0), BASE_POLICY)
    with failing(base.model, error):
        (answer,) = core.step()
    assert answer.id == request
    assert isinstance(answer.error, EngineError)


@pytest.mark.parametrize("fails", ["reserve", "write", "copy", "resize"])
def test_a_cache_that_fails_between_layers_ends_only_the_requests_that_needed_it(
    base, make_core, fails, monkeypatch
):
    core = make_core()
    prompts = random_prompts(12)
    for index, prompt in enumerate(prompts[:9]):
        core.submit(prompt, SamplingParams(max_tokens=3 + index, seed=index), BASE_POLICY)
    answers = {}
    real, calls = getattr(RowLayer, fails), 0

    def scarce(layer, *args, **options):
        nonlocal calls
        calls += 1
        if calls == 2:  # of the two layers, the second
            raise torch.OutOfMemoryError("no room")
        return real(layer, *args, **options)

    for index in range(3):
        answers |= {answer.id: answer for answer in core.step()}
        if index == 0:
            monkeypatch.setattr(RowLayer, fails, scarce)
        for prompt in prompts[9 + index : 10 + index]:
            core.submit(prompt, SamplingParams(max_tokens=5, seed=index), BASE_POLICY)
    answers |= finish(core)
    assert calls >= 2
    failed = [answer for answer in answers.values() if answer.error is not None]
    assert failed
    assert all("no room" in str(answer.error) for answer in failed)
    if fails in ("reserve", "write"):
        assert len(failed) == 1  # the one that was to join
    assert len(answers) == 12
    for answer in answers.values():
        if answer.error is None:
            assert_true_logprobs(base, completion_of(answer))


def test_an_error_that_is_kept_keeps_no_tensors_alive(base, make_core):
    core = make_core()
    core.submit((1, 2), SamplingParams(max_tokens=9, seed=0), BASE_POLICY)
    core.step()
    held = []

    def fail(_module, inputs):
        (hidden,) = inputs
        copy = hidden.clone()
        held.append(weakref.ref(copy))
        raise RuntimeError("out of memory")

    with base.model.layers[1].mlp.register_forward_pre_hook(fail):
        (answer,) = core.step()
    gc.collect()
    assert isinstance(answer.error, EngineError)
    assert isinstance(answer.error.__cause__, RuntimeError)
    assert held[0]() is None
