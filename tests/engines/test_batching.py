"""Continuous batching: exact log-probs while requests join and leave, and fair turns."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from rlforge.engines.batching import BatchGenerator, Turns
from rlforge.engines.sampling import sampling_logprobs
from rlforge.errors import EngineError
from rlforge.types import PolicyRef, SamplingParams

from .answers import BASE_POLICY, ask, assert_true_logprobs, completion_of, finish, random_prompts
from .conftest import VOCABULARY


def test_logprobs_are_those_of_a_plain_forward_pass(base, make_core):
    core = make_core()
    prompts = random_prompts(12)
    ids = [
        core.submit(p, SamplingParams(max_tokens=1 + i, temperature=0.7, seed=i), BASE_POLICY)
        for i, p in enumerate(prompts)
    ]
    answers = finish(core)
    for index, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        completion = completion_of(answers[request])
        assert completion.prompt_token_ids == prompt
        assert len(completion.token_ids) == len(completion.logprobs) == 1 + index
        assert completion.text == " ".join(map(str, completion.token_ids))
        assert completion.finish_reason == "length"
        assert_true_logprobs(base, completion, temperature=0.7)


def test_the_last_layer_computes_only_the_ends_of_prompts(base, make_core):
    core = make_core()
    rows = []
    hooks = [
        layer.mlp.gate_proj.register_forward_pre_hook(
            lambda _, inputs: rows.append(tuple(inputs[0].shape[:2]))
        )
        for layer in base.model.layers
    ]
    for prompt in ([3, 4, 5, 6, 7], [8, 9, 10], [11, 12]):
        core.submit(prompt, SamplingParams(max_tokens=2), BASE_POLICY)
    finish(core)
    for hook in hooks:
        hook.remove()
    assert rows == [(3, 5), (1, 3), (3, 1), (3, 1)]  # two layers read prompts, then draw


def test_answers_are_drawn_from_what_the_filters_leave(base, make_core):
    """Requests with and without filters run together, each with log-probs of its own settings."""
    core = make_core()
    settings = [{"top_k": 3}, {"min_p": 0.3}, {}, {"top_k": 5, "top_p": 0.7, "min_p": 0.01}]
    ids = [
        core.submit(prompt, SamplingParams(max_tokens=9, seed=i, **settings[i % 4]), BASE_POLICY)
        for i, prompt in enumerate(random_prompts(16))
    ]
    answers = finish(core)
    for index, request in enumerate(ids):
        completion, given = completion_of(answers[request]), settings[index % 4]
        with torch.no_grad():
            read = torch.tensor([completion.prompt_token_ids + completion.token_ids])
            logits = base(input_ids=read).logits[0, len(completion.prompt_token_ids) - 1 : -1]
        rows = torch.ones(len(logits))
        expected = sampling_logprobs(
            logits,
            rows,
            rows * given.get("top_p", 1.0),
            rows * given.get("top_k", 0),
            rows * given.get("min_p", 0.0),
        )
        drawn = expected.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
        assert list(completion.logprobs) == pytest.approx(drawn.tolist(), abs=1e-4)


def test_requests_without_a_seed_differ_and_follow_the_engine_seed(make_core):
    def answers():
        core = make_core()
        for _ in range(4):
            core.submit((1, 2, 3), SamplingParams(max_tokens=5), BASE_POLICY)
        return [completion_of(a).token_ids for _, a in sorted(finish(core).items())]

    first = answers()
    assert len(set(first)) == 4
    assert answers() == first


def test_a_stop_token_ends_the_answer_and_stays_in_it(make_core):
    params = {"keep": False, "max_tokens": 10, "seed": 1}
    tokens = ask(make_core(), (5, 6, 7), BASE_POLICY, **params).token_ids
    stop = tokens[4]
    params["stop_token_ids"] = (stop, 299)
    completion = ask(make_core(), (5, 6, 7), BASE_POLICY, **params)
    assert completion.token_ids == tokens[: tokens.index(stop) + 1]
    assert completion.finish_reason == "stop"


def test_the_model_length_ends_an_answer(make_core):
    core = make_core(max_model_len=10)
    completion = ask(core, (1,) * 7, BASE_POLICY, keep=False, max_tokens=50)
    assert len(completion.token_ids) == 3
    assert completion.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ((), SamplingParams(), "empty prompt"),
        ((1,) * 12, SamplingParams(), "12 tokens is 3 too long"),
        ((1, VOCABULARY), SamplingParams(), "token 300; the model knows 0 to 299"),
        ((1, -1), SamplingParams(), "token -1"),
        ((1,), SamplingParams(max_tokens=0), "max_tokens is 0"),
        ((1,), SamplingParams(temperature=-1.0), "temperature is -1"),
        ((1,), SamplingParams(top_p=0.0), "top_p is 0"),
        ((1,), SamplingParams(top_k=-1), "top_k is -1"),
        ((1,), SamplingParams(min_p=1.0), "min_p is 1"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(make_core, prompt, params, message):
    core = make_core(max_model_len=10)
    with pytest.raises(EngineError, match=message):
        core.submit(prompt, params, BASE_POLICY)
    assert not core.has_work


def test_policies_of_other_kinds_are_refused(make_core):
    with pytest.raises(EngineError, match="kind 'scripted'"):
        make_core().submit((1,), SamplingParams(), PolicyRef(uid="x", kind="scripted"))


def test_long_prompts_are_read_over_several_steps(make_core):
    core = make_core(prompt_tokens=30)
    for index in range(6):
        core.submit((1 + index,) * 10, SamplingParams(max_tokens=9, seed=index), BASE_POLICY)
    core.step()
    assert (core.stats().running, core.stats().queued) == (3, 3)
    assert len(finish(core)) == 6


def _beginning(core: BatchGenerator, steps: int) -> list[int]:
    """How many requests each of the next steps begins; no more run than are allowed."""
    begun = []
    for _ in range(steps):
        queued = core.stats().queued
        core.step()
        assert core.stats().running <= 26
        begun.append(queued - core.stats().queued)
    return begun


def test_few_requests_are_held_back_to_be_read_together(make_core):
    core = make_core(max_sequences=26, patience_steps=4)

    def ask(number, tokens=100):
        for index in range(number):
            core.submit((1, 2), SamplingParams(max_tokens=tokens, seed=index), BASE_POLICY)

    ask(20)
    assert _beginning(core, 1) == [20]  # nothing else runs
    ask(2)
    assert _beginning(core, 2) == [0, 0]  # fewer than an eighth of 20
    ask(1)
    assert _beginning(core, 1) == [3]
    ask(1)
    assert _beginning(core, 6) == [0, 0, 0, 0, 1, 0]  # its patience is over
    ask(9, tokens=9)
    assert _beginning(core, 6) == [0, 0, 0, 0, 2, 0]  # all that there is room for
    assert core.stats().queued == 7
    ask(1)
    core.cancel(range(1, 5))  # steps without room do not count as patience
    assert _beginning(core, 1) == [4]
    assert len(finish(core)) == 34 - 4


def test_without_patience_requests_begin_at_once(make_core):
    core = make_core()
    for index in range(20):
        core.submit((1, 2), SamplingParams(max_tokens=50, seed=index), BASE_POLICY)
        assert _beginning(core, 1) == [1]


def test_more_versions_than_places_are_all_answered(make_core, make_adapter):
    core = make_core(max_loras=2)
    policies, models = zip(*(make_adapter(seed) for seed in range(1, 5)), strict=True)
    for index, prompt in enumerate(random_prompts(24)):
        core.submit(prompt, SamplingParams(max_tokens=3, seed=index), policies[index % 4])
    answers = {}
    while core.has_work:
        answers |= {answer.id: answer for answer in core.step()}
        assert len(core.stats().resident) <= 2
    assert len(answers) == 24
    by_uid = {policy.uid: model for policy, model in zip(policies, models, strict=True)}
    for answer in answers.values():
        completion = completion_of(answer)
        assert_true_logprobs(by_uid[completion.policy_uid], completion)


def test_the_least_recently_used_version_is_replaced_first(make_core, make_adapter):
    core = make_core(max_loras=2)
    first, second, third = (make_adapter(seed)[0] for seed in (1, 2, 3))
    for policy in (first, second, first, third):
        core.submit((1,), SamplingParams(max_tokens=1, seed=0), policy)
        finish(core)
    assert set(core.stats().resident) == {"v1", "v3"}


def test_cancelled_requests_leave_the_batch(base, make_core, make_adapter):
    core = make_core(max_sequences=3)
    ids = [
        core.submit(p, SamplingParams(max_tokens=12, seed=i), BASE_POLICY)
        for i, p in enumerate(random_prompts(6))
    ]
    ticket = core.load(make_adapter(1)[0])
    core.cancel([ticket])
    core.step()
    core.cancel([ids[0], ids[1], ids[5]])
    answers = finish(core)
    assert set(answers) == {ids[2], ids[3], ids[4]}
    for answer in answers.values():
        assert_true_logprobs(base, completion_of(answer))


def test_a_thread_that_asks_again_waits_behind_those_that_asked_before():
    turns, order = Turns(), []
    asked = threading.Event()

    def other():
        asked.set()
        with turns:
            order.append("other")

    with turns:
        thread = threading.Thread(target=other)
        thread.start()
        asked.wait()
        time.sleep(0.05)  # it waits by now
        order.append("first")
    with turns:
        order.append("first again")
    thread.join()
    assert order == ["first", "other", "first again"]


def test_one_thread_at_a_time_is_in_the_block():
    turns, inside, most = Turns(), 0, 0

    def work():
        nonlocal inside, most
        for _ in range(200):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
