"""Whole algorithms: targets of a batch, losses of micro-batches, metrics that add up."""

import math
from dataclasses import replace

import pytest
import torch
from tests.algorithms.parts import make_inputs, make_step

from rlforge.algorithms import make_algorithm
from rlforge.config.training import A2cConfig, AlgorithmConfig, GrpoConfig, KlConfig, PpoConfig

CONFIGS = [
    AlgorithmConfig(),
    GrpoConfig(clip_low=0.1, clip_high=0.05, dual_clip=1.1),
    A2cConfig(),
    PpoConfig(value_clip=0.1),
    GrpoConfig(loss="sequence_clip", clip_low=0.05, clip_high=0.1),
    GrpoConfig(loss="cispo", clip_low=1.0, clip_high=0.2, importance="mask"),
    PpoConfig(loss="score_function", importance="mask", importance_floor=0.9),
]
ids = [f"{config.name}-{getattr(config, 'loss', '')}" for config in CONFIGS]


def random_batch(sequences=6, tokens=4, seed=0):
    """Tensors of one optimizer step, with padding, a little off-policy."""
    torch.manual_seed(seed)
    lengths = torch.randint(1, tokens + 1, (sequences,))
    logprobs = -torch.rand(sequences, tokens)
    near = lambda: logprobs + 0.3 * torch.randn(sequences, tokens)  # noqa: E731
    return {
        "logprobs": logprobs,
        "behaviour_logprobs": near(),
        "proximal_logprobs": near(),
        "reference_logprobs": near(),
        "entropy": torch.rand(sequences, tokens),
        "mask": (torch.arange(tokens)[None] < lengths[:, None]).double(),
        "advantages": torch.randn(sequences),
        "values": torch.randn(sequences),
        "old_values": torch.randn(sequences),
        "returns": torch.randn(sequences),
    }


TRAINED = ("logprobs", "entropy", "values")


def run(algorithm, batch, parts):
    """Loss, gradients and metrics, summed over micro-batches made of the rows in ``parts``."""
    leaves = {name: batch[name].clone().requires_grad_() for name in TRAINED}
    totals = {"total_tokens": int(batch["mask"].sum()), "total_sequences": len(batch["mask"])}
    loss, metrics = 0.0, {}
    for rows in parts:
        fields = {name: tensor[rows] for name, tensor in (batch | leaves).items()}
        output = algorithm.loss(make_inputs(fields.pop("logprobs"), **fields, **totals))
        output.loss.backward()
        loss += float(output.loss.detach())
        for key, number in output.metrics.items():
            metrics[key] = metrics.get(key, 0.0) + float(number)
    gradients = [torch.zeros(()) if leaf.grad is None else leaf.grad for leaf in leaves.values()]
    return loss, gradients, metrics


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("config", CONFIGS, ids=ids)
def test_micro_batches_add_up_to_the_whole_batch(config, aggregation):
    config = replace(config, loss_aggregation=aggregation, kl=KlConfig(coef=0.3), entropy_coef=0.1)
    algorithm = make_algorithm(config, max_tokens=16)
    batch = random_batch()
    whole = run(algorithm, batch, [range(6)])
    for parts in ([[0], [1], [2], [3], [4], [5]], [[0, 1, 2, 3], [4, 5]]):
        loss, gradients, metrics = run(algorithm, batch, parts)
        assert loss == pytest.approx(whole[0])
        assert metrics == pytest.approx(whole[2])
        for gradient, expected in zip(gradients, whole[1], strict=True):
            torch.testing.assert_close(gradient, expected)


def metrics_of(config):
    algorithm = make_algorithm(config, max_tokens=16)
    return set(run(algorithm, random_batch(), [range(6)])[2])


def test_every_metric_is_reported():
    everything = {"kl": KlConfig(coef=0.1), "entropy_coef": 0.1}
    weights = {"importance_weight_mean", "importance_capped_fraction"}
    common = {"policy_loss", "kl", "entropy"} | weights
    assert metrics_of(AlgorithmConfig(**everything)) == common
    assert metrics_of(GrpoConfig(**everything)) == common | {"clip_fraction"}
    assert metrics_of(A2cConfig(**everything)) == common | {"value_loss"}
    with_critic = common | {"clip_fraction", "value_loss"}
    assert metrics_of(PpoConfig(**everything)) == with_critic
    masked = {"importance_weight_mean", "importance_masked_fraction"}
    found = metrics_of(GrpoConfig(loss="cispo", importance="mask"))
    assert found == {"policy_loss", "entropy", "clip_fraction"} | masked
    plain = AlgorithmConfig(importance_cap=None)
    assert metrics_of(plain) == {"policy_loss", "entropy"}


def test_loss_terms_by_hand():
    config = AlgorithmConfig(
        importance_cap=None, kl=KlConfig(coef=0.5, estimator="k2"), entropy_coef=0.1
    )
    inputs = make_inputs(
        [[-1.0, -2.0]], advantages=[3.0], reference_logprobs=[[-1.0, -4.0]], entropy=[[0.5, 1.5]]
    )
    output = make_algorithm(config, max_tokens=16).loss(inputs)
    # policy (3 + 6) / 2, KL (0 + 2) / 2, entropy (0.5 + 1.5) / 2
    assert float(output.loss.detach()) == pytest.approx(4.5 + 0.5 * 1.0 - 0.1 * 1.0)
    assert output.metrics == pytest.approx({"policy_loss": 4.5, "kl": 1.0, "entropy": 1.0})


def test_a_missing_input_of_a_loss_term_is_an_error():
    inputs = make_inputs([[-1.0]])
    with pytest.raises(ValueError, match="reference_logprobs"):
        make_algorithm(AlgorithmConfig(kl=KlConfig(coef=0.1)), 16).loss(inputs)
    with pytest.raises(ValueError, match="entropy"):
        make_algorithm(AlgorithmConfig(entropy_coef=0.1, entropy_over="legal"), 16).loss(inputs)


@pytest.mark.parametrize(("given_len", "divisor"), [(None, 16), (10, 10)])
def test_constant_aggregation_divides_by_the_longest_answer(given_len, divisor):
    config = AlgorithmConfig(
        loss_aggregation="constant", max_generation_len=given_len, importance_cap=None
    )
    output = make_algorithm(config, max_tokens=16).loss(make_inputs([[-1.0, -2.0], [-3.0, 0.0]]))
    assert float(output.loss.detach()) == pytest.approx(6.0 / (2 * divisor))


def test_reinforce_takes_the_reward_as_advantage():
    samples = [make_step("a", 0.5), make_step("b", -1.0)]
    targets = make_algorithm(AlgorithmConfig(), 16).targets(samples, None)
    assert targets.advantages == (0.5, -1.0)
    assert targets.returns is None


def test_masking_goes_down_to_the_inverse_of_the_cap_unless_a_floor_is_given():
    def weights(**config):
        raw = [0.2, 0.3, 0.6, 2.9, 3.1]
        inputs = make_inputs([[-1.0] * 5], behaviour_logprobs=[[-1 - math.log(r) for r in raw]])
        make_algorithm(AlgorithmConfig(**config), 16).loss(inputs).loss.backward()
        return [-5 * slope for slope in inputs.logprobs.grad[0].tolist()]

    assert weights(importance_cap=3.0) == pytest.approx([0.2, 0.3, 0.6, 2.9, 3.0])
    mask = {"importance": "mask", "importance_cap": 3.0}
    assert weights(**mask) == pytest.approx([0, 0, 0.6, 2.9, 0])
    assert weights(**mask, importance_floor=0.25) == pytest.approx([0, 0.3, 0.6, 2.9, 0])


def test_grpo_targets_count_groups():
    samples = [make_step(f"g{i}", float(i // 2), group_id="x") for i in range(4)]
    samples += [make_step(f"h{i}", 1.0, group_id="y") for i in range(2)]
    targets = make_algorithm(GrpoConfig(), 16).targets(samples, None)
    assert targets.advantages == (-1, -1, 1, 1, 0, 0)
    assert targets.metrics == {"groups": 2, "constant_groups": 1}
    rloo = GrpoConfig(advantage="leave_one_out", normalize_std=False)
    others = make_algorithm(rloo, 16).targets(samples, None).advantages
    assert others == pytest.approx((-2 / 3, -2 / 3, 2 / 3, 2 / 3, 0, 0))
    likely = GrpoConfig(advantage="max_rl", normalize_std=False)
    assert make_algorithm(likely, 16).targets(samples, None).advantages == (-1, -1, 1, 1, 0, 0)
    dr_grpo = make_algorithm(GrpoConfig(normalize_std=False), 16).targets(samples, None)
    assert dr_grpo.advantages == (-0.5, -0.5, 0.5, 0.5, 0, 0)


@pytest.mark.parametrize("config", [A2cConfig, PpoConfig])
def test_critic_targets_by_hand(config):
    algorithm = make_algorithm(config(gamma=0.9, gae_lambda=0.8, normalize_advantages=False), 16)
    samples = [
        make_step("a", 1.0, 0, False, outcome_reward=1.0),
        make_step("a", 1.0, 1, True, outcome_reward=1.0),
        make_step("b", -1.0, 0, True, outcome_reward=-1.0),
    ]
    targets = algorithm.targets(samples, [0.2, 0.5, 0.0])
    assert targets.advantages == pytest.approx([0.61, 0.5, -1.0])
    assert targets.returns == pytest.approx([0.81, 1.0, -1.0])


def test_critic_advantages_are_standardized_by_default():
    samples = [make_step(name, reward) for name, reward in (("a", 1.0), ("b", 3.0))]
    targets = make_algorithm(A2cConfig(), 16).targets(samples, [0.0, 0.0])
    assert targets.advantages == (-1, 1)
    assert targets.returns == (1, 3)
    assert targets.metrics == {"explained_variance": 0}


@pytest.mark.parametrize("values", [None, [0.0]])
def test_a_critic_needs_a_value_per_step(values):
    with pytest.raises(ValueError, match="one value per sample"):
        make_algorithm(A2cConfig(), 16).targets([make_step("a"), make_step("b")], values)


def test_the_critic_loss_is_scaled_by_its_coefficient():
    fields = {"values": [1.0], "old_values": [1.0], "returns": [4.0]}
    for coef in (0.0, 0.5):
        inputs = make_inputs([[-1.0]], advantages=[0.0], **fields)
        output = make_algorithm(A2cConfig(value_coef=coef), 16).loss(inputs)
        assert float(output.loss.detach()) == pytest.approx(9.0 * coef)
        assert output.metrics["value_loss"] == pytest.approx(9.0)


def test_ppo_clips_and_a2c_does_not():
    gradients = {}
    for config in (A2cConfig(), PpoConfig()):
        inputs = make_inputs(
            [[-1.0]],
            proximal_logprobs=[[-1.0 - math.log(2)]],
            values=[0.0],
            old_values=[0.0],
            returns=[0.0],
        )
        make_algorithm(config, 16).loss(inputs).loss.backward()
        gradients[config.name] = inputs.logprobs.grad.item()
    assert gradients == {"a2c": -1.0, "ppo": 0.0}
