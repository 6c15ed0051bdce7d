"""Window GRPO: both advantages, the clipped objective and the KL to the proximal policy."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.policy_gradient import WindowGrpo
from rlforge.config.schema import KlConfig, PpoConfig, WindowGrpoConfig

PREVIOUS = KlConfig(coef=0.05, to="previous")


def advantages(make_step, rewards_by_agent, **config):
    steps = [
        make_step(agent, reward, index)
        for agent, rewards in rewards_by_agent.items()
        for index, reward in enumerate(rewards)
    ]
    return make_algorithm(WindowGrpoConfig(**config), 16).targets(steps, None)


def test_documented_advantage_is_reward_minus_batch_mean(make_step):
    # Agent means 2 and 6, global mean 4 (4 decisions): r - r_agent + (r_agent - 4).
    targets = advantages(make_step, {"a": [1.0, 3.0], "b": [6.0, 6.0]})
    assert targets.advantages == (-3, -1, 2, 2)
    assert targets.metrics == {"groups": 2, "constant_groups": 1}


def test_group_relative_advantage_is_reward_minus_agent_mean(make_step):
    given_rewards = {"a": [1.0, 3.0], "b": [6.0, 6.0]}
    targets = advantages(make_step, given_rewards, advantage="group_relative")
    assert targets.advantages == (-1, 1, 0, 0)


def test_advantages_can_be_divided_by_the_deviation(make_step):
    rewards = {"a": [0.0, 4.0], "b": [10.0, 10.0]}
    relative = advantages(make_step, rewards, advantage="group_relative", normalize_std=True)
    assert relative.advantages == (-1, 1, 0, 0)
    whole = advantages(make_step, {"a": [0.0], "b": [4.0]}, normalize_std=True)
    assert whole.advantages == (-1, 1)


def documented(rewards_by_agent):
    """The advantage in its published form, agent by agent."""
    everything = [r for rewards in rewards_by_agent.values() for r in rewards]
    found = []
    for rewards in rewards_by_agent.values():
        avg_reward = sum(rewards) / len(rewards)
        global_avg = sum(everything) / len(everything)
        found += [reward - avg_reward + (avg_reward - global_avg) for reward in rewards]
    return found


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.floats(-1, 1), min_size=1, max_size=6),
        min_size=1,
    )
)
def test_documented_advantage_equals_its_two_term_form(make_step, rewards):
    found = advantages(make_step, rewards).advantages
    assert found == pytest.approx(documented(rewards), abs=1e-8)


def test_equal_rewards_give_advantages_of_exactly_zero(make_step):
    rewards = {"a": [0.1 + 0.2, 0.3], "b": [0.3]}
    assert advantages(make_step, rewards).advantages == (0, 0, 0)


def test_kl_to_previous_uses_the_proximal_logprobs(make_inputs):
    config = WindowGrpoConfig(importance_cap=None, kl=replace(PREVIOUS, estimator="k2"))
    algorithm = make_algorithm(config, 16)
    assert not algorithm.needs_reference
    inputs = make_inputs([[-1.0, -2.0]], proximal_logprobs=[[-1.1, -1.8]], advantages=[0.0])
    output = algorithm.loss(inputs)
    assert output.metrics["kl"] == pytest.approx((0.1**2 + 0.2**2) / 2 / 2)
    assert float(output.loss.detach()) == pytest.approx(0.05 * output.metrics["kl"])


def test_gradient_equals_that_of_ratio_times_advantage_minus_kl(make_inputs):
    """L = E[ratio A] - beta KL(pi || pi_old) within the clip, differentiated by torch itself."""
    torch.manual_seed(0)
    logprobs = -torch.rand(5, 3) - 0.1
    old = logprobs + 0.05 * torch.randn(5, 3)
    advantages_ = torch.randn(5)
    for estimator in ("k2", "k3"):
        config = WindowGrpoConfig(
            importance_cap=None, kl=KlConfig(coef=0.05, to="previous", estimator=estimator)
        )
        inputs = make_inputs(
            logprobs.clone().requires_grad_(), proximal_logprobs=old, advantages=advantages_
        )
        make_algorithm(config, 16).loss(inputs).loss.backward()
        mine = inputs.logprobs.grad

        free = logprobs.clone().requires_grad_()
        d = free - old
        kl = d.square() / 2 if estimator == "k2" else torch.exp(-d) - 1 + d
        objective = torch.exp(d) * advantages_[:, None] - 0.05 * kl
        (-objective.mean()).backward()
        torch.testing.assert_close(mine, free.grad)


def test_ratios_beyond_the_clip_get_no_gradient(make_inputs):
    inputs = make_inputs(
        [[-1.0], [-1.0]], proximal_logprobs=[[-2.0], [-0.1]], advantages=[1.0, -1.0]
    )
    output = make_algorithm(WindowGrpoConfig(importance_cap=None), 16).loss(inputs)
    output.loss.backward()
    assert inputs.logprobs.grad.tolist() == [[0.0], [0.0]]
    assert output.metrics["clip_fraction"] == 1.0


def test_kl_to_previous_is_reported_even_with_coefficient_zero(make_inputs):
    for config in (WindowGrpoConfig, PpoConfig):
        fields = {"values": [0.0], "old_values": [0.0], "returns": [0.0]}
        inputs = make_inputs([[-1.0]], proximal_logprobs=[[-1.5]], advantages=[0.0], **fields)
        output = make_algorithm(config(kl=KlConfig(to="previous")), 16).loss(inputs)
        assert output.metrics["kl"] > 0
        assert float(output.loss.detach()) == 0.0


def test_kl_to_base_needs_reference_logprobs(make_inputs):
    algorithm = make_algorithm(WindowGrpoConfig(kl=KlConfig(coef=0.05)), 16)
    assert algorithm.needs_reference
    with pytest.raises(ValueError, match="reference_logprobs"):
        algorithm.loss(make_inputs([[-1.0]]))


def test_make_algorithm_returns_window_grpo():
    assert isinstance(make_algorithm(WindowGrpoConfig(), 16), WindowGrpo)
