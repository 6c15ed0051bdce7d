"""Window GRPO: both advantages, the clipped objective and the KL to the proximal policy; penalties
and bonuses over legal actions, and their weights over a run.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.parts import make_inputs, make_step
from torch.distributions import Categorical, kl_divergence

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.base import Reference
from rlforge.algorithms.policy_gradient import annealed
from rlforge.config.training import KlConfig, PpoConfig, ReinforceConfig, WindowGrpoConfig


def advantages(rewards_by_agent, **config):
    samples = [
        make_step(agent, reward, index)
        for agent, rewards in rewards_by_agent.items()
        for index, reward in enumerate(rewards)
    ]
    return make_algorithm(WindowGrpoConfig(**config), 16).targets(samples, None)


@pytest.mark.parametrize(
    ("advantage", "divide", "rewards", "expected"),
    [
        # Agent means 2 and 6, global mean 4 (4 decisions): r - r_agent + (r_agent - 4).
        ("documented", False, {"a": [1.0, 3.0], "b": [6.0, 6.0]}, (-3, -1, 2, 2)),
        ("group_relative", False, {"a": [1.0, 3.0], "b": [6.0, 6.0]}, (-1, 1, 0, 0)),
        ("group_relative", True, {"a": [0.0, 4.0], "b": [10.0, 10.0]}, (-1, 1, 0, 0)),
        ("documented", True, {"a": [0.0, 0.0], "b": [4.0, 4.0]}, (-1, -1, 1, 1)),
    ],
)
def test_advantages_are_against_the_mean_of_the_batch_or_the_agent(
    advantage, divide, rewards, expected
):
    targets = advantages(rewards, advantage=advantage, normalize_std=divide)
    assert targets.advantages == expected
    assert targets.metrics == {
        "groups": 2,
        "constant_groups": sum(one == other for one, other in rewards.values()),
    }


def test_gradient_equals_that_of_ratio_times_advantage_minus_kl():
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


def test_kl_to_previous_is_reported_even_with_coefficient_zero():
    for config in (WindowGrpoConfig, PpoConfig):
        fields = {"values": [0.0], "old_values": [0.0], "returns": [0.0]}
        inputs = make_inputs([[-1.0]], proximal_logprobs=[[-1.5]], advantages=[0.0], **fields)
        output = make_algorithm(config(kl=KlConfig(to="previous")), 16).loss(inputs)
        assert output.metrics["kl"] > 0
        assert float(output.loss.detach()) == 0.0


# ---------------------------------------------------------------- over legal actions

# Two answers, of three tokens and of two. Of each place the count of legal tokens, at most 3; 0:
# no legal answer goes on there.
COUNTS = [[3, 1, 0], [0, 2, 0]]
MASK = [[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]
ANSWER_TOKENS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def drawn(seed, count=3):
    """Log-probs [2, 3, 3] of legal tokens under one policy, with something left to others."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = torch.randn(2, 3, count, generator=generator).log_softmax(-1) - 0.3
    counts = torch.tensor(COUNTS)
    return logprobs.masked_fill(torch.arange(count) >= counts[..., None], -math.inf)


def tokens(seed):
    """Log-probs [2, 3] of the sampled tokens."""
    return -torch.rand(2, 3, generator=torch.Generator().manual_seed(seed)) - 0.1


def legal_inputs(**changes):
    """Three policies that differ, on answers without advantage; ``MASK`` hides the last token."""
    fields = {
        "mask": MASK,
        "advantages": [0.0, 0.0],
        "proximal_logprobs": tokens(1),
        "reference_logprobs": tokens(2),
        "legal_logprobs": drawn(3).requires_grad_(),
        "proximal_legal": drawn(4),
        "reference_legal": drawn(5),
        "entropy": torch.rand(2, 3, generator=torch.Generator().manual_seed(6)).requires_grad_(),
        **changes,
    }
    return make_inputs(tokens(0).requires_grad_(), **fields)


def exact_kl(ours, theirs, place):
    """Of two policies at ``place`` over its legal tokens, by torch's distributions."""
    count = COUNTS[place[0]][place[1]]
    one, other = (Categorical(logits=policy[place][:count]) for policy in (ours, theirs))
    return kl_divergence(one, other)


def k3(ours, theirs, place):
    d = ours[place] - theirs[place]
    return torch.exp(-d) - 1 + d


def expected_kl(inputs, to, over="legal"):
    """Mean over the five answer tokens, exact where there are legal tokens, else estimated."""
    sampled, legal = {
        "proximal": (inputs.proximal_logprobs, inputs.proximal_legal),
        "reference": (inputs.reference_logprobs, inputs.reference_legal),
    }[to]
    values = [
        exact_kl(inputs.legal_logprobs, legal, place)
        if over == "legal" and COUNTS[place[0]][place[1]]
        else k3(inputs.logprobs, sampled, place)
        for place in ANSWER_TOKENS
    ]
    return torch.stack(values).mean()


def reinforce(**settings):
    return make_algorithm(ReinforceConfig(importance_cap=None, **settings), 16)


def check_gradients(inputs, found, expected):
    """``found`` and ``expected`` have the same value and gradients."""
    torch.testing.assert_close(found, expected)
    leaves = [inputs.logprobs, inputs.legal_logprobs, inputs.entropy]
    ours, plain = (
        torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
        for loss in (found, expected)
    )
    for one, other in zip(ours, plain, strict=True):
        one, other = (torch.zeros(()) if g is None else g for g in (one, other))
        assert one.isfinite().all()
        torch.testing.assert_close(*torch.broadcast_tensors(one, other))


@pytest.mark.parametrize("over", ["legal", "tokens"])
@pytest.mark.parametrize("to", ["base", "snapshot", "average", "previous"])
def test_a_kl_over_legal_actions_is_exact_and_elsewhere_estimated(to, over):
    inputs = legal_inputs()
    algorithm = reinforce(kl=KlConfig(coef=0.2, to=to, over=over))
    output = algorithm.loss(inputs)
    expected = expected_kl(inputs, "proximal" if to == "previous" else "reference", over)
    check_gradients(inputs, output.loss, 0.2 * expected)
    torch.testing.assert_close(output.metrics["kl"], expected.detach())
    assert not output.metrics["kl"].requires_grad


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("base", Reference(to="base", every=7)),
        ("snapshot", Reference(to="snapshot", every=7)),
        ("average", Reference(to="average", every=7)),
        ("previous", None),
    ],
)
def test_the_reference_is_what_the_kl_goes_to(to, expected):
    assert reinforce(kl=KlConfig(coef=0.1, to=to, refresh_every=7)).reference == expected
    assert reinforce(kl=KlConfig(to=to)).reference is None


@pytest.mark.parametrize("missing", ["legal_logprobs", "reference_legal"])
def test_without_legal_tokens_the_kl_is_estimated(missing):
    inputs = replace(legal_inputs(), **{missing: None})
    output = reinforce(kl=KlConfig(coef=0.2, over="legal")).loss(inputs)
    expected = expected_kl(inputs, "reference", "tokens")
    torch.testing.assert_close(output.loss, 0.2 * expected)


def test_tokens_without_legal_ones_alone_are_as_if_none_were_asked_for():
    none = torch.full((2, 3, 2), -math.inf)
    settings = {"proximal_coef": 0.3, "entropy_coef": 0.1}
    by_legal = reinforce(kl=KlConfig(coef=0.2, over="legal"), entropy_over="legal", **settings)
    by_token = reinforce(kl=KlConfig(coef=0.2), **settings)
    fields = {"proximal_legal": none, "reference_legal": none}
    inputs = legal_inputs(legal_logprobs=none.clone().requires_grad_(), **fields)
    found, plain = by_legal.loss(inputs), by_token.loss(inputs)
    check_gradients(inputs, found.loss, plain.loss)
    assert found.metrics.pop("legal_entropy") == 0
    assert found.metrics == plain.metrics


def test_padding_takes_no_part_in_legal_terms():
    algorithm = reinforce(
        kl=KlConfig(coef=0.2, over="legal"),
        proximal_coef=0.3,
        entropy_coef=0.1,
        entropy_over="legal",
    )
    found = []
    for filler in (0.0, -4.0):  # the learner pads with zeros
        padded = {
            name: policy.index_put((torch.tensor(1), torch.tensor(2)), torch.tensor(filler))
            for name, policy in {
                "legal_logprobs": drawn(3),
                "proximal_legal": drawn(4),
                "reference_legal": drawn(5),
            }.items()
        }
        output = algorithm.loss(legal_inputs(**padded))
        found.append([output.loss.detach(), *output.metrics.values()])
    torch.testing.assert_close(*found)


def test_the_proximal_penalty_is_beside_that_to_the_reference():
    inputs = legal_inputs()
    algorithm = reinforce(kl=KlConfig(coef=0.2, to="snapshot", over="legal"), proximal_coef=0.5)
    output = algorithm.loss(inputs)
    magnet, proximal = expected_kl(inputs, "reference"), expected_kl(inputs, "proximal")
    check_gradients(inputs, output.loss, 0.2 * magnet + 0.5 * proximal)
    torch.testing.assert_close(output.metrics["kl"], magnet.detach())
    torch.testing.assert_close(output.metrics["proximal_kl"], proximal.detach())


def test_the_proximal_penalty_needs_no_reference():
    algorithm = reinforce(proximal_coef=0.5)
    inputs = replace(legal_inputs(), reference_logprobs=None, reference_legal=None)
    output = algorithm.loss(inputs)
    assert algorithm.reference is None
    assert "kl" not in output.metrics
    torch.testing.assert_close(output.loss, 0.5 * expected_kl(inputs, "proximal", "tokens"))


@pytest.mark.parametrize("over", ["legal", "vocabulary"])
def test_an_entropy_bonus_over_legal_actions_is_exact_and_ends_where_an_answer_becomes_illegal(
    over,
):
    inputs = legal_inputs()

    output = reinforce(entropy_coef=0.4, entropy_over=over).loss(inputs)

    legal = torch.stack(
        [
            Categorical(logits=inputs.legal_logprobs[place][:count]).entropy()
            if (count := COUNTS[place[0]][place[1]])
            else torch.zeros(())
            for place in ANSWER_TOKENS
        ]
    )
    whole = torch.stack([inputs.entropy[place] for place in ANSWER_TOKENS])
    bonus = legal if over == "legal" else whole
    check_gradients(inputs, output.loss, -0.4 * bonus.mean())
    torch.testing.assert_close(output.metrics["entropy"], whole.mean().detach())
    assert ("legal_entropy" in output.metrics) == (over == "legal")
    if over == "legal":
        torch.testing.assert_close(output.metrics["legal_entropy"], legal.mean().detach())


def test_an_answer_without_legal_tokens_keeps_the_entropy_of_the_vocabulary():
    both = drawn(3)
    both[1] = -math.inf
    inputs = legal_inputs(legal_logprobs=both.requires_grad_())
    output = reinforce(entropy_coef=0.4, entropy_over="legal").loss(inputs)
    three = Categorical(logits=inputs.legal_logprobs[0, 0]).entropy()  # the next is no choice
    check_gradients(inputs, output.loss, -0.4 * (three + inputs.entropy[1, :2].sum()) / 5)


# ---------------------------------------------------------------- weights over a run


@given(st.floats(0, 10), st.floats(0, 3), st.floats(0, 1))
def test_weights_go_from_the_first_to_the_last_in_proportion(coef, final_ratio, progress):
    expected = (1 - progress) * coef + progress * coef * final_ratio
    assert annealed(coef, final_ratio, progress) == pytest.approx(expected, abs=1e-9)


def test_each_weight_follows_its_own_final_ratio():
    kl = KlConfig(coef=0.2, final_ratio=0.5, over="legal")
    algorithm = reinforce(kl=kl, proximal_coef=0.3, entropy_coef=0.4, entropy_final_ratio=0.0)
    for progress in (0.0, 0.25, 0.9):
        inputs = replace(legal_inputs(), progress=progress)
        output = algorithm.loss(inputs)
        expected = (
            0.2 * (1 - 0.5 * progress) * output.metrics["kl"]
            + 0.3 * output.metrics["proximal_kl"]
            - 0.4 * (1 - progress) * output.metrics["entropy"]
        )
        torch.testing.assert_close(output.loss.detach(), expected)


def test_a_kl_whose_weight_has_gone_to_zero_is_still_measured():
    algorithm = reinforce(kl=KlConfig(coef=0.2, final_ratio=0.0, over="legal"))
    output = algorithm.loss(replace(legal_inputs(), progress=1.0))
    assert output.loss.item() == 0
    assert output.metrics["kl"] > 0
    assert algorithm.reference == Reference(to="base", every=40)
