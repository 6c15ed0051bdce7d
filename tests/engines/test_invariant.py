"""A batch-invariant engine gives each answer to the last bit, whatever is generated beside it."""

from __future__ import annotations

import copy
import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from tests import factories

from rlforge.engines.batching import BatchGenerator
from rlforge.engines.invariant import check_invariance, key_positions, last_logits, make_invariant
from rlforge.errors import ConfigError
from rlforge.types import Completion, PolicyRef, SamplingParams

from .answers import BASE_POLICY, assert_true_logprobs, completion_of, finish
from .conftest import VOCABULARY

LONGEST = 320


@pytest.fixture(scope="module")
def model():
    """Positions beyond one part of torch's attention, and layers that see a window only."""
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6}
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    others = {"max_position_embeddings": LONGEST, "initializer_range": 0.2, "head_dim": None}
    return factories.causal_lm("qwen2", vocab_size=VOCABULARY, **sizes, **window, **others)


@pytest.fixture
def generator(make_core, model):
    def make(sequences, tokens):
        limits = {"prompt_tokens": tokens, "max_model_len": LONGEST}
        return make_core(copy.deepcopy(model), 3, sequences, invariant=True, **limits)

    return make


Asked = tuple[tuple[int, ...], SamplingParams, PolicyRef]


def questions(policies: list[PolicyRef]) -> list[Asked]:
    """Of several lengths and policies; some begin alike, and some continue others' answers."""
    rng = random.Random(1)
    rules = tuple(rng.randrange(VOCABULARY) for _ in range(40))
    asked = []
    for number in range(15):
        length = rng.choice([1, 2, 9, 30, 60, 130, 200])
        own = tuple(rng.randrange(VOCABULARY) for _ in range(length))
        params = SamplingParams(
            max_tokens=rng.choice([1, 4, 20]),
            temperature=rng.choice([0.7, 1.0]),
            top_p=rng.choice([0.9, 1.0]),
            seed=number,
            conversation=number if number % 3 == 0 else None,
        )
        prompt = rules + own if number % 2 else own
        asked.append((prompt, params, policies[number % len(policies)]))
    return asked


def ask(core: BatchGenerator, asked: list[Asked], order: list[int], pace: int) -> list[Completion]:
    """Answers to ``asked``, of which ``pace`` are handed in at each step, and one more round."""
    waiting, numbers, answers = list(order), dict[int, int](), dict[int, Completion]()
    follow = dict[int, Asked]()
    while waiting or core.has_work:
        for place in waiting[:pace]:
            numbers[core.submit(*(follow.get(place) or asked[place]))] = place
        waiting = waiting[pace:]
        for answer in core.step():
            place = numbers[answer.id]
            done = completion_of(answer)
            params = asked[place % len(asked)][1]
            if place < len(asked) and params.conversation is not None:
                prompt = (*done.prompt_token_ids, *done.token_ids, 5, 6, 7)
                later = place + len(asked)
                follow[later] = (prompt, params, asked[place][2])
                waiting.append(later)
            answers[place] = done
    return [answers[place] for place in sorted(answers)]


def test_answers_are_the_same_alone_and_in_any_batch(model, generator, make_adapter):
    adapter, _ = make_adapter(1, model=model)
    asked = questions([BASE_POLICY, adapter])
    places = list(range(len(asked)))
    alone = ask(generator(sequences=1, tokens=512), asked, places, 1)
    for seed, sequences, tokens, threads in ((0, 64, 4096, 2), (1, 7, 600, 1), (2, 20, 100, 1)):
        order = random.Random(seed).sample(places, len(places))
        core = generator(sequences, tokens)
        torch.set_num_threads(threads)
        assert ask(core, asked, order, pace=1 + 5 * seed) == alone
        torch.set_num_threads(1)
    assert len(alone) == 15 + 5


def test_engines_in_threads_of_one_process_do_not_see_each_others_batches():
    """A run with another model (``hf:``) has two, and they compute at the same time."""
    sizes = {"num_key_value_heads": None, "head_dim": None, "max_position_embeddings": LONGEST}
    models = [factories.causal_lm("gpt2", **sizes), factories.llama()]
    prompts = [[[5] * length for length in lengths] for lengths in ((9, 40), (300, 7))]
    for model in models:
        make_invariant(model)

    def read(place: int) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [last_logits(models[place], prompts[place], 1) for _ in range(30)]

    wanted = [read(place)[0] for place in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for place, found in enumerate(pool.map(read, range(2))):
            assert all(torch.equal(each, wanted[place]) for each in found)


def test_log_probs_are_those_of_the_plain_model(model, generator, make_adapter):
    adapter, tuned = make_adapter(2, model=model)
    core = generator(sequences=8, tokens=512)
    asked = {
        core.submit((9,) * length, SamplingParams(max_tokens=6, seed=length), policy): plain
        for length in (1, 5, 40, 200)
        for policy, plain in ((BASE_POLICY, model), (adapter, tuned))
    }
    for number, answer in finish(core).items():
        assert_true_logprobs(asked[number], completion_of(answer))


def test_without_it_the_batch_shows_in_the_last_bits(base, make_core):
    """Otherwise the first test would say nothing."""
    asked = [
        (prompt, dataclasses.replace(params, conversation=None), BASE_POLICY)
        for prompt, params, _ in questions([BASE_POLICY])
        if len(prompt) < 80
    ]
    places = list(range(len(asked)))
    alone = ask(make_core(copy.deepcopy(base), max_sequences=1), asked, places, 1)
    together = ask(make_core(copy.deepcopy(base)), asked, places, len(asked))
    assert [c.logprobs for c in alone] != [c.logprobs for c in together]


def test_models_whose_rows_depend_on_their_batch_are_refused():
    model = factories.llama()
    make_invariant(model)
    check_invariance(model)
    head = model.lm_head.forward

    def depends(x):
        return head(x) * (1 + 1e-6 * x.shape[0])

    model.lm_head.forward = depends
    with pytest.raises(ConfigError, match=r"prompt of 1 tokens depend .* determinism=strict"):
        check_invariance(model)


def test_layers_that_hold_their_weights_transposed_are_invariant():
    model = factories.causal_lm(
        "gpt2", num_key_value_heads=None, head_dim=None, max_position_embeddings=LONGEST
    )
    ids = torch.arange(9)[None]
    plain = model(input_ids=ids).logits
    make_invariant(model)
    check_invariance(model)
    torch.testing.assert_close(model(input_ids=ids).logits, plain, atol=1e-5, rtol=1e-5)


def test_mixtures_of_experts_and_models_with_another_attention_are_refused():
    with pytest.raises(ConfigError, match="MixtralForCausalLM is a mixture of experts"):
        make_invariant(factories.causal_lm("mixtral", num_local_experts=2))
    model = factories.llama()
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="computes attention by 'eager'"):
        make_invariant(model)


def test_positions_of_keys_are_multiples_that_torch_sums_in_equal_parts():
    lengths = range(1, 2000)
    assert all(key_positions(n) >= n for n in lengths)
    assert {key_positions(n) for n in lengths} == {64, 128, 512, 1024, 1536, 2048}
