"""One update, seen from outside: gradients, masks, learning, resuming, failing."""

from __future__ import annotations

import dataclasses
import math
from itertools import product

import pytest
import torch
from tests.learner import parts
from torch.nn.utils.rnn import pad_sequence

from rlforge.errors import CheckpointError, RunError


def naive_loss(model, samples):
    """The loss of ``PolicyGradient`` from full logits of one left-to-right padded batch."""
    texts = [torch.tensor(s.prompt_token_ids + s.token_ids) for s in samples]
    ids = pad_sequence(texts, batch_first=True)
    attention = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    chosen = torch.zeros(ids.shape)
    for i, s in enumerate(samples):
        chosen[i, len(s.prompt_token_ids) : len(texts[i])] = 1.0
    logits = model(input_ids=ids, attention_mask=attention).logits
    table = torch.log_softmax(logits[:, :-1], -1)
    logprobs = table.gather(-1, ids[:, 1:, None]).squeeze(-1)
    weights = torch.tensor([s.reward for s in samples])[:, None] * chosen[:, 1:]
    return -(logprobs * weights).sum() / chosen.sum()


def distance(actual: dict, expected: dict) -> float:
    """Norm of the difference relative to the norm of ``expected``."""
    assert actual.keys() == expected.keys()
    off = sum(float(((actual[n] - expected[n]) ** 2).sum()) for n in expected)
    return math.sqrt(off / sum(float((g**2).sum()) for g in expected.values()))


def test_gradient_is_that_of_a_naive_padded_full_logits_loss():
    samples = parts.random_steps(13)
    learner, model = parts.adapted(mini_batch_size=4)
    loss = naive_loss(model, samples)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    expected = dict(zip(trained, torch.autograd.grad(loss, trained.values()), strict=True))
    gradients = parts.record_gradients(model)
    result = learner.update(parts.batch(samples))
    assert distance(gradients, expected) < 1e-5
    assert result.metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    norm = math.sqrt(sum(float((g**2).sum()) for g in expected.values()))
    assert result.metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("size", [1, 7])
def test_micro_batch_size_changes_neither_gradient_nor_metrics(size):
    (whole, metrics), (split, split_metrics) = (
        parts.first_update(
            parts.random_steps(13),
            parts.PolicyGradient(reference=True, values=True, entropy=True),
            mini_batch_size=mini_batch_size,
        )
        for mini_batch_size in (13, size)
    )
    assert distance(split, whole) < 1e-5
    assert parts.outcome(split_metrics) == pytest.approx(parts.outcome(metrics), rel=1e-4, abs=1e-6)


def test_the_loss_sees_answer_tokens_only_and_all_of_them():
    algorithm = parts.PolicyGradient()
    samples = [
        parts.sample(token_ids=(8, 9, 3), logprobs=(-0.1, -0.2, -0.3), reward=2.0),
        parts.sample(token_ids=(4,), logprobs=(-0.4,), reward=-1.0),
        parts.sample(token_ids=(), logprobs=(), reward=9.0),
    ]

    result = parts.learner(algorithm=algorithm).update(parts.batch(samples))

    (inputs,) = algorithm.seen
    assert inputs.mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert inputs.behaviour_logprobs.tolist() == [
        pytest.approx([-0.4, 0, 0]),
        pytest.approx([-0.1, -0.2, -0.3]),
    ]
    assert inputs.advantages.tolist() == [-1.0, 2.0]
    assert (inputs.total_tokens, inputs.total_sequences) == (4, 2)
    assert not inputs.logprobs[inputs.mask == 0].any()
    assert (result.samples, result.tokens) == (2, 4)
    assert result.metrics["samples_empty"] == 1.0


def test_gap_compares_engine_and_learner_on_steps_of_the_current_version():
    model = parts.model().eval()
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([[5, 6, 7, 8]])).logits[0] / 0.8, -1)
    engine = (float(table[2, 8]) + 0.25, float(table[3, 9]) - 0.5)
    current = parts.sample(logprobs=engine, policy_version=0)
    stale = parts.sample(logprobs=(-30.0, -30.0), policy_version=-2)
    metrics = parts.learner(model, temperature=0.8).update(parts.batch([current, stale])).metrics
    assert metrics["logprob_gap_mean"] == pytest.approx(0.375, abs=1e-5)
    assert metrics["logprob_gap_max"] == pytest.approx(0.5, abs=1e-5)
    entropy = -(float(table[2, 8]) + float(table[3, 9])) / 2
    assert metrics["entropy"] == pytest.approx(entropy, abs=1e-5)


def test_gap_is_measured_before_the_update_for_any_number_of_optimizer_steps():
    gaps = []
    for settings in ({}, {"optimizer_steps": 2, "epochs": 2}):
        learner = parts.learner(parts.model(), learning_rate=0.5, **settings)
        metrics = learner.update(parts.batch(parts.random_steps(8))).metrics
        gaps.append((metrics["logprob_gap_mean"], metrics["logprob_gap_max"]))
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-5)


def test_metrics_of_rewards_algorithm_and_progress():
    noted = {"curiosity": 0.5, "legal": True, "tag": "x"}, {"legal_actions": 3, "curiosity": None}
    samples = [
        parts.sample(reward=1.0, raw_reward=-1.0, info=noted[0]),
        parts.sample(reward=3.0, raw_reward=0.0, info=noted[1]),
    ]
    learner = parts.learner(parts.model(), learning_rate=0.25)

    result = learner.update(parts.batch(samples))

    metrics = result.metrics
    assert (metrics["reward_mean"], metrics["raw_reward_mean"]) == (2.0, -0.5)
    assert (metrics["info/curiosity"], metrics["info/legal_actions"]) == (0.5, 3.0)
    assert [name for name in metrics if name.startswith("info/")] == [
        *("info/curiosity", "info/legal_actions")
    ]
    assert metrics["advantage_mean"] == 2.0
    assert metrics["targets_seen"] == 2.0
    assert metrics["share"] == pytest.approx(1.0)
    assert metrics["lr"] == 0.25
    assert (metrics["tokens"], metrics["samples_seen"]) == (4.0, 2.0)
    assert metrics["tokens_per_s"] == pytest.approx(10 / metrics["seconds"])
    assert (result.version, learner.version, learner.samples_seen) == (1, 1, 2)


def test_padding_share_counts_computed_positions():
    samples = [
        parts.sample(prompt_token_ids=(1,), token_ids=(2,), logprobs=(-1.0,)),
        parts.sample(origin="h", prompt_token_ids=(1, 2, 3), token_ids=(2,), logprobs=(-1.0,)),
    ]
    together = parts.learner(mini_batch_size=2).update(parts.batch(samples)).metrics
    apart = parts.learner(mini_batch_size=1).update(parts.batch(samples)).metrics
    assert together["padding_share"] == pytest.approx(2 / 6)
    assert apart["padding_share"] == 0.0


def test_dropped_stale_share_is_relative_to_dropped_and_trained_steps():
    batch = dataclasses.replace(parts.batch(parts.random_steps(6)), dropped_stale=2)
    metrics = parts.learner().update(batch).metrics
    assert (metrics["dropped_stale"], metrics["dropped_stale_share"]) == (2.0, 0.25)


def test_a_batch_with_nothing_to_train_on_changes_nothing_but_the_version():
    model = parts.model()
    learner = parts.learner(model)
    before = parts.weights(model)
    result = learner.update(parts.batch([parts.sample(token_ids=(), logprobs=())]))
    assert (result.version, result.samples, result.tokens) == (1, 0, 0)
    assert math.isnan(result.metrics["loss"])
    assert all(torch.equal(before[n], p) for n, p in parts.weights(model).items())


def test_a_two_action_bandit_is_solved_in_a_few_updates():
    """Sampled on-policy: token 9 pays 1, token 8 pays -1."""
    model = parts.model()
    learner = parts.learner(model, mini_batch_size=64, learning_rate=2e-2, grad_clip=1.0)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.tensor([[5, 6, 7]])

    def log_policy():
        with torch.no_grad():
            logits = model(prompt).logits[0, -1]
        allowed = torch.full_like(logits, -1e9)
        allowed[[8, 9]] = 0.0
        return torch.log_softmax(logits + allowed, -1)

    assert log_policy()[9].exp() < 0.3
    for _ in range(10):
        table = log_policy()
        actions = torch.multinomial(table.exp(), 64, replacement=True, generator=generator)
        samples = [
            parts.sample(
                token_ids=(int(action),),
                logprobs=(float(table[action]),),
                reward=1.0 if action == 9 else -1.0,
                policy_version=learner.version,
            )
            for action in actions
        ]
        learner.update(parts.batch(samples))

    assert log_policy()[9].exp() > 0.95


def test_a_directory_without_state_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=rf"{tmp_path} holds no learner\.pt to resume from"):
        parts.learner().load_state(tmp_path)


def test_state_of_another_model_is_refused_by_name():
    state = parts.learner().state_dict()
    with pytest.raises(CheckpointError, match=r"learner state does not fit: .* is \(32, 4\), and"):
        parts.learner(parts.model(hidden_size=16)).load_state_dict(state)


def test_an_update_leaves_the_global_random_state_alone():
    learner = parts.learner(optimizer_steps=2)
    before = torch.get_rng_state()
    learner.update(parts.batch(parts.random_steps(6)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_step_that_is_not_finite_is_skipped_and_counted():
    model = parts.model()
    learner = parts.learner(model)
    before = parts.weights(model)
    bad = learner.update(parts.batch([parts.sample(reward=math.inf)])).metrics
    assert bad["nonfinite_steps"] == 1.0
    assert math.isnan(bad["loss"])
    assert all(torch.equal(before[n], p) for n, p in parts.weights(model).items())
    good = learner.update(parts.batch([parts.sample()])).metrics
    assert good["nonfinite_steps"] == 0.0
    assert math.isfinite(good["loss"])
    assert not all(torch.equal(before[n], p) for n, p in parts.weights(model).items())


def test_steps_that_are_not_finite_too_often_in_a_row_end_the_run():
    learner = parts.learner(max_nonfinite=2)
    bad, good = parts.batch([parts.sample(reward=math.nan)]), parts.batch([parts.sample()])
    learner.update(bad)
    learner.update(good)
    learner.update(bad)
    with pytest.raises(RunError, match=r"update 4: loss nan .*2 times in a row.*learning_rate"):
        learner.update(bad)


# ---------------------------------------------------------------- conversations


def conversations(games=3):
    """Samples of both seats of several games, each seat's turns one growing conversation."""
    samples = []
    for seed, (game, player) in enumerate(product(range(games), range(2))):
        samples += parts.conversation(1 + seed % 4, f"game-{game}", player, seed)
    return samples


@pytest.mark.parametrize("packing", ["off", "on"])
@pytest.mark.parametrize("optimizer_steps", [1, 2])
def test_a_conversation_learns_what_its_turns_would_learn_apart(packing, optimizer_steps):
    """The reference has every turn in a game of its own, so that no row holds two."""
    together = conversations()
    apart = [dataclasses.replace(one, origin=f"{n}") for n, one in enumerate(together)]
    critic = {"weight": torch.linspace(-1, 1, 32)[None], "bias": torch.zeros(1)}
    ours, plain = (
        parts.PolicyGradient(reference=True, values=True, entropy=True) for _ in range(2)
    )
    (learned, found), (expected, wanted) = (
        parts.first_update(
            samples,
            algorithm,
            parts.model(max_position_embeddings=128),
            packing=packing,
            share_prefixes=False,
            mini_batch_size=None,
            optimizer_steps=optimizer_steps,
            learning_rate=1e-9,
            initial_value_head=critic,
        )
        for samples, algorithm in ((together, ours), (apart, plain))
    )
    for name in ("tokens", "samples_seen", "entropy"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-5)
    assert ours.critic[0] == pytest.approx(plain.critic[0], rel=1e-4, abs=1e-5)
    assert found["reused_share"] > 0.3
    assert wanted["reused_share"] == 0.0
    if optimizer_steps == 1:
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
        parts.same_gradients(learned, expected)


# ---------------------------------------------------------------- the sentinel's actions


def test_smaller_steps_multiply_the_learning_rate_beside_its_schedule():
    learner = parts.learner(schedule="linear", final_lr_ratio=0.0, total_updates=10)
    batch = parts.batch(parts.random_steps(4))

    def rate():
        return learner.update(batch).metrics["lr"]

    assert rate() == 1e-2
    learner.take_smaller_steps(0.5)
    assert rate() == pytest.approx(1e-2 * 0.9 / 2)
    learner.take_smaller_steps(0.5)
    resumed = parts.learner(schedule="linear", final_lr_ratio=0.0, total_updates=10)
    resumed.load_state_dict(learner.state_dict())
    assert resumed.update(batch).metrics["lr"] == pytest.approx(1e-2 * 0.8 / 4)


def test_going_back_trains_an_earlier_version_as_if_it_were_the_start(tmp_path):
    learner = parts.learner(betas=[0.9, 0.9])
    batch = parts.batch(parts.random_steps(4))
    learner.update(batch)
    saved = tmp_path / "step-1"
    saved.mkdir()
    learner.save(saved)
    for seed in range(3):
        learner.update(parts.batch(parts.random_steps(4, seed=seed)))
    learner.go_back(saved, 1)
    assert learner.version == 4, "updates are counted on"
    fresh = parts.learner(betas=[0.9, 0.9], initial_adapter=str(saved))
    fresh.version = 4  # shuffling follows from it
    updated = [one.update(batch) for one in (learner, fresh)]
    assert [result.version for result in updated] == [5, 5]
    for name, tensor in fresh.state_dict()["policy"].items():
        assert torch.equal(learner.state_dict()["policy"][name], tensor), name


def test_going_back_to_the_start_without_an_adapter_answers_as_the_model_does():
    learner = parts.learner()
    answers = [((5, 6, 7), (8, 9)), ((1, 2), (3,))]
    before = learner.answer_logprobs(answers)
    learner.update(parts.batch(parts.random_steps(4)))
    assert learner.answer_logprobs(answers) != before
    learner.go_back(None, 0)
    assert learner.answer_logprobs(answers) == before


def test_the_gap_of_the_version_that_was_left_is_measured_with_its_own_weights(tmp_path):
    learner = parts.learner(kept_versions=2, learning_rate=0.1)
    learner.save(tmp_path)
    learner.update(parts.batch(parts.random_steps(4)))
    asked = [((5, 6, 7), (8,)), ((1, 2), (3,))]
    drawn = learner.answer_logprobs(asked)  # as the engine draws by version 1
    learner.go_back(tmp_path, 0)
    samples = [
        parts.sample(
            prompt_token_ids=prompt, token_ids=answer, logprobs=(logprob,), policy_version=1
        )
        for (prompt, answer), logprob in zip(asked, drawn, strict=True)
    ]
    assert learner.answer_logprobs(asked) != pytest.approx(drawn, abs=1e-2)
    assert learner.update(parts.batch(samples)).metrics["logprob_gap_max"] < 1e-5


def test_turns_without_an_advantage_and_the_gap_between_seats_are_measured():
    learner = parts.learner()
    samples = [
        parts.sample(player_id=seat, reward=reward, raw_reward=raw)
        for seat, reward, raw in [(0, 0.0, 1.0), (0, 1e-9, 0.5), (1, -0.5, -1.0), (2, 0.0, 0.0)]
    ]
    metrics = learner.update(parts.batch(samples)).metrics
    assert metrics["no_advantage_share"] == 0.75
    assert metrics["seat_gap"] == 0.75 - -0.5
    assert metrics["reward_spread"] == pytest.approx(0.5)
    assert metrics["raw_reward_spread"] == 2.0
    assert (metrics["seat_share_min"], metrics["seat_share_max"]) == (0.25, 0.5)
    alone = learner.update(parts.batch(samples[:2])).metrics
    assert "seat_gap" not in alone
    assert alone["seat_share_min"] == alone["seat_share_max"] == 1.0


@pytest.mark.parametrize(("temperature", "low", "high"), [(1e4, 0.999, 1.001), (1e-4, 0.0, 0.01)])
def test_the_entropy_share_tells_answers_at_random_from_certain_ones(temperature, low, high):
    """Drawn as an engine does; an update on them afterwards leaves the share of others alone."""
    model, samples = parts.model().eval(), []
    torch.manual_seed(0)
    for _ in range(50):
        with torch.no_grad():
            table = torch.log_softmax(
                model(torch.tensor([[5, 6, 7]])).logits[0, -1] / temperature, -1
            )
        token = int(torch.multinomial(table.exp(), 1))
        drawn = {"token_ids": (token,), "logprobs": (float(table[token]),)}
        samples.append(parts.sample(prompt_token_ids=(5, 6, 7), reward=1.0, **drawn))
    learner = parts.learner(model, temperature=temperature, learning_rate=1.0)
    for _ in range(2):
        share = learner.update(parts.batch(samples)).metrics["entropy_share"]
        assert low <= share <= high


STEPS = {"epochs": 2, "optimizer_steps": 2}


@pytest.mark.parametrize("settings", [{}, STEPS])
def test_a_batch_without_signal_changes_nothing_but_the_count_of_updates(settings):
    """Neither by momentum and weight decay, nor by a penalty and a bonus."""
    algorithm = parts.PolicyGradient(reference=True, entropy=True)
    learner = parts.learner(algorithm=algorithm, weight_decay=0.1, **settings)
    learner.update(parts.batch(parts.random_steps(8)))
    before, seen = learner.digests(), len(algorithm.seen)
    nothing = [
        dataclasses.replace(one, reward=0.0, policy_version=1) for one in parts.random_steps(8)
    ]
    result = learner.update_with_digests(parts.batch(nothing))
    assert {**before, "policy_before": before["policy"]} == result.digests
    assert (result.version, result.new_policy, learner.version, learner.updates) == (2, False, 2, 2)
    metrics = result.metrics
    assert (metrics["skipped_no_signal"], metrics["nonfinite_steps"]) == (1.0, 0.0)
    assert metrics["grad_norm"] == 0.0
    assert math.isfinite(metrics["loss"])
    # One pass measures; the tokens are still of the newest version.
    measured = sum(int(inputs.mask.sum()) for inputs in algorithm.seen[seen:])
    assert measured == result.tokens
    assert {"logprob_gap_mean", "entropy"} <= metrics.keys()
    again = learner.update(parts.batch(nothing)).metrics
    assert again["logprob_gap_mean"] == pytest.approx(metrics["logprob_gap_mean"])
    # Of the three updates one made a version.
    assert again["lag_max"] == 0.0
    after = learner.update(parts.batch(parts.random_steps(8)))
    assert (after.version, after.new_policy, after.metrics["skipped_no_signal"]) == (4, True, 0.0)
    assert (after.metrics["lag_mean"], after.metrics["lag_max"]) == (1.0, 1.0)
    assert learner.digests()["policy"] != before["policy"]


def test_advantages_of_samples_that_are_not_trained_on_are_no_signal():
    samples = [parts.sample(reward=0.0), parts.sample(reward=1.0, prompt_token_ids=(5,) * 9)]
    learner = parts.learner(max_train_len=8)
    assert not learner.update(parts.batch(samples)).new_policy


@pytest.mark.parametrize("settings", [{}, STEPS])
def test_a_critic_learns_from_a_batch_without_signal_and_the_policy_does_not(settings):
    algorithm = parts.PolicyGradient(values=True)
    learner = parts.learner(algorithm=algorithm, weight_decay=0.1, **settings)
    learner.update(parts.batch(parts.random_steps(8)))
    before = learner.state_dict()["policy"]
    equal = [
        dataclasses.replace(one, reward=1.0, outcome_reward=1.0, raw_reward=1.0)
        for one in parts.random_steps(8)
    ]
    result = learner.update(parts.batch(equal))
    assert (result.new_policy, result.metrics["skipped_no_signal"]) == (False, 1.0)
    assert result.metrics["grad_norm"] > 0
    after = learner.state_dict()["policy"]
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("value_head")} != set()


def test_a_resumed_learner_knows_which_version_its_weights_are_of(tmp_path):
    learner = parts.learner()
    learner.update(parts.batch(parts.random_steps(8)))
    nothing = parts.batch([parts.sample(reward=0.0, policy_version=1)])
    learner.update(nothing)
    learner.save_state(tmp_path)
    resumed = parts.learner()
    resumed.load_state(tmp_path)
    assert resumed.version == 2
    assert "logprob_gap_mean" in resumed.update(nothing).metrics
