"""Requests that are equal so far are computed once, and answered as if each were alone."""

import random
from typing import Any

import pytest

from rlforge.types import SamplingParams

from .answers import BASE_POLICY, ask, ask_all, completion_of, direct_logprobs, finish, words


def test_equal_prompts_are_read_once_and_answered_as_if_alone(make_core):
    rng = random.Random(0)
    positions = [words(rng, 20, 40) for _ in range(3)]
    prompts = [rng.choice(positions) for _ in range(20)]
    core, alone = make_core(max_model_len=64), make_core(max_model_len=64, kept_tokens=0)
    for reads in (sum(len(p) for p in positions), len(positions)):
        before = core.stats().read_tokens
        said = ask_all(core, prompts, BASE_POLICY)
        assert core.stats().read_tokens - before <= max(reads, 3 * max(map(len, positions)))
        for place, (prompt, each) in enumerate(zip(prompts, said, strict=True)):
            one = ask(alone, prompt, BASE_POLICY, keep=False, max_tokens=4, seed=place)
            assert each.token_ids == one.token_ids
            assert list(each.logprobs) == pytest.approx(list(one.logprobs), abs=1e-4)
    assert len({each.token_ids for each in said}) > 3  # each draws for itself


def test_a_prompt_of_several_requests_is_known_to_later_ones(make_core, make_adapter):
    rng = random.Random(2)
    start, other = words(rng, 30, 30), words(rng, 30, 30)
    core, (policy, model) = make_core(max_model_len=64), make_adapter(1)
    ask_all(core, [start, other, start], BASE_POLICY)
    for prompt, version, reads in (
        (start, BASE_POLICY, 1),
        (start, BASE_POLICY, 1),  # and again
        (other, BASE_POLICY, 30),  # one request had it
        (start, policy, 30),  # another version
    ):
        before = core.stats().read_tokens
        [said] = ask_all(core, [prompt], version)
        assert core.stats().read_tokens - before == reads
    assert list(said.logprobs) == pytest.approx(direct_logprobs(model, said), abs=1e-4)


def test_answers_that_are_equal_so_far_are_one_row(base, make_core):
    core, rows = make_core(max_model_len=64), list[int]()

    def record(_module, _args, given):
        rows.append(given["input_ids"].shape[0])

    prompts = [words(random.Random(4), 20, 20)] * 30
    with base.register_forward_pre_hook(record, with_kwargs=True):
        params = SamplingParams(max_tokens=6, temperature=0.0)
        numbers = [core.submit(prompt, params, BASE_POLICY) for prompt in prompts]
        answers = finish(core)
        assert len({completion_of(answers[number]).token_ids for number in numbers}) == 1
        assert rows == [1] * 6
        rows.clear()
        said = ask_all(core, prompts, BASE_POLICY)
    ends = [
        len({each.token_ids[:step] for each in said if len(each.token_ids) > step})
        for step in range(len(rows))
    ]
    # As many rows as there are different beginnings; up to an eighth are not used.
    assert all(end <= count <= end * 8 / 7 for end, count in zip(ends, rows, strict=True))


@pytest.mark.parametrize("logits_bytes", [0, 2_000, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
def test_requests_with_equal_tokens_are_answered_as_if_alone(make_core, seed, logits_bytes):
    """With any settings, whenever they come, and whichever of them are cancelled."""
    rng = random.Random(seed)
    positions = [words(rng, 3, 12) for _ in range(3)]
    core = make_core(max_model_len=32, logits_bytes=logits_bytes)
    alone = make_core(max_model_len=32, kept_tokens=0)
    answers, asked = dict[int, Any](), dict[int, Any]()
    for _ in range(40):
        params = SamplingParams(
            max_tokens=rng.randint(1, 8),
            temperature=rng.choice([0.0, 0.3, 1.0]),
            top_p=rng.choice([1.0, 0.7]),
            top_k=rng.choice([0, 4]),
            seed=rng.randrange(4),  # some are alike in everything
        )
        request = (rng.choice(positions), params, BASE_POLICY)
        asked[core.submit(*request)] = request
        if rng.random() < 0.3:
            answers |= {answer.id: answer for answer in core.step()}
        if rng.random() < 0.1:
            gone = rng.sample(sorted(asked.keys() - answers.keys()), 1)
            core.cancel(gone)
            del asked[gone[0]]
    answers |= finish(core)
    assert answers.keys() == asked.keys()
    for number, request in asked.items():
        one = alone.submit(*request)
        expected, said = completion_of(finish(alone)[one]), completion_of(answers[number])
        assert (said.token_ids, said.finish_reason) == (expected.token_ids, expected.finish_reason)
        assert list(said.logprobs) == pytest.approx(list(expected.logprobs), abs=1e-4)
