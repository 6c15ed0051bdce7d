"""The vLLM engine keeps the protocol: tokens, their log-probs, the right version."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import shutil
from pathlib import Path

import psutil
import pytest
import torch

from rlforge.config.engine import EngineConfig
from rlforge.config.model import LoraConfig, ModelConfig
from rlforge.config.rules import changed
from rlforge.config.schema import RunConfig
from rlforge.engines.grammars import Grammars, json_grammar
from rlforge.engines.registry import make_engine
from rlforge.errors import ConfigError, EngineError
from rlforge.learner.engine_trial import try_out
from rlforge.models.tiny.vocabulary import build_tokenizer
from rlforge.types import PolicyRef, SamplingParams

from .conftest import LONG_PROMPT, VOCABULARY, logprob_gap, record_cached_tokens, running

pytestmark = pytest.mark.vllm


@pytest.fixture
def torn(make_adapter):
    """A version whose weights file is truncated."""
    policy, _ = make_adapter(10)
    Path(policy.path_or_name or "", "adapter_model.safetensors").write_bytes(b"torn")
    return policy


@pytest.mark.parametrize("temperature", [pytest.param(1.0, marks=pytest.mark.smoke), 0.6, 1.7])
async def test_logprobs_are_those_of_the_learner(engine, base, base_policy, versions, temperature):
    asked = [(base_policy, base), *versions[:2]]
    answers = await asyncio.gather(
        *(
            engine.generate(
                [index + 1, 7, 9],
                SamplingParams(temperature=temperature, max_tokens=20, seed=index),
                asked[index % 3][0],
            )
            for index in range(12)
        )
    )
    for index, answer in enumerate(answers):
        assert len(answer.token_ids) == len(answer.logprobs) == 20
        assert logprob_gap(asked[index % 3][1], answer, temperature) < 1e-4
        if temperature != 1.0:
            assert logprob_gap(asked[index % 3][1], answer, 1.0) > 1e-2


@pytest.mark.smoke
async def test_vllm_passes_the_trial_of_engine_auto(engine, make_config):
    assert await try_out(engine, make_config(), "cpu") < 1e-4


async def test_answers_keep_to_their_grammar_with_the_log_probs_of_what_it_leaves(
    engine, base, base_policy, versions
):
    """Next to requests without one, of several versions."""
    tokenizer = build_tokenizer([" yes", " no", "go"])
    grammars = Grammars(tokenizer, VOCABULARY)
    grammar = json_grammar({"anyOf": [{"enum": ["YES", "NO"]}, {"type": "boolean"}]})
    asked = [(base_policy, base), *versions[:2]]
    stops = (tokenizer.eos_token_id,)
    answers = await asyncio.gather(
        *(
            engine.generate(
                [index + 1, 7, 9],
                SamplingParams(
                    max_tokens=12,
                    stop_token_ids=stops,
                    seed=index,
                    grammar=None if index % 4 == 3 else grammar,
                ),
                asked[index % 3][0],
            )
            for index in range(24)
        )
    )
    texts = set()
    for index, answer in enumerate(answers):
        model = asked[index % 3][1]
        if index % 4 == 3:
            assert logprob_gap(model, answer) < 1e-4
            continue
        assert (answer.finish_reason, answer.token_ids[-1]) == ("stop", stops[0])
        texts.add(tokenizer.decode(answer.token_ids[:-1]))
        state = grammars.begin(grammar, stops)
        ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0].double()
        for place, (token, logprob) in enumerate(
            zip(answer.token_ids, answer.logprobs, strict=True)
        ):
            row, allowed = logits[2 + place], torch.from_numpy(state.allowed())
            assert logprob == pytest.approx(float(row[token] - row[allowed].logsumexp(0)), abs=1e-4)
            state.take(token)
    assert texts == {'"YES"', '"NO"', "true", "false"}


async def test_log_probs_of_the_model_are_those_of_its_own_distribution(
    engine, base, base_policy, versions
):
    stops = (build_tokenizer([" yes", " no", "go"]).eos_token_id,)
    grammar = json_grammar({"enum": ["YES", "NO"]})
    hows = [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_k": 5},
        {"grammar": grammar, "stop_token_ids": stops},
        {"max_tokens": 600, "temperature": 1.4, "min_p": 0.02},
    ]
    asked = [(base_policy, base), *versions[:2]]
    answers = await asyncio.gather(
        *(
            engine.generate(
                [7, 9, index],
                SamplingParams(**{"max_tokens": 12, "seed": index, "model_logprobs": wanted} | how),
                asked[index % 3][0],
            )
            for wanted in (True, False)
            for index, how in enumerate(hows)
        )
    )
    for index, (answer, plain) in enumerate(zip(answers[:4], answers[4:], strict=True)):
        own = dataclasses.replace(answer, logprobs=answer.model_logprobs)
        if index == 2:  # at temperature 1 and without filters, over the tokens that are allowed
            assert answer.model_logprobs == pytest.approx(answer.logprobs, abs=1e-4)
        else:
            assert logprob_gap(asked[index % 3][1], own) < 1e-4
        assert plain.model_logprobs == ()
        assert answer.token_ids == plain.token_ids
        assert answer.logprobs == pytest.approx(plain.logprobs, abs=1e-4)


async def test_an_invalid_grammar_fails_its_own_request(engine, base_policy):
    with pytest.raises(EngineError, match="unknown name"):
        await engine.generate([1, 2], SamplingParams(grammar="start: x"), base_policy)
    assert len((await engine.generate([1], SamplingParams(max_tokens=2), base_policy)).token_ids)


async def test_more_prompt_tokens_than_a_step_computes_are_answered_by_their_seeds(
    engine, base, base_policy
):
    prompts = [[(index * place + index) % 50 for place in range(500)] for index in range(16)]
    answers = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(max_tokens=4, seed=index), base_policy)
            for index, prompt in enumerate(prompts)
        )
    )
    assert max(logprob_gap(base, answer) for answer in answers) < 1e-4


@pytest.mark.smoke
async def test_versions_in_flight_together_answer_with_their_own_weights_and_cache(
    engine, versions, monkeypatch
):
    cached = record_cached_tokens(engine, monkeypatch)

    async def ask(index):
        own, other = (index % 2, 1 - index % 2)
        # The two versions join the batch in turns, and read the same prompt.
        await asyncio.sleep(0.01 * index)
        completion = await engine.generate(
            LONG_PROMPT, SamplingParams(max_tokens=30, seed=index), versions[own][0]
        )
        assert completion.policy_uid == versions[own][0].uid
        assert completion.policy_version == versions[own][0].version
        return logprob_gap(versions[own][1], completion), logprob_gap(
            versions[other][1], completion
        )

    gaps = await asyncio.gather(*(ask(index) for index in range(12)))
    assert max(own for own, _ in gaps) < 1e-4
    assert min(other for _, other in gaps) > 0.05
    assert max(cached) >= 256, "the prompt was to be found in the cache"
    assert cached.count(0) >= 2, "each version reads the prompt itself"


@pytest.mark.smoke
@pytest.mark.parametrize("same", ["uid", "path"])
async def test_a_uid_with_another_path_and_a_path_under_a_new_uid_have_the_new_weights(
    engine, versions, tmp_path, same
):
    for uid, (policy, model) in zip("abc", versions, strict=True):
        path = policy.path_or_name or ""
        if same == "path":
            path = str(shutil.copytree(path, tmp_path / "latest", dirs_exist_ok=True))
        asked = PolicyRef(
            uid="current" if same == "uid" else uid, kind="checkpoint", path_or_name=path
        )
        completion = await engine.generate(
            LONG_PROMPT, SamplingParams(max_tokens=20, seed=0), asked
        )
        assert logprob_gap(model, completion) < 1e-4


async def test_more_versions_than_places_are_all_answered(engine, versions):
    answers = await asyncio.gather(
        *(
            engine.generate([5, index], SamplingParams(max_tokens=25, seed=index), policy)
            for index in range(4)
            for policy, _ in versions
        )
    )
    for index, answer in enumerate(answers):
        assert logprob_gap(versions[index % 3][1], answer) < 1e-4
    assert len(engine.stats().resident) == 2
    assert len(engine.llm.list_loras()) == 2


async def test_a_version_that_vllm_refuses_replaces_none(engine, versions, make_adapter):
    large, _ = make_adapter(11, LoraConfig(rank=64))
    for policy, _ in versions[:2]:
        await engine.load(policy)
    resident = engine.stats().resident
    with pytest.raises(EngineError, match="LoRA rank 64 is greater"):
        await engine.load(large)
    assert engine.stats().resident == resident == ("step-1", "step-2")
    assert len(engine.llm.list_loras()) == 2
    for policy, model in versions[:2]:
        answer = await engine.generate([5, 6], SamplingParams(max_tokens=20, seed=0), policy)
        assert logprob_gap(model, answer) < 1e-4


async def test_two_hundred_swaps_keep_memory_flat_and_reuse_no_number(
    engine, versions, monkeypatch
):
    llm, numbers, most = engine.llm, [], 0
    add = llm.add_lora
    monkeypatch.setattr(
        llm, "add_lora", lambda request: (numbers.append(request.lora_int_id), add(request))[1]
    )
    process = psutil.Process()

    async def swap(times):
        nonlocal most
        for index in range(times):
            policy, model = versions[index % 3]
            await engine.load(policy)
            most = max(most, len(llm.list_loras()))
            if index % 20 == 0:
                completion = await engine.generate(
                    [index % 99, 3], SamplingParams(max_tokens=20), policy
                )
                assert logprob_gap(model, completion) < 1e-4

    await swap(30)
    gc.collect()
    before = process.memory_info().rss
    await swap(200)
    gc.collect()
    assert process.memory_info().rss - before < 16 * 2**20
    assert most == 2
    assert len(numbers) >= 200
    assert len(set(numbers)) == len(numbers)


@pytest.mark.smoke
async def test_a_stop_token_ends_the_answer_and_stays_in_it(engine, base_policy):
    free = await engine.generate([1, 2], SamplingParams(max_tokens=40, seed=3), base_policy)
    assert free.finish_reason == "length"
    stop = free.token_ids[10]
    params = SamplingParams(max_tokens=40, seed=3, stop_token_ids=(stop,))
    stopped = await engine.generate([1, 2], params, base_policy)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.logprobs == pytest.approx(free.logprobs[: len(stopped.token_ids)], abs=1e-5)


async def test_only_the_named_tokens_end_an_answer(engine, base_policy):
    """The model's own end of text among the drawn tokens does not."""
    answers = await asyncio.gather(
        *(
            engine.generate([seed], SamplingParams(max_tokens=100, seed=seed), base_policy)
            for seed in range(16)
        )
    )
    end = engine.llm.model_config.hf_config.eos_token_id
    assert any(end in answer.token_ids[:-1] for answer in answers)
    assert {len(answer.token_ids) for answer in answers} == {100}


async def test_a_seed_repeats_its_draw_whatever_else_runs(engine, base_policy, versions):
    params = SamplingParams(max_tokens=30, seed=2**64 - 5)
    alone = await engine.generate([4, 2], params, base_policy)
    crowd = [
        engine.generate([4, index], SamplingParams(max_tokens=30), versions[0][0])
        for index in range(10)
    ]
    again, *others = await asyncio.gather(engine.generate([4, 2], params, base_policy), *crowd)
    assert again.token_ids == alone.token_ids
    unseeded = await engine.generate([4, 2], SamplingParams(max_tokens=30), base_policy)
    assert unseeded.token_ids != alone.token_ids
    assert len({answer.token_ids for answer in others}) > 1


async def test_greedy_answers_take_the_likeliest_token_and_are_certain(engine, base, base_policy):
    import torch

    greedy = SamplingParams(temperature=0.0, max_tokens=8)
    answer, _ = await asyncio.gather(
        engine.generate([3, 1, 4], greedy, base_policy),
        engine.generate([3, 1, 4], SamplingParams(max_tokens=8, seed=1), base_policy),
    )
    assert answer.logprobs == (0.0,) * 8
    ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
    with torch.no_grad():
        likeliest = base(input_ids=ids).logits[0].argmax(-1)
    assert likeliest[2:-1].tolist() == list(answer.token_ids)


@pytest.mark.parametrize(
    ("top_p", "top_k", "min_p"), [(0.6, 0, 0), (1, 5, 0), (1, 0, 0.2), (0.9, 20, 0.02)]
)
async def test_filters_cut_the_distribution_and_the_logprobs_are_those_of_the_rest(
    engine, base, base_policy, top_p, top_k, min_p
):
    import torch

    from rlforge.engines.sampling import sampling_logprobs

    filters = {"top_p": top_p, "top_k": top_k, "min_p": min_p}
    params = SamplingParams(temperature=0.8, max_tokens=25, seed=6, **filters)
    answer = await engine.generate([3, 1, 4], params, base_policy)
    ids = torch.tensor([answer.prompt_token_ids + answer.token_ids])
    with torch.no_grad():
        logits = base(input_ids=ids).logits[0, 2:-1]
    cuts = (torch.full((25,), float(each)) for each in (top_p, top_k, min_p))
    table = sampling_logprobs(logits, torch.full((25,), 0.8), *cuts)
    expected = [float(table[index, token]) for index, token in enumerate(answer.token_ids)]
    assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_an_answer_ends_where_the_model_length_ends(engine, base_policy):
    answer = await engine.generate([1] * 500, SamplingParams(max_tokens=100, seed=0), base_policy)
    assert len(answer.token_ids) == 12
    assert answer.finish_reason == "length"


async def test_errors_reach_the_caller_that_caused_them(
    engine, base_policy, make_adapter, torn, tmp_path
):
    one = SamplingParams(max_tokens=1)
    missing = PolicyRef(uid="m", kind="checkpoint", path_or_name=str(tmp_path / "nowhere"))
    large, _ = make_adapter(9, LoraConfig(rank=64))
    cases = [
        (engine.generate([1] * 512, one, base_policy), "1 too long"),
        (engine.generate([VOCABULARY], one, base_policy), "was it encoded with another"),
        (engine.generate([], one, base_policy), "empty prompt"),
        (engine.generate([1], SamplingParams(temperature=3.0), base_policy), "vLLM refuses"),
        (engine.generate([1], one, missing), "nowhere is missing"),
        (engine.load(missing), "nowhere is missing"),
        (engine.generate([1], one, large), r"LoRA rank 64 is greater.*model\.lora\.rank"),
        (engine.generate([1], one, torn), "cannot be loaded.*is it complete"),
        (engine.generate([1], one, PolicyRef(uid="s", kind="scripted")), "kind 'scripted'"),
    ]
    fine = engine.generate([1], one, base_policy)
    results = await asyncio.gather(fine, *(case for case, _ in cases), return_exceptions=True)
    assert not isinstance(results[0], BaseException)
    for result, (_, message) in zip(results[1:], cases, strict=True):
        with pytest.raises(EngineError, match=message):
            raise result
    assert engine.stats().queued == engine.stats().running == 0


async def test_tokens_are_streamed_as_they_are_drawn(engine, versions):
    heard = []
    params = SamplingParams(max_tokens=24, seed=3)
    policy = versions[0][0]
    streamed = await engine.generate([5, 6, 7], params, policy, heard.append)
    silent = await engine.generate([5, 6, 7], params, policy)
    together = tuple(token for piece in heard for token in piece)
    assert streamed.token_ids == silent.token_ids
    assert together == streamed.token_ids[: len(together)]
    assert len(heard) > 1


@pytest.mark.smoke
async def test_a_cancelled_request_frees_its_place(engine, versions, base_policy):
    long = SamplingParams(max_tokens=400, seed=0)
    doomed = [
        asyncio.create_task(engine.generate([index], long, versions[index % 2][0]))
        for index in range(40)
    ]
    await running(engine, 16)
    assert engine.stats().queued == 24
    for task in doomed:
        task.cancel()
    # Both places are in use by those, and a third version wants one.
    answer = await engine.generate([8], SamplingParams(max_tokens=3), versions[2][0])
    assert len(answer.token_ids) == 3
    assert engine.stats().running == engine.stats().queued == 0
    results = await asyncio.gather(*doomed, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert engine.llm.get_num_unfinished_requests() == 0


async def test_stats_count_tokens_as_they_come_and_spans_cover_the_work(engine, base_policy):
    before = engine.stats()
    engine.take_busy_spans()
    task = asyncio.create_task(
        engine.generate([1, 2, 3], SamplingParams(max_tokens=200, seed=0), base_policy)
    )
    seen = set()
    while not task.done():
        seen.add(engine.stats().generated_tokens - before.generated_tokens)
        await asyncio.sleep(0.01)
    await task
    after = engine.stats()
    assert len(seen) > 5, "tokens are counted before the answer is complete"
    assert after.requests - before.requests == 1
    assert after.prompt_tokens - before.prompt_tokens == 3
    assert after.generated_tokens - before.generated_tokens == 200
    covered = sum(end - start for start, end in engine.take_busy_spans())
    assert covered >= after.busy_s - before.busy_s - 1e-6


def test_a_model_that_does_not_fit_vllm_is_refused_in_one_message(make_config, model_folder):
    config = changed(make_config(), ["engine.vllm.kv_cache_gb=1e-5"])
    with pytest.raises(ConfigError, match=r"vLLM does not start.*engine\.max_model_len") as caught:
        make_engine(config, device="cpu", threads=1)
    assert str(model_folder) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_heads_that_vllm_has_no_kernel_for_are_refused(base, tmp_path):
    described = copy.deepcopy(base.config)
    described.num_attention_heads, described.head_dim = 4, 16
    described.save_pretrained(tmp_path)
    model, engine = ModelConfig(kind="hf", name=str(tmp_path)), EngineConfig(name="vllm")
    config = RunConfig(model=model, engine=engine)
    with pytest.raises(ConfigError, match=r"attention heads of 16, and on a CPU .* 32.*use engine"):
        make_engine(config, device="cpu", threads=1)


async def test_closing_fails_running_and_later_requests(make_config, base_policy):
    engine = make_engine(make_config(), device="cpu", threads=1)
    long = SamplingParams(max_tokens=500, seed=0)
    pending = [asyncio.create_task(engine.generate([1], long, base_policy)) for _ in range(5)]
    await running(engine, 5)
    await engine.close()
    results = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(r, EngineError) and "closed" in str(r) for r in results)
    with pytest.raises(EngineError, match="closed"):
        await engine.generate([1], long, base_policy)
