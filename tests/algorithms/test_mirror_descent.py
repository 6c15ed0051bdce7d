"""Magnetic mirror descent (Sokota et al. 2023, arXiv:2206.05825) in a softmax table, by the losses.

A state with three actions. Each action is an answer of one token, with its own probability as the
importance weight, so that the loss of a batch is exact: no action is sampled.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import root

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import LossInputs
from rlforge.config.training import AlgorithmConfig, GrpoConfig, KlConfig, ReinforceConfig

ACTIONS = 3
ROCK_PAPER_SCISSORS = torch.tensor(
    [[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], dtype=torch.float64
)


def exact_batch(logits, values, old, magnet) -> LossInputs:
    """Every action once, drawn uniformly: 1/3 sum_a (pi(a) / (1/3)) A(a) is the mean under pi."""
    logprobs = logits.log_softmax(-1)
    others = {name: policy.log() for name, policy in (("old", old), ("magnet", magnet))}

    def at_each(logs):
        return logs.expand(ACTIONS, 1, ACTIONS)

    return LossInputs(
        logprobs=logprobs[:, None],
        behaviour_logprobs=torch.full((ACTIONS, 1), -math.log(ACTIONS)),
        proximal_logprobs=others["old"][:, None],
        reference_logprobs=others["magnet"][:, None],
        mask=torch.ones(ACTIONS, 1),
        advantages=values,
        legal_logprobs=at_each(logprobs),
        proximal_legal=at_each(others["old"]),
        reference_legal=at_each(others["magnet"]),
        total_tokens=ACTIONS,
        total_sequences=ACTIONS,
    )


def minimum(config: AlgorithmConfig, values, old, magnet) -> torch.Tensor:
    """The policy at which the gradient of the algorithm's loss vanishes, started from ``old``."""
    algorithm = make_algorithm(config, 1)
    logits = old.log().clone().requires_grad_()
    for _ in range(20):
        (gradient,) = torch.autograd.grad(
            algorithm.loss(exact_batch(logits, values, old, magnet)).loss, logits
        )
        if gradient.abs().max() < 1e-11:
            break
        # The natural gradient of a softmax table: F^+ g = g / pi, up to a constant.
        with torch.no_grad():
            logits -= gradient / logits.softmax(-1) / (config.kl.coef + config.proximal_coef)
    assert gradient.abs().max() < 1e-9
    return logits.detach().softmax(-1)


def settings_of(alpha: float, eta: float) -> dict:
    return {
        "importance_cap": 1e6,
        "kl": KlConfig(coef=alpha, to="snapshot", over="legal"),
        "proximal_coef": 1 / eta,
    }


def reinforce(alpha: float, eta: float) -> AlgorithmConfig:
    return ReinforceConfig(**settings_of(alpha, eta))


def ratios(alpha: float, eta: float) -> AlgorithmConfig:
    """The clipped loss with bounds that no policy reaches: -E_old[(pi / pi_old) A]."""
    return GrpoConfig(loss="clip", clip_low=0.999999, clip_high=1e6, **settings_of(alpha, eta))


def closed_form(values, old, magnet, alpha: float, eta: float) -> torch.Tensor:
    """pi ~ [pi_old rho^(alpha eta) exp(eta q)]^(1 / (1 + alpha eta)), rho the magnet."""
    logits = (old.log() + alpha * eta * magnet.log() + eta * values) / (1 + alpha * eta)
    return logits.softmax(-1)


policies = st.lists(st.floats(-2, 2), min_size=ACTIONS, max_size=ACTIONS).map(
    lambda logits: torch.tensor(logits, dtype=torch.float64).softmax(-1)
)
action_values = st.lists(st.floats(-1, 1), min_size=ACTIONS, max_size=ACTIONS).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


@pytest.mark.parametrize("algorithm", [reinforce, ratios])
@settings(max_examples=15)
@given(
    values=action_values,
    old=policies,
    magnet=policies,
    alpha=st.floats(0.05, 1),
    eta=st.floats(0.1, 2),
)
def test_the_minimum_of_the_loss_is_the_closed_form_of_mirror_descent(
    algorithm, values, old, magnet, alpha, eta
):
    found = minimum(algorithm(alpha, eta), values, old, magnet)
    torch.testing.assert_close(
        found, closed_form(values, old, magnet, alpha, eta), atol=1e-7, rtol=1e-6
    )


def self_play(payoffs, policy, magnet, alpha: float, eta: float, updates: int) -> torch.Tensor:
    """Each update minimises the loss on the exact action values against the policy itself."""
    for _ in range(updates):
        policy = minimum(reinforce(alpha, eta), payoffs @ policy, policy, magnet)
    return policy


def quantal_response(payoffs, magnet, alpha: float) -> torch.Tensor:
    """The policy pi ~ rho exp(q_pi / alpha) of a symmetric game, by a root finder."""
    magnet, payoffs = magnet.numpy(), payoffs.numpy()

    def excess(logits):
        policy = torch.tensor(logits).softmax(-1).numpy()
        response = torch.tensor(payoffs @ policy / alpha).add(torch.tensor(magnet).log())
        return torch.tensor(logits).log_softmax(-1).numpy() - response.log_softmax(-1).numpy()

    solution = root(excess, [0.0] * ACTIONS, method="lm", tol=1e-13)
    assert solution.success
    return torch.tensor(solution.x).softmax(-1)


START = torch.tensor([0.9, 0.08, 0.02], dtype=torch.float64)
UNIFORM = torch.full((ACTIONS,), 1 / ACTIONS, dtype=torch.float64)


def test_self_play_with_a_biased_magnet_converges_to_the_quantal_response_equilibrium():
    magnet = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    expected = quantal_response(ROCK_PAPER_SCISSORS, magnet, alpha=0.5)
    found = self_play(ROCK_PAPER_SCISSORS, START, magnet, alpha=0.5, eta=0.5, updates=60)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert (found - UNIFORM).abs().max() > 0.05


def test_a_magnet_that_follows_at_a_distance_leads_to_the_nash_equilibrium():
    """``kl.to: snapshot``: of wins that count twice with rock, the equilibrium is not uniform."""
    payoffs = torch.tensor([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])
    policy = magnet = UNIFORM
    for _ in range(20):
        policy = magnet = self_play(payoffs, policy, magnet, alpha=0.5, eta=0.3, updates=12)
    torch.testing.assert_close(policy, torch.tensor([0.25, 0.5, 0.25]), atol=1e-3, rtol=0)
