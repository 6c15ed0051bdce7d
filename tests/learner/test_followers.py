"""Averages, snapshots and references of trained weights, over updates of a real small learner."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.learner import parts
from transformers import AutoModelForCausalLM

from rlforge.algorithms.base import Reference
from rlforge.config.model import LoraConfig
from rlforge.config.training import LearnerConfig
from rlforge.errors import CheckpointError
from rlforge.learner.batching import collate, select_rows
from rlforge.learner.followers import Followers
from rlforge.learner.scorer import Scorer, ScorerOptions

TRAININGS = pytest.mark.parametrize("train", ["lora", "full"])


def held_to(to: str, every: int = 1):
    """An algorithm with a penalty on the distance from such a reference."""
    algorithm = parts.PolicyGradient()
    algorithm.reference = Reference(to=to, every=every)
    return algorithm


def batches(count: int):
    return [parts.batch(parts.random_steps(5, seed=seed)) for seed in range(count)]


def history(learner, updates: int, kind: str):
    """The trained weights at versions 0 to ``updates``, and those of ``kind`` that followed."""

    def now():
        state = learner.state_dict()
        return state["policy"], state["followers"].get(kind)

    states = [now()]
    for batch in batches(updates):
        learner.update(batch)
        states.append(now())
    weights, followed = zip(*states, strict=True)
    assert not equal(weights[0], weights[-1])
    return weights, followed


def equal(one, other) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


def references(algorithm, samples) -> torch.Tensor:
    """The reference log-probs of the last update, a single pass, in the order of ``samples``."""
    inputs = algorithm.seen[-1]
    assert not inputs.reference_logprobs.requires_grad
    # Rows are shuffled; advantages tell them apart.
    order = [inputs.advantages.tolist().index(pytest.approx(sample.reward)) for sample in samples]
    return torch.cat([inputs.reference_logprobs[n][inputs.mask[n] > 0] for n in order])


def followers_of(model):
    return Followers(
        lambda: dict(model.named_parameters()), LearnerConfig(), None, fresh_adapter=True
    )


# ---------------------------------------------------------------- other weights in the model


def test_other_weights_score_within_and_all_is_as_before_afterwards_and_after_an_error():
    model, other = parts.model(seed=0), parts.model(seed=1)
    followers = followers_of(model)
    samples = parts.random_steps(4)
    micro = collate(select_rows(samples, None).rows, 0, torch.device("cpu"))
    scorer = Scorer(model, ScorerOptions(temperature=1.0))
    before, weights = parts.weights(model), parts.weights(other)
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}

    with torch.no_grad(), followers.worn(weights):
        within = scorer.score(micro).logprobs
        assert equal(parts.weights(model), parts.weights(other))
        assert equal(weights, before)
    torch.testing.assert_close(within, parts.answer_logprobs(other, samples))
    assert equal(parts.weights(model), before)
    assert equal(weights, parts.weights(other))
    assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == places

    with pytest.raises(RuntimeError, match="out of memory"), followers.worn(weights):
        raise RuntimeError("out of memory")
    assert equal(parts.weights(model), before)


# ---------------------------------------------------------------- averages


@pytest.mark.parametrize(("train", "decay"), [("lora", 0.7), ("full", 0.7), ("lora", 0.0)])
def test_a_moving_average_decays(train, decay):
    learner = parts.learner(average="moving", average_decay=decay, train=train)
    weights, averages = history(learner, 4, "average")
    expected = weights[0]
    assert equal(averages[0], expected)
    for now, average in zip(weights[1:], averages[1:], strict=True):
        expected = {n: decay * expected[n] + (1 - decay) * now[n] for n in now}
        torch.testing.assert_close(average, expected)


def test_a_uniform_average_is_the_mean_of_all_versions():
    weights, averages = history(parts.learner(average="uniform"), 5, "average")
    for version, average in enumerate(averages):
        expected = {n: torch.stack([w[n] for w in weights[: version + 1]]).mean(0) for n in average}
        torch.testing.assert_close(average, expected)


def test_an_average_changes_no_update():
    plain, averaged = parts.learner(), parts.learner(average="uniform")
    for batch in batches(3):
        assert plain.update(batch).metrics["loss"] == averaged.update(batch).metrics["loss"]
    assert equal(plain.state_dict()["policy"], averaged.state_dict()["policy"])


def test_the_critic_is_not_averaged():
    learner = parts.learner(algorithm=parts.PolicyGradient(values=True), average="uniform")
    state = learner.state_dict()
    rest = state["policy"].keys() - state["followers"]["average"].keys()
    assert rest == {"value_head.weight", "value_head.bias"}


# ---------------------------------------------------------------- references


@TRAININGS
def test_a_snapshot_is_taken_after_every_so_many_updates(train):
    """Before the first one the reference is the model at the start, of a fresh adapter no copy."""
    learner = parts.learner(algorithm=held_to("snapshot", every=2), train=train)
    weights, snapshots = history(learner, 5, "snapshot")
    for version, snapshot in enumerate(snapshots):
        if train == "lora" and version < 2:
            assert snapshot is None
        else:
            assert equal(snapshot, weights[version - version % 2])


def test_reference_logprobs_are_those_of_the_last_snapshot():
    algorithm, model = held_to("snapshot", every=2), parts.model()
    learner = parts.learner(model, algorithm, mini_batch_size=16)
    samples = parts.random_steps(5)
    expected = []
    for version in range(5):
        if version % 2 == 0:
            expected.append(parts.answer_logprobs(model, samples))
        learner.update(parts.batch(samples))
        torch.testing.assert_close(references(algorithm, samples), expected[-1])
    assert (expected[0] - expected[-1]).abs().max() > 1e-2


@TRAININGS
def test_the_average_is_saved_and_gives_reference_logprobs(tmp_path, train):
    algorithm, model = held_to("average"), parts.model()
    learner = parts.learner(
        model, algorithm, mini_batch_size=16, average="moving", average_decay=0.5, train=train
    )
    samples = parts.random_steps(5)
    for _ in range(3):
        learner.update(parts.batch(samples))
    before = parts.weights(model)
    learner.save(tmp_path)
    assert equal(parts.weights(model), before)
    average = learner.state_dict()["followers"]["average"]
    averaged = parts.model()
    if train == "lora":
        files = {path.name for path in (tmp_path / "average").iterdir()}
        assert files == {"adapter_config.json", "adapter_model.safetensors"}
        parts.learner(averaged, initial_adapter=str(tmp_path / "average"))
    else:
        averaged = AutoModelForCausalLM.from_pretrained(tmp_path / "average")
    read = {name: p for name, p in parts.weights(averaged).items() if name in average}
    assert equal(read, average)
    assert not equal({name: before[name] for name in average}, average)

    learner.update(parts.batch(samples))

    expected = parts.answer_logprobs(averaged, samples)
    torch.testing.assert_close(references(algorithm, samples), expected, atol=1e-5, rtol=1e-5)
    assert "snapshot" not in learner.state_dict()["followers"]


@pytest.mark.parametrize("start", ["fresh adapter", "initial_adapter", "full"])
def test_the_base_reference_stays_the_model_at_the_start_of_training(tmp_path, start):
    options = {"train": "full"} if start == "full" else {}
    if start == "initial_adapter":
        earlier = parts.learner()
        earlier.update(batches(1)[0])
        earlier.save(tmp_path)
        options = {"initial_adapter": str(tmp_path)}
    algorithm, model = held_to("base"), parts.model()
    learner = parts.learner(model, algorithm, mini_batch_size=16, average="moving", **options)
    samples = parts.random_steps(5)
    expected = parts.answer_logprobs(model, samples)
    for _ in range(3):
        learner.update(parts.batch(samples))
    torch.testing.assert_close(references(algorithm, samples), expected, atol=1e-5, rtol=1e-5)
    assert (parts.answer_logprobs(model, samples) - expected).abs().max() > 1e-2
    assert list(learner.state_dict()["followers"]) == ["average"]


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize(
    ("to", "average", "train"),
    [("snapshot", "uniform", "lora"), ("average", "moving", "lora"), ("base", "moving", "full")],
)
def test_a_resumed_learner_goes_on_as_one_without_a_stop(tmp_path, to, average, train):
    """Exact, with shuffling, a critic, a schedule and dropout in play."""

    def fresh():
        algorithm = held_to(to, every=2)
        algorithm.needs_values = True
        return parts.learner(
            algorithm=algorithm,
            average=average,
            train=train,
            lora=LoraConfig(rank=4, alpha=8, dropout=0.2),
            seed=5,
            optimizer_steps=2,
            schedule="cosine",
            warmup_updates=2,
            total_updates=6,
            grad_clip=0.5,
        )

    whole, first = fresh(), fresh()
    updates = batches(5)
    losses = [whole.update(batch).metrics["loss"] for batch in updates]
    stopped = [first.update(batch).metrics["loss"] for batch in updates[:3]]
    first.save_state(tmp_path)
    torch.manual_seed(99)  # the process's random state must not matter
    second = fresh()
    second.load_state(tmp_path)
    kept = first.state_dict()["followers"]
    assert all(equal(second.state_dict()["followers"][kind], kept[kind]) for kind in kept)
    stopped += [second.update(batch).metrics["loss"] for batch in updates[3:]]

    assert stopped == losses
    assert (second.version, second.samples_seen) == (5, 25)
    assert equal(second.state_dict()["policy"], whole.state_dict()["policy"])
    for kind, weights in whole.state_dict()["followers"].items():
        assert equal(second.state_dict()["followers"][kind], weights)


def test_a_state_is_a_copy_that_later_updates_do_not_touch():
    learner, other = (
        parts.learner(algorithm=held_to("snapshot"), average="moving") for _ in range(2)
    )
    learner.update(batches(1)[0])
    state = learner.state_dict()
    before = copy.deepcopy(state)
    other.load_state_dict(learner.state_dict() | {"followers": state["followers"]})
    for one in (learner, other):
        one.update(batches(1)[0])
    assert state["followers"].keys() == {"average", "snapshot"}
    assert str(state) == str(before)


def test_a_state_without_an_average_is_refused_where_one_is_kept(tmp_path):
    parts.learner().save_state(tmp_path)
    with pytest.raises(CheckpointError, match=r"no average .* saved with learner\.average=off"):
        parts.learner(average="moving").load_state(tmp_path)


def test_an_average_of_another_shape_is_refused_by_name():
    learner = parts.learner(average="moving")
    state = learner.state_dict()
    name = next(iter(state["followers"]["average"]))
    state["followers"]["average"][name] = torch.zeros(2, 3)
    with pytest.raises(CheckpointError, match="average in the learner state"):
        learner.load_state_dict(state)


def test_an_average_that_is_switched_off_ends_with_the_resumed_run(tmp_path):
    before = parts.learner(average="moving")
    before.update(batches(1)[0])
    before.save_state(tmp_path)
    learner = parts.learner()
    learner.load_state(tmp_path)
    assert learner.state_dict()["followers"] == {}


def test_a_snapshot_does_not_become_the_base_reference_of_a_resumed_run(tmp_path):
    samples = parts.random_steps(5)
    expected = parts.answer_logprobs(parts.model(), samples)
    before = parts.learner(algorithm=held_to("snapshot"))
    before.update(parts.batch(samples))
    before.save_state(tmp_path)
    algorithm = held_to("base")
    learner = parts.learner(algorithm=algorithm, mini_batch_size=16)
    learner.load_state(tmp_path)
    learner.update(parts.batch(samples))
    torch.testing.assert_close(references(algorithm, samples), expected, atol=1e-5, rtol=1e-5)
