"""Each option of ``LearnerConfig`` that the learner reads has its effect, and no other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.learner import parts

from rlforge.algorithms import make_algorithm
from rlforge.config.training import ReinforceConfig
from rlforge.errors import CheckpointError


def change(before, after) -> dict[str, float]:
    """Largest change of each parameter that changed."""
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    return {name: size for name, size in moved.items() if size > 0}


def update_once(model=None, algorithm=None, samples=None, **settings):
    """Model, weights before and after, and metrics of one update."""
    model = parts.model() if model is None else model
    learner = parts.learner(model, algorithm, **settings)
    before = parts.weights(model)
    metrics = learner.update(parts.batch(samples or parts.random_steps(8))).metrics
    return model, before, parts.weights(model), metrics


@pytest.fixture(scope="module")
def plain_update():
    return update_once()[2]


def test_learning_rate_scales_the_step():
    """Adam's first step is the learning rate times the sign of the gradient."""
    sizes = []
    for rate in (1e-3, 2e-3):
        _, before, after, _ = update_once(learning_rate=rate)
        sizes.append(max(change(before, after).values()))
    assert sizes == pytest.approx([1e-3, 2e-3], rel=1e-2)


def test_grad_clip_bounds_the_gradient_but_not_the_reported_norm():
    norms = []
    for clip in (1e9, 1e-3):
        model = parts.model()
        learner = parts.learner(model, grad_clip=clip)
        metrics = learner.update(parts.batch(parts.random_steps(8))).metrics
        state = learner.state_dict()["optimizer"]["state"].values()
        # Adam's first moment after one step is 0.1 of the gradient it was given.
        given = math.sqrt(sum(float((entry["exp_avg"] ** 2).sum()) for entry in state)) / 0.1
        norms.append((metrics["grad_norm"], given))
    (norm, unclipped), (reported, clipped) = norms
    assert reported == pytest.approx(norm)
    assert unclipped == pytest.approx(norm, rel=1e-4)
    assert clipped == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("count", "sizes"), [(10, [4, 3, 3]), (4, [4]), (5, [3, 2]), (1, [1])])
def test_accumulated_passes_make_as_many_optimizer_steps_as_a_batch_takes(count, sizes):
    algorithm = parts.PolicyGradient()
    learner = parts.learner(
        algorithm=algorithm, mini_batch_size=2, gradient_accumulation_steps=2, epochs=2
    )
    learner.update(parts.batch(parts.random_steps(count)))
    passes = [-(-size // 2) for size in sizes]
    expected = [size for size, often in zip(sizes, passes, strict=True) for _ in range(often)]
    assert [inputs.total_sequences for inputs in algorithm.seen] == expected * 2
    assert all(len(inputs.mask) <= 2 for inputs in algorithm.seen)


@pytest.mark.parametrize(("settings", "steps"), [({}, 1), ({"optimizer_steps": 3, "epochs": 2}, 6)])
def test_optimizer_steps_and_epochs_multiply(settings, steps):
    learner = parts.learner(**settings)
    learner.update(parts.batch(parts.random_steps(9)))
    entries = learner.state_dict()["optimizer"]["state"].values()
    assert {int(entry["step"]) for entry in entries} == {steps}


def test_totals_are_those_of_one_optimizer_step():
    algorithm = parts.PolicyGradient()
    samples = parts.random_steps(9)
    parts.learner(algorithm=algorithm, optimizer_steps=3, mini_batch_size=2).update(
        parts.batch(samples)
    )
    assert {inputs.total_sequences for inputs in algorithm.seen} == {3}
    # Each optimizer step needs two micro-batches of at most two rows.
    totals = [inputs.total_tokens for inputs in algorithm.seen[::2]]
    assert sum(totals) == sum(len(sample.token_ids) for sample in samples)


def test_proximal_logprobs_are_fixed_at_the_start_of_an_update_of_several_steps():
    algorithm = parts.PolicyGradient()
    learner = parts.learner(algorithm=algorithm, epochs=2, mini_batch_size=8, learning_rate=0.1)
    learner.update(parts.batch(parts.random_steps(8)))
    first, second = algorithm.seen
    torch.testing.assert_close(first.proximal_logprobs, first.logprobs.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(second.proximal_logprobs, first.proximal_logprobs)
    assert (second.logprobs - second.proximal_logprobs).abs().max() > 1e-2


def test_seed_decides_the_shuffling_into_optimizer_steps():
    def advantages(seed):
        """Of two updates with the same batch."""
        algorithm = parts.PolicyGradient()
        learner = parts.learner(algorithm=algorithm, optimizer_steps=4, seed=seed)
        for _ in range(2):
            learner.update(parts.batch(parts.random_steps(12)))
        return [inputs.advantages.tolist() for inputs in algorithm.seen]

    first = advantages(1)
    assert first == advantages(1)
    assert first != advantages(2)
    assert first[:4] != first[4:]


@pytest.mark.parametrize("how", ["constant", "sequence_mean"])
def test_a_prompt_beyond_max_train_len_counts_in_the_mean_with_a_loss_of_zero(how):
    limit, answer, rewards = 10, 4, (1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 1.5, -0.5)
    samples = [
        parts.sample(
            prompt_token_ids=tuple(range(1, length + 1)),
            token_ids=(5, 6, 7, 8),
            logprobs=(-1.0,) * answer,
            reward=reward,
        )
        for length, reward in zip((3, 12, 4, 9, 10, 5, 11, 8), rewards, strict=True)
    ]
    model = parts.model()
    losses = []
    for sample in samples:
        seen = parts.plain_logprobs(model, sample).gather(
            1, torch.tensor(sample.token_ids)[:, None]
        )
        seen = seen[: max(0, limit - len(sample.prompt_token_ids))]
        divisor = answer if how == "constant" else max(1, len(seen))
        losses.append(-sample.reward * float(seen.sum()) / divisor)
    algorithm = make_algorithm(ReinforceConfig(loss_aggregation=how, importance_cap=None), answer)

    learner = parts.learner(model, algorithm, max_train_len=limit)
    metrics = learner.update(parts.batch(samples)).metrics

    assert (metrics["samples_too_long"], metrics["samples_truncated"]) == (3.0, 2.0)
    assert metrics["loss"] == pytest.approx(sum(losses) / len(samples), abs=1e-6)


@pytest.mark.parametrize(
    "option", ["gradient_checkpointing", "activation_checkpointing", "use_trainer_cache"]
)
def test_memory_options_leave_the_update_as_it_is(option, plain_update):
    other = update_once(**{option: True})[2]
    assert max(change(plain_update, other).values(), default=0.0) < 1e-5


@pytest.mark.parametrize("option", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_keeps_fewer_activations(option):
    def kept_bytes(**settings):
        """Bytes saved for the backward pass by the scoring of one batch."""
        learner = parts.learner(parts.model(), mini_batch_size=8, **settings)
        sizes = {}

        def pack(tensor):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            learner.update(parts.batch(parts.random_steps(8)))
        return sum(sizes.values())

    assert kept_bytes(**{option: True}) < kept_bytes()


def test_fp32_head_computes_exact_logits_of_what_a_bfloat16_model_gives_the_head():
    errors = []
    for fp32_head in (True, False):
        model = parts.model().to(torch.bfloat16)
        algorithm = parts.PolicyGradient()
        learner = parts.learner(model, algorithm, mini_batch_size=1, fp32_head=fp32_head)
        read = []
        model.model.register_forward_hook(
            lambda _m, _i, output, read=read: read.append(output.last_hidden_state[0, -1])
        )
        learner.update(parts.batch([parts.sample(token_ids=(8,), logprobs=(-1.0,))]))
        logits = read[0].detach().double() @ model.lm_head.weight.double().T
        exact = torch.log_softmax(logits, -1)[8].item()
        errors.append(abs(algorithm.seen[0].logprobs.item() - exact))
    assert errors[0] < 1e-6
    assert errors[1] > 1e-4


def test_use_trainer_cache_keeps_the_kv_cache():
    for use_cache in (False, True):
        model = parts.model()
        learner = parts.learner(model, use_trainer_cache=use_cache)
        caches = []
        model.model.register_forward_hook(
            lambda _m, _i, output, caches=caches: caches.append(output.past_key_values)
        )
        learner.update(parts.batch([parts.sample()]))
        # The pass of the update; what scores answers again keeps no cache.
        assert [cache is not None for cache in caches[:1]] == [use_cache]


def test_optional_inputs_are_given_only_when_asked_for():
    bare = parts.PolicyGradient()
    parts.learner(algorithm=bare).update(parts.batch([parts.sample()]))
    (inputs,) = bare.seen
    assert inputs.reference_logprobs is None
    assert inputs.entropy is None
    assert inputs.values is inputs.old_values is inputs.returns is None
    assert bare.critic == [None]
    full = parts.PolicyGradient(reference=True, values=True, entropy=True)
    parts.learner(algorithm=full).update(parts.batch([parts.sample()]))
    (inputs,) = full.seen
    assert inputs.entropy.requires_grad
    assert inputs.values.requires_grad
    assert inputs.old_values.tolist() == [0.0]
    assert inputs.returns.tolist() == [1.0]


def test_the_critic_starts_at_zero_and_learns_returns():
    algorithm = parts.PolicyGradient(values=True)
    learner = parts.learner(algorithm=algorithm, value_learning_rate=0.05)
    samples = [
        parts.sample(prompt_token_ids=(1, 2), reward=0.5),
        parts.sample(prompt_token_ids=(3, 4, 5), reward=-0.5),
        parts.sample(prompt_token_ids=(), token_ids=(), logprobs=(), reward=3.0),
    ]
    for _ in range(30):
        learner.update(parts.batch(samples))
    assert algorithm.critic[0] == [0.0, 0.0, 0.0]
    assert algorithm.critic[-1] == pytest.approx([0.5, -0.5, 0.0], abs=0.1)


def test_before_several_steps_critic_and_logprobs_come_from_one_pass():
    head = {"weight": torch.linspace(-1, 1, 32)[None], "bias": torch.tensor([0.5])}
    samples = [
        *parts.random_steps(6),
        parts.sample(prompt_token_ids=(1, 2), token_ids=(), logprobs=()),  # estimated all the same
        parts.sample(prompt_token_ids=(), token_ids=(), logprobs=()),
        parts.sample(prompt_token_ids=tuple(range(1, 20))),  # too long to train on
    ]
    estimates, passes = [], []
    for several, batch in itertools.product(({}, {"optimizer_steps": 2}), (samples, samples[:6])):
        algorithm, model, scoring = parts.PolicyGradient(values=True), parts.model(), []
        learner = parts.learner(
            model, algorithm, initial_value_head=head, max_train_len=14, **several
        )
        model.get_decoder().register_forward_pre_hook(
            lambda *_, scoring=scoring: scoring.append(not torch.is_grad_enabled())
        )
        learner.update(parts.batch(batch))
        estimates += algorithm.critic
        passes.append(sum(scoring))
    assert estimates[2] == pytest.approx(estimates[0], abs=1e-5)
    assert len({round(estimate, 4) for estimate in estimates[0]}) > 6
    assert passes[1] == passes[3]


def test_the_critic_may_start_from_given_weights():
    algorithm = parts.PolicyGradient(values=True)
    given = {"weight": torch.zeros(1, 32), "bias": torch.tensor([0.75])}
    learner = parts.learner(algorithm=algorithm, initial_value_head=given)
    learner.update(parts.batch([parts.sample()]))
    assert algorithm.critic == [[0.75]]
    with pytest.raises(CheckpointError, match=r"initial value head does not fit: it lacks bias"):
        parts.learner(algorithm=algorithm, initial_value_head={"weight": torch.zeros(1, 32)})


def test_the_critic_reads_the_end_of_a_prompt_that_is_too_long():
    algorithm = parts.PolicyGradient(values=True)
    learner = parts.learner(algorithm=algorithm, max_train_len=4, value_learning_rate=0.1)
    samples = [
        parts.sample(prompt_token_ids=(9, 9, 1, 2, 3, 4)),
        parts.sample(prompt_token_ids=(1, 2, 3, 4)),
        parts.sample(prompt_token_ids=(5, 6), token_ids=(8,), logprobs=(-1.0,)),
    ]
    for _ in range(2):
        learner.update(parts.batch(samples))
    long, cut, other = algorithm.critic[-1]
    assert long == pytest.approx(cut, abs=1e-6)
    assert long != 0.0
    assert other != pytest.approx(long, abs=1e-6)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_bfloat16_computes_under_autocast_and_trains_float32_weights(train):
    model = parts.model().to(torch.bfloat16)
    samples = parts.random_steps(6)
    exact = parts.PolicyGradient()
    parts.learner(parts.model(), exact, train=train).update(parts.batch(samples))
    algorithm = parts.PolicyGradient(reference=True)

    _, before, after, metrics = update_once(model, algorithm, samples=samples, train=train)

    assert all(after[name].dtype == torch.float32 for name in change(before, after))
    assert model.model.layers[0].self_attn.q_proj.weight.dtype == (
        torch.bfloat16 if train == "lora" else torch.float32
    )
    assert math.isfinite(metrics["loss"])
    for rough, fine in zip(algorithm.seen, exact.seen, strict=True):
        assert rough.logprobs.dtype == torch.float32
        torch.testing.assert_close(rough.logprobs, fine.logprobs, atol=0.2, rtol=0)
        assert not torch.equal(rough.logprobs, fine.logprobs)
        current = rough.logprobs.detach()
        torch.testing.assert_close(rough.reference_logprobs, current, atol=1e-6, rtol=0)
