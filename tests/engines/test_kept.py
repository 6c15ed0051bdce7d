"""Conversations whose keys and values are kept: the same answers, and each token read once."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlforge.engines.batching import BatchGenerator
from rlforge.engines.kept import LEAST_SHARED, MOST_SHARED, KeptLogits, KeptRows, SharedBeginnings
from rlforge.engines.versions import PolicyKey
from rlforge.types import Completion, PolicyRef, SamplingParams

from .answers import BASE_POLICY, ask, ask_all, completion_of, direct_logprobs, finish, words


def whole(completion: Completion) -> tuple[int, ...]:
    return completion.prompt_token_ids + completion.token_ids


def converse(
    core: BatchGenerator, policies: list[PolicyRef], seed: int = 0
) -> list[list[Completion]]:
    """Conversations of six games at once, with five turns of different lengths."""
    rng = random.Random(seed)
    histories = [words(rng, 1, 25) for _ in range(6)]
    said: list[list[Completion]] = [[] for _ in range(6)]
    under_way: dict[int, int] = {}
    waiting = [game for game in range(6) for _ in range(5)]
    rng.shuffle(waiting)
    while waiting or under_way:
        for game in list(dict.fromkeys(waiting)):
            if game in under_way.values() or rng.random() < 0.5:
                continue
            waiting.remove(game)
            turn = len(said[game])
            params = SamplingParams(
                max_tokens=1 + (game + turn) % 6, seed=100 * game + turn, conversation=game
            )
            policy = policies[game % len(policies)]
            under_way[core.submit(histories[game], params, policy)] = game
        for answer in core.step():
            game = under_way.pop(answer.id)
            said[game].append(completion_of(answer))
            reply = random.Random(seed + 100 * game + len(said[game]))
            histories[game] = whole(said[game][-1]) + words(reply, 1, 9)
    return said


@pytest.mark.parametrize("seed", range(2))
def test_answers_of_conversations_are_those_of_a_plain_forward_pass(
    base, make_core, make_adapter, seed
):
    models = {"base": base}
    policies = [BASE_POLICY]
    for number in (1, 2):
        policy, models[policy.uid] = make_adapter(number)
        policies.append(policy)
    core = make_core(max_model_len=256)
    said = converse(core, policies, seed=seed)
    gaps = [
        abs(mine - true)
        for turns in said
        for each in turns
        for mine, true in zip(
            each.logprobs, direct_logprobs(models[each.policy_uid], each), strict=True
        )
    ]
    assert sum(gaps) / len(gaps) < 1e-5
    assert max(gaps) < 1e-3
    stats = core.stats()
    assert stats.cached_tokens > stats.read_tokens


def test_kept_keys_and_values_change_no_token(make_core):
    def tokens(**options):
        core = make_core(max_model_len=256, **options)
        keep = options != {"kept_tokens": 0}
        said = converse(core, [BASE_POLICY])
        assert (core.stats().cached_tokens > 0) == keep
        return [[each.token_ids for each in turns] for turns in said]

    assert tokens() == tokens(kept_tokens=0) == tokens(kept_tokens=60)


def test_an_episode_reads_each_token_once(make_core):
    core, rng = make_core(max_model_len=512), random.Random(0)
    history = words(rng, 20, 20)
    for _ in range(20):
        history = whole(ask(core, history, BASE_POLICY)) + words(rng, 15, 15)
    stats = core.stats()
    # Of each answer the last token is read with the next prompt.
    assert stats.read_tokens == 20 + 19 * (1 + 15)
    assert stats.read_tokens < 0.15 * stats.prompt_tokens


def test_a_request_that_is_not_to_be_continued_keeps_nothing(make_core):
    core = make_core()
    first = ask(core, (1, 2, 3), BASE_POLICY, keep=False)
    ask(core, (*whole(first), 4), BASE_POLICY)
    assert core.stats().cached_tokens == 0


def test_answers_of_one_token_are_continued(make_core):
    core = make_core()
    first = ask(core, (1, 2, 3), BASE_POLICY, max_tokens=1)
    ask(core, (*whole(first), 4), BASE_POLICY, max_tokens=1)
    assert core.stats().cached_tokens == 3


def test_games_with_the_same_turns_all_continue_them(make_core):
    core = make_core()
    for _ in range(3):
        first = ask(core, (1, 2, 3), BASE_POLICY)
    read = core.stats().read_tokens
    for _ in range(3):
        ask(core, (*whole(first), 4), BASE_POLICY, keep=False)
    assert core.stats().read_tokens == read + 3 * 2  # the last token of the answer, and the new one
    ask(core, (*whole(first), 4), BASE_POLICY)
    assert core.stats().cached_tokens == 3 * 7


def test_what_a_replaced_version_kept_is_dropped(make_core, make_adapter):
    """A path may hold other weights when it is loaded again."""
    core = make_core(max_loras=1)
    (first, model), (second, _) = make_adapter(1), make_adapter(2)
    said = ask(core, (1, 2, 3), first)
    ask(core, (1, 2, 3), second)
    again = ask(core, (*whole(said), 4), first)
    assert core.stats().cached_tokens == 0
    assert list(again.logprobs) == pytest.approx(direct_logprobs(model, again), abs=1e-4)


@pytest.mark.parametrize("event", ["sleep", "failure"])
def test_nothing_is_kept_over_sleep_and_failures(base, make_core, event):
    core = make_core()
    first = ask(core, (1, 2, 3), BASE_POLICY)
    if event == "sleep":
        core.drain()
        core.sleep()
        core.wake()
    else:

        def fail(*_):
            raise RuntimeError("out of memory")

        hook = base.model.register_forward_pre_hook(fail)
        core.submit((7,), SamplingParams(), BASE_POLICY)
        assert [answer.completion for answer in finish(core).values()] == [None]
        hook.remove()
    ask(core, (*whole(first), 4), BASE_POLICY)
    assert core.stats().cached_tokens == 0


def test_the_room_of_running_sequences_is_never_taken(make_core):
    """There is room for 128 tokens in all."""
    core = make_core(max_sequences=2, max_model_len=64)
    said = [ask(core, (number,) * 30, BASE_POLICY, max_tokens=11) for number in range(4)]
    # 40 were copied while 40 ran, so that 48 were left for older ones.
    ask(core, (*whole(said[0]), 9), BASE_POLICY, keep=False)
    ask(core, (*whole(said[1]), 9), BASE_POLICY, keep=False)
    assert core.stats().cached_tokens == 0
    ask(core, (*whole(said[3]), 9), BASE_POLICY, keep=False)
    assert core.stats().cached_tokens == 40
    for number in (6, 7):
        core.submit((number,) * 60, SamplingParams(max_tokens=3, seed=0), BASE_POLICY)
    finish(core)
    ask(core, (*whole(said[2]), 9), BASE_POLICY, keep=False)
    assert core.stats().cached_tokens == 40


def test_memory_of_kept_rows_is_their_own_and_is_freed(make_core, monkeypatch):
    sizes = []
    real = KeptRows.put

    def put(kept, key, tokens, row):
        sizes.append(sum(held.untyped_storage().nbytes() for pair in row for held in pair))
        real(kept, key, tokens, row)

    monkeypatch.setattr(KeptRows, "put", put)
    core = make_core()
    ask(core, (1, 2, 3), BASE_POLICY)
    heads, size, layers = 2, 8, 2
    assert sizes == [7 * heads * size * layers * 2 * 4]


KEYS = [PolicyKey("a", "/a"), PolicyKey("b", "/b")]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_longest_kept_beginning_is_found_and_nothing_else(data):
    kept, held = KeptRows(), list[tuple[PolicyKey, tuple[int, ...]]]()
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
    for _ in range(data.draw(st.integers(1, 30))):
        key = data.draw(st.sampled_from(KEYS))
        text = data.draw(tokens)
        match data.draw(st.sampled_from(["put", "take", "shrink", "drop"])):
            case "put":
                kept.put(key, text, row=())
                held.append((key, text))
            case "take":
                begun = [t for k, t in held if k == key and len(t) < len(text)]
                fitting = [t for t in begun if text[: len(t)] == t]
                expected = max(fitting, key=len, default=())
                assert kept.take(key, text)[1] == len(expected)
                if expected:
                    held.remove((key, expected))
                    if (key, expected) in held:  # what is left of it was used last
                        held.append(held.pop(held.index((key, expected))))
            case "shrink":
                most = data.draw(st.integers(0, 20))
                kept.shrink(most)
                last = list(dict.fromkeys(reversed(held)))  # most recently kept first
                while sum(len(t) for _, t in last) > most:
                    gone = last.pop()
                    held = [each for each in held if each != gone]
            case "drop":
                kept.drop_unless(lambda resident: resident == KEYS[0])
                held = [each for each in held if each[0] == KEYS[0]]
        assert kept.tokens == sum(len(t) for _, t in set(held))


def test_lookup_takes_time_in_proportion_to_the_prompt():
    compared = 0

    class Counting(tuple[int, ...]):
        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return tuple.__eq__(self, other)

        __hash__ = tuple.__hash__

    kept = KeptRows()
    for number in range(1000):
        kept.put(KEYS[0], Counting((1, 2, number)), row=())
    assert kept.take(KEYS[0], (1, 2, 500, 7, 8))[1] == 3
    assert compared <= 1


# ---------------------------------------------------------------- shared beginnings


def test_rules_that_prompts_share_are_read_once_per_version(make_core, make_adapter):
    core, rng = make_core(), random.Random(0)
    rules = [words(rng, 30, 30), words(rng, 40, 40)]
    policy, model = make_adapter(1)
    read = [0]
    for version in (BASE_POLICY, policy):
        for _ in range(4):
            prompts = [rules[place % 2] + words(rng, 3, 9) for place in range(12)]
            said = ask_all(core, prompts, version)
            read.append(core.stats().read_tokens)
            for each in said if version is policy else ():
                assert list(each.logprobs) == pytest.approx(direct_logprobs(model, each), abs=1e-4)
    whole_batches = [after - before for before, after in pairwise(read)]
    assert min(whole_batches[0], whole_batches[4]) > 12 * 35  # learned from, and a new version
    # Of shorter prompts as many tokens are read as of the longest in their batch.
    assert max(*whole_batches[2:4], *whole_batches[5:]) <= 12 * 9


def test_shared_beginnings_change_no_token_and_need_room(make_core):
    rng = random.Random(1)
    rules = words(rng, 30, 30)
    batches = [[rules + words(rng, 1, 9) for _ in range(6)] for _ in range(3)]

    def tokens(**options):
        core = make_core(**options)
        said = [each.token_ids for batch in batches for each in ask_all(core, batch, BASE_POLICY)]
        return said, core.stats().cached_tokens

    shared, cached = tokens()
    assert cached >= 2 * 6 * (30 - 9)
    assert tokens(kept_tokens=0) == tokens(kept_tokens=29) == (shared, 0)


@settings(max_examples=30)
@given(st.data())
def test_a_beginning_is_found_where_a_prompt_has_it(data):
    shared = SharedBeginnings()
    stems = data.draw(
        st.lists(st.lists(st.integers(0, 2), min_size=10, max_size=40), min_size=1, max_size=12)
    )
    for stem in stems:
        tails = data.draw(st.lists(st.lists(st.integers(0, 2), max_size=8), min_size=2, max_size=6))
        prompts = [(*stem, *tail) for tail in tails]
        found = shared.learn(prompts)
        assert len(set(found.values()) - {()}) <= MOST_SHARED
        for prompt, beginning in found.items():
            assert not beginning or LEAST_SHARED <= len(beginning) < len(prompt)
            assert prompt[: len(beginning)] == beginning


# ---------------------------------------------------------------- logits


def test_what_was_read_and_drawn_before_needs_no_pass(make_core, make_adapter):
    core = make_core(logits_bytes=1 << 20)
    for policy, model in [make_adapter(1), make_adapter(2)]:
        first = ask(core, (1, 2, 3), policy, seed=5, keep=False)
        read = core.stats().read_tokens
        again = ask(core, (1, 2, 3), policy, seed=5, keep=False)
        assert core.stats().read_tokens == read
        assert (again.token_ids, again.logprobs) == (first.token_ids, first.logprobs)
        assert list(again.logprobs) == pytest.approx(direct_logprobs(model, again), abs=1e-4)
        # Another draw goes its own way from the first token on that differs.
        other = ask(core, (1, 2, 3), policy, seed=6, keep=False)
        assert other.token_ids != first.token_ids
        assert list(other.logprobs) == pytest.approx(direct_logprobs(model, other), abs=1e-4)
    assert core.stats().generated_tokens == 2 * sum(
        len(one.token_ids) for one in (first, again, other)
    )


@pytest.mark.parametrize("event", ["sleep", "version", "nothing"])
def test_kept_logits_go_with_their_version_and_in_sleep(make_core, make_adapter, event):
    core = make_core(max_loras=1, logits_bytes=1 << 20)
    (first, _), (second, _) = make_adapter(1), make_adapter(2)
    ask(core, (1, 2, 3), first, seed=5)
    if event == "version":
        ask(core, (1, 2, 3), second, seed=5)
    if event == "sleep":
        core.drain()
        core.sleep()
        core.wake()
    read = core.stats().read_tokens
    ask(core, (1, 2, 3), first, seed=5)
    assert (core.stats().read_tokens > read) == (event != "nothing")


def test_the_logits_used_last_stay_within_their_bytes():
    kept, step = KeptLogits(most_bytes=3 * 40), PolicyKey("step-1", "a")
    for token in range(3):
        kept.put(step, (token,), torch.full((4, 10), float(token))[token])
    assert kept.get(step, (0,)) is not None
    kept.put(step, (3,), torch.full((10,), 3.0))
    found = [kept.get(step, (token,)) for token in range(4)]
    assert found[1] is None
    assert [float(one[0]) for one in found if one is not None] == [0.0, 2.0, 3.0]
    assert all(one.untyped_storage().nbytes() == 40 for one in found if one is not None)
    kept.put(step, (4,), torch.zeros(31))  # more than all may have
    assert not kept.has(step, (4,))
