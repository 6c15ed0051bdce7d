"""Loss pieces against numbers worked by hand, exact expectations and autograd."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.algorithms.parts import make_inputs
from torch.distributions import Categorical, kl_divergence

from rlforge.algorithms.losses import (
    aggregate,
    cispo_loss,
    clipped_loss,
    importance_weights,
    kl_penalty,
    legal_entropy,
    legal_kl,
    score_function_loss,
    token_mean,
    value_loss,
)

MASK = [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
LOSSES = [[1.0, 2.0, 3.0], [4.0, 50.0, 60.0]]


# ---------------------------------------------------------------- aggregation


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_mean", (1 + 2 + 3 + 4) / 4),
        ("sequence_mean", ((1 + 2 + 3) / 3 + 4) / 2),
        ("constant", (1 + 2 + 3 + 4) / (2 * 10)),
    ],
)
def test_aggregations_by_hand(how, expected):
    inputs = make_inputs(LOSSES, mask=MASK)
    assert float(aggregate(torch.tensor(LOSSES), inputs, how, 10)) == pytest.approx(expected)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
def test_an_answer_without_tokens_weighs_nothing(how):
    inputs = make_inputs([[1.0, 2.0]], mask=[[0.0, 0.0]], total_tokens=0)
    loss = aggregate(inputs.logprobs, inputs, how, 10)
    loss.backward()
    assert float(loss.detach()) == 0
    assert inputs.logprobs.grad.tolist() == [[0, 0]]


def test_an_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="no such aggregation: 'mean'"):
        aggregate(torch.zeros(1, 1), make_inputs([[0.0]]), "mean", 1)


def test_token_means_divide_by_the_tokens_of_the_whole_optimizer_step():
    inputs = make_inputs(LOSSES, mask=MASK, total_tokens=40)
    assert token_mean(torch.tensor(LOSSES), inputs) == pytest.approx(10 / 40)


# ---------------------------------------------------------------- importance weights


def test_weights_are_ratios_up_to_the_cap():
    now = [[math.log(0.5), math.log(0.2), math.log(0.9)]]
    behaviour = [[math.log(0.25), math.log(0.4), math.log(0.1)]]
    inputs = make_inputs(now, behaviour_logprobs=behaviour, mask=[[1.0, 1.0, 1.0]])
    weights = importance_weights(inputs.logprobs, inputs, cap=3.0)
    assert weights.loss.tolist() == [pytest.approx([2.0, 0.5, 3.0])]
    assert weights.metrics["importance_weight_mean"] == pytest.approx(5.5 / 3)
    assert weights.metrics["importance_capped_fraction"] == pytest.approx(1 / 3)
    assert not weights.loss.requires_grad


def test_without_a_cap_there_is_no_correction():
    inputs = make_inputs([[0.0, 0.0]], behaviour_logprobs=[[-5.0, -1.0]])
    weights = importance_weights(inputs.logprobs, inputs, cap=None)
    assert weights.loss.tolist() == [[1, 1]]
    assert weights.metrics == {}


def test_masked_weights_are_ratios_within_both_bounds_and_nothing_outside():
    raw = [0.4, 0.6, 1.0, 1.9, 2.1]
    inputs = make_inputs([[0.0] * 5], behaviour_logprobs=[[-math.log(r) for r in raw]])
    weights = importance_weights(inputs.logprobs, inputs, cap=2.0, floor=0.5)
    assert weights.loss.tolist() == [pytest.approx([0, 0.6, 1.0, 1.9, 0])]
    assert weights.metrics == {
        "importance_weight_mean": pytest.approx(3.5 / 5),
        "importance_masked_fraction": pytest.approx(2 / 5),
    }


MASKED = {
    "score_function": lambda inputs: score_function_loss(inputs, 2.0, 0.5).loss,
    "clip": lambda inputs: clipped_loss(inputs, 2.0, 0.2, 0.2, None, 0.5).loss,
    "sequence_clip": lambda inputs: (
        clipped_loss(inputs, 2.0, 0.2, 0.2, None, 0.5, sequences=True).loss
    ),
    "cispo": lambda inputs: cispo_loss(inputs, 2.0, 0.2, 0.2, 0.5).loss,
    "kl": lambda inputs: kl_penalty(inputs, "k3", 2.0, 0.5),
}


@pytest.mark.parametrize("loss", MASKED.values(), ids=MASKED)
def test_masked_tokens_add_nothing_to_loss_and_gradient(loss):
    inputs = make_inputs(
        [[-1.0, -1.0, -1.0]],
        behaviour_logprobs=[[-0.1, -1.2, -3.0]],
        reference_logprobs=[[-1.5, -1.5, -1.5]],
        advantages=[2.0],
    )
    found = loss(inputs)
    found.sum().backward()
    assert [value != 0 for value in found[0].tolist()] == [False, True, False]
    assert [value != 0 for value in inputs.logprobs.grad[0].tolist()] == [False, True, False]


# ---------------------------------------------------------------- policy losses


def test_score_function_gradient_is_minus_weight_times_advantage():
    inputs = make_inputs(
        [[-1.0, -2.0, -3.0], [-1.0, 0.0, 0.0]],
        behaviour_logprobs=[[-1.0, -2.0 - math.log(1.5), -3.0 - math.log(9)], [-1.0, 7.0, 7.0]],
        advantages=[2.0, -1.0],
        mask=MASK,
    )
    aggregate(score_function_loss(inputs, cap=2.0).loss, inputs, "token_mean", 1).backward()
    expected = torch.tensor([[-2.0, -3.0, -4.0], [1.0, 0.0, 0.0]]) / 4
    torch.testing.assert_close(inputs.logprobs.grad, expected)


def test_weighted_score_function_is_the_true_gradient_off_policy():
    """Expectation over all tokens of the engine's distribution, against d/dlogits sum pi A."""
    logits = torch.tensor([0.3, -0.4, 1.0, 0.0], requires_grad=True)
    behaviour = torch.tensor([0.1, 0.2, 0.3, 0.4])
    advantages = torch.tensor([1.0, -2.0, 0.5, 3.0])
    logprobs = logits.log_softmax(0)
    (expected,) = torch.autograd.grad(-(logprobs.exp() * advantages).sum(), logits)
    inputs = make_inputs(
        logits.log_softmax(0)[:, None],
        behaviour_logprobs=behaviour.log()[:, None],
        advantages=advantages,
    )
    loss = (behaviour[:, None] * score_function_loss(inputs, cap=1e6).loss).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], expected)


RATIOS = [0.5, 0.9, 1.1, 1.5, 5.0]


@pytest.mark.parametrize(
    ("advantage", "dual_clip", "loss", "gradient", "clipped"),
    [
        (2.0, None, [-1.0, -1.8, -2.2, -2.6, -2.6], [-1.0, -1.8, -2.2, 0, 0], 2),
        (2.0, 3.0, [-1.0, -1.8, -2.2, -2.6, -2.6], [-1.0, -1.8, -2.2, 0, 0], 2),
        (-2.0, None, [1.6, 1.8, 2.2, 3.0, 10.0], [0, 1.8, 2.2, 3.0, 10.0], 1),
        (-2.0, 3.0, [1.6, 1.8, 2.2, 3.0, 6.0], [0, 1.8, 2.2, 3.0, 0], 2),
    ],
)
def test_clipping_by_hand(advantage, dual_clip, loss, gradient, clipped):
    inputs = make_inputs(
        [[math.log(r) - 1.0 for r in RATIOS]],
        proximal_logprobs=[[-1.0] * 5],
        behaviour_logprobs=[[-1.0] * 5],
        advantages=[advantage],
    )
    output = clipped_loss(inputs, None, clip_low=0.2, clip_high=0.3, dual_clip=dual_clip)
    output.loss.sum().backward()
    assert output.loss[0].tolist() == pytest.approx(loss)
    assert inputs.logprobs.grad[0].tolist() == pytest.approx(gradient)
    assert output.metrics == {"clip_fraction": pytest.approx(clipped / 5)}


def test_at_ratio_one_the_clipped_gradient_is_that_of_reinforce():
    torch.manual_seed(0)
    logprobs = -torch.rand(4, 3)
    fields = {"behaviour_logprobs": -torch.rand(4, 3), "advantages": torch.randn(4)}
    gradients = []
    for loss in (
        lambda inputs: score_function_loss(inputs, 1.5),
        lambda inputs: clipped_loss(inputs, 1.5, 0.2, 0.2, 3.0),
        lambda inputs: clipped_loss(inputs, 1.5, 3e-4, 4e-4, None, sequences=True),
        lambda inputs: cispo_loss(inputs, 1.5, 0.2, 0.2),
    ):
        inputs = make_inputs(logprobs.clone().requires_grad_(), **fields)
        loss(inputs).loss.sum().backward()
        gradients.append(inputs.logprobs.grad)
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0])


def test_the_clipped_loss_corrects_for_the_engine_at_the_old_policy():
    inputs = make_inputs(
        [[-1.0]],
        proximal_logprobs=[[-1.0 - math.log(1.1)]],
        behaviour_logprobs=[[-1.0 - math.log(1.1) - math.log(1.5)]],
        advantages=[2.0],
    )
    loss = clipped_loss(inputs, 4.0, 0.2, 0.2, None).loss
    assert float(loss.detach()) == pytest.approx(-1.5 * 1.1 * 2.0)


def off_policy(seed=0, spread=0.3):
    """Eight padded answers whose policy has moved since the start of the update."""
    torch.manual_seed(seed)
    logprobs = -torch.rand(8, 5)
    lengths = torch.tensor([5, 1, 3, 5, 2, 4, 5, 1])
    return make_inputs(
        logprobs.requires_grad_(),
        proximal_logprobs=logprobs.detach() + spread * torch.randn(8, 5),
        behaviour_logprobs=logprobs.detach(),
        mask=(torch.arange(5)[None] < lengths[:, None]).double(),
        advantages=torch.randn(8),
    )


@pytest.mark.parametrize("dual_clip", [None, 1.05])
def test_sequence_clipping_is_the_objective_of_gspo(dual_clip):
    """(1 / N) sum_i min(s_i A_i, clip(s_i) A_i), differentiated by torch from its definition."""
    inputs = off_policy()
    found = clipped_loss(inputs, None, 0.05, 0.02, dual_clip, sequences=True)
    loss = aggregate(found.loss, inputs, "sequence_mean", 5)
    loss.backward()

    free = inputs.logprobs.detach().clone().requires_grad_()
    cut, objective = 0, 0.0
    for row in range(8):
        tokens = inputs.mask[row] > 0
        s = (free[row][tokens] - inputs.proximal_logprobs[row][tokens]).mean().exp()
        advantage = inputs.advantages[row]
        least = torch.min(s * advantage, s.clamp(0.95, 1.02) * advantage)
        if dual_clip is not None and advantage < 0:
            least = torch.max(least, dual_clip * advantage)
        cut += int(tokens.sum()) * bool(least != s * advantage)
        objective = objective + least / 8
    (-objective).backward()
    torch.testing.assert_close(loss, -objective)
    torch.testing.assert_close(inputs.logprobs.grad, free.grad)
    assert cut > 0
    assert found.metrics == {"clip_fraction": pytest.approx(cut / int(inputs.mask.sum()))}


def test_cispo_weighs_every_token_by_its_clipped_ratio():
    inputs = off_policy()
    inputs.logprobs.grad = None
    output = cispo_loss(inputs, 1.1, 0.3, 0.2)
    output.loss.sum().backward()
    now, old = inputs.logprobs.detach().numpy(), inputs.proximal_logprobs.numpy()
    ratios = np.exp(now - old)
    engine = np.minimum(np.exp(old - inputs.behaviour_logprobs.numpy()), 1.1)
    mask = inputs.mask.numpy()
    slope = -engine * np.clip(ratios, 0.7, 1.2) * inputs.advantages.numpy()[:, None] * mask
    np.testing.assert_allclose(inputs.logprobs.grad.numpy(), slope)
    np.testing.assert_allclose(output.loss.detach().numpy(), slope * now, atol=1e-12)
    clipped = ((ratios < 0.7) | (ratios > 1.2)) * mask
    assert output.metrics["clip_fraction"] == pytest.approx(clipped.sum() / mask.sum())
    assert (slope[mask > 0] != 0).all()


# ---------------------------------------------------------------- KL

POLICY = torch.tensor([0.2, -0.5, 1.0, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.6, 0.1, 0.2, 0.1], dtype=torch.float64)
ENGINE = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)


def expected_penalty(logits, estimator, drawn_from=None):
    """The penalty's exact expectation: every token once, weighted by its probability."""
    logprobs = logits.log_softmax(0)
    drawn_from = logprobs.exp().detach() if drawn_from is None else drawn_from
    inputs = make_inputs(
        logprobs[:, None],
        reference_logprobs=REFERENCE.log()[:, None],
        behaviour_logprobs=drawn_from.log()[:, None],
    )
    penalty = kl_penalty(inputs, estimator, cap=1e6)
    return (drawn_from[:, None] * penalty).sum()


def kl(p, q):
    return (p * (p.log() - q.log())).sum()


@pytest.mark.parametrize("drawn_from", [None, ENGINE])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased_values(estimator, drawn_from):
    estimate = expected_penalty(POLICY, estimator, drawn_from)
    torch.testing.assert_close(estimate, kl(POLICY.softmax(0), REFERENCE))


@pytest.mark.parametrize("drawn_from", [None, ENGINE])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_gradients_are_those_of_the_documented_divergence(estimator, drawn_from):
    logits = POLICY.clone().requires_grad_()
    policy = logits.softmax(0)
    exact = kl(REFERENCE, policy) if estimator == "k3" else kl(policy, REFERENCE)
    (expected,) = torch.autograd.grad(exact, logits)
    estimate = expected_penalty(logits, estimator, drawn_from)
    torch.testing.assert_close(torch.autograd.grad(estimate, logits)[0], expected)


def test_kl_by_hand():
    d = math.log(2.0)
    fields = {"reference_logprobs": [[-1.0 - d, 99.0]], "mask": [[1.0, 0.0]]}
    values = {
        estimator: kl_penalty(make_inputs([[-1.0, 0.0]], **fields), estimator, None)
        for estimator in ("k1", "k2", "k3")
    }
    assert values["k1"][0, 0].item() == pytest.approx(d)
    assert values["k2"][0, 0].item() == pytest.approx(d * d / 2)
    assert values["k3"][0, 0].item() == pytest.approx(0.5 - 1 + d)


def test_kl_needs_a_reference_and_a_known_estimator():
    with pytest.raises(ValueError, match="needs reference_logprobs"):
        kl_penalty(make_inputs([[0.0]]), "k1", None)
    with pytest.raises(ValueError, match="no such KL estimator: 'k4'"):
        kl_penalty(make_inputs([[0.0]], reference_logprobs=[[0.0]]), "k4", None)


# ---------------------------------------------------------------- padding, extremes


def test_values_on_padding_are_ignored():
    nan = math.nan
    inputs = make_inputs(
        [[-1.0, nan], [-2.0, -math.inf]],
        mask=[[1.0, 0.0], [1.0, 0.0]],
        behaviour_logprobs=[[-1.0, nan], [-2.0, 0.0]],
        proximal_logprobs=[[-1.1, nan], [-2.0, 0.0]],
        reference_logprobs=[[-1.2, nan], [-2.0, 0.0]],
    )
    losses = [
        score_function_loss(inputs, 2.0).loss,
        clipped_loss(inputs, 2.0, 0.2, 0.2, None).loss,
        clipped_loss(inputs, 2.0, 0.2, 0.2, None, 0.5, sequences=True).loss,
        cispo_loss(inputs, 2.0, 0.2, 0.2, 0.5).loss,
        kl_penalty(inputs, "k3", 2.0),
    ]
    means = ("token_mean", "sequence_mean")
    loss = sum(aggregate(each, inputs, how, 1) for each in losses for how in means)
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert inputs.logprobs.grad.isfinite().all()
    assert inputs.logprobs.grad[:, 1].tolist() == [0, 0]


def test_a_huge_ratio_stays_finite_in_single_precision():
    fields = {
        "proximal_logprobs": [[-500.0]],
        "reference_logprobs": [[500.0]],
        "advantages": [-1.0],
    }
    inputs = make_inputs(
        torch.tensor([[-0.1]], dtype=torch.float32, requires_grad=True),
        behaviour_logprobs=torch.tensor([[-900.0]], dtype=torch.float32),
        **{name: torch.tensor(field, dtype=torch.float32) for name, field in fields.items()},
    )
    assert clipped_loss(inputs, 2.0, 0.2, 0.2, None).loss.isfinite().all()
    assert clipped_loss(inputs, 2.0, 0.2, 0.2, None, sequences=True).loss.isfinite().all()
    assert cispo_loss(inputs, 2.0, 0.2, 4.0).loss.isfinite().all()
    assert kl_penalty(inputs, "k3", 2.0).isfinite().all()


# ---------------------------------------------------------------- critic


def test_value_loss_by_hand():
    inputs = make_inputs(
        [[0.0], [0.0]], values=[1.0, 3.0], old_values=[0.0, 3.0], returns=[2.0, 2.5]
    )
    assert float(value_loss(inputs, None)) == pytest.approx((1.0 + 0.25) / 2)


def test_value_clip_takes_the_worse_error():
    values = torch.tensor([1.0, 1.0], requires_grad=True)
    inputs = make_inputs([[0.0], [0.0]], values=values, old_values=[0.0, 0.0], returns=[2.0, -2.0])
    loss = value_loss(inputs, 0.5)
    # V clipped to 0.5: errors 1.5^2 against 1^2 (the clipped one is worse), 2.5^2 against 3^2.
    assert float(loss.detach()) == pytest.approx((2.25 + 9.0) / 2)
    loss.backward()
    assert values.grad.tolist() == pytest.approx([0.0, 3.0])


def test_a_critic_needs_its_inputs():
    with pytest.raises(ValueError, match="needs values and returns"):
        value_loss(make_inputs([[0.0]]), None)
    with pytest.raises(ValueError, match="needs old_values"):
        value_loss(make_inputs([[0.0]], values=[0.0], returns=[0.0]), 0.2)


# ---------------------------------------------------------------- legal tokens

# Log-probs of K = 4 tokens at each place under two policies; None stands for a token that is absent
# under both.
LOGPROB = st.floats(-20.0, 0.0)
PLACES = st.lists(
    st.lists(st.one_of(st.none(), st.tuples(LOGPROB, LOGPROB)), min_size=4, max_size=4),
    min_size=1,
    max_size=5,
)


def of_policy(places, which: int) -> torch.Tensor:
    """[len(places), 4], minus infinity where absent."""
    rows = [[-math.inf if one is None else one[which] for one in place] for place in places]
    return torch.tensor(rows, dtype=torch.float64)


def plain(measure, *policies) -> torch.Tensor:
    """``measure`` of categorical distributions over the tokens that are there; 0 without any."""
    found = []
    for rows in zip(*policies, strict=True):
        there = rows[0].isfinite()
        given_to = [Categorical(logits=row[there]) for row in rows]
        found.append(measure(*given_to) if there.any() else rows[0].new_zeros(()))
    return torch.stack(found)


def gradient(values: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Of a sum with different weights; 0 where nothing depends on ``leaf``."""
    total = values @ torch.linspace(1, 2, len(values), dtype=torch.float64)
    if not total.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad(total, leaf)
    return found


@settings(max_examples=40)
@given(PLACES)
@example([[None] * 4] * 2)  # gradients of nothing are zeros
def test_legal_entropy_and_kl_are_those_of_the_tokens_that_are_there(places):
    ours, theirs = of_policy(places, 0).requires_grad_(), of_policy(places, 1)
    for (found, known), expected in (
        (legal_entropy(ours), plain(Categorical.entropy, ours)),
        (legal_kl(ours, theirs), plain(kl_divergence, ours, theirs)),
    ):
        assert known.tolist() == [any(place) for place in places]
        assert (found >= -1e-12).all()
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
        slopes = gradient(found, ours), gradient(expected, ours)
        torch.testing.assert_close(*slopes, atol=1e-9, rtol=1e-7)


@settings(max_examples=40)
@given(PLACES, st.floats(-5, 0), st.floats(-5, 0))
def test_what_is_left_to_illegal_tokens_changes_neither_entropy_nor_kl(places, ours, theirs):
    one, other = of_policy(places, 0), of_policy(places, 1)
    torch.testing.assert_close(legal_entropy(one + ours)[0], legal_entropy(one)[0])
    torch.testing.assert_close(
        legal_kl(one + ours, other + theirs)[0], legal_kl(one, other)[0], atol=1e-12, rtol=1e-9
    )


def test_a_policy_has_no_kl_to_itself_and_no_gradient_of_it():
    logprobs = torch.tensor([[-0.1, -3.0, -math.inf], [-9.0, -1.0, -2.0]], requires_grad=True)
    found, _ = legal_kl(logprobs, logprobs.detach())
    found.sum().backward()
    assert found.tolist() == [0, 0]
    torch.testing.assert_close(logprobs.grad, torch.zeros(2, 3))
