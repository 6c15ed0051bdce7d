import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.ruler.agreement import agent_means, agreement, examine
from rlforge.ruler.base import DecisionScores
from rlforge.trajectories.records import Decision


def test_the_same_order_and_the_opposite_one():
    same = agreement([0.1, 0.5, 0.9], [-1.0, 0.0, 3.0])
    assert (same.kendall_tau, same.pairwise_accuracy, same.pairs) == (1.0, 1.0, 3)
    other = agreement([0.9, 0.5, 0.1], [-1.0, 0.0, 3.0])
    assert (other.kendall_tau, other.pairwise_accuracy) == (-1.0, 0.0)


def test_equal_scores_count_half_and_equal_truths_not_at_all():
    found = agreement([0.2, 0.2, 0.9], [0.0, 1.0, 1.0])
    assert found.pairwise_accuracy == 0.75
    assert found.pairs == 2
    within = agreement([0.2, 0.2, 0.9], [0.0, 0.04, 1.0], margin=0.05)
    assert (within.pairwise_accuracy, within.pairs) == (1.0, 2)


@pytest.mark.parametrize("scores", [[], [0.3], [0.3, 0.4, 0.5]])
def test_without_differences_there_is_no_figure(scores):
    found = agreement(scores, [1.0] * len(scores))
    assert (found.kendall_tau, found.pairwise_accuracy, found.pairs) == (None, None, 0)


def test_equal_scores_have_no_tau():
    found = agreement([0.5, 0.5], [0.0, 1.0])
    assert (found.kendall_tau, found.pairwise_accuracy) == (None, 0.5)


def test_unscored_decisions_and_unknown_rewards_are_left_out():
    found = agreement([0.1, None, 0.9, 0.5], [0.0, 5.0, 1.0, None])
    assert (found.items, found.pairs, found.pairwise_accuracy) == (2, 1, 1.0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_agreement_equals_a_count_over_all_pairs(rows):
    """Kendall's τ-b by its definition, and accuracy by going through all pairs."""
    found = agreement([x / 4 for x, _ in rows], [float(y) for _, y in rows])
    gaps = [
        (rows[i][0] - rows[j][0], rows[i][1] - rows[j][1])
        for i in range(len(rows))
        for j in range(i)
    ]
    products = [math.copysign(1, x * y) if x * y else 0 for x, y in gaps]
    by_truth = [p for p, (_, y) in zip(products, gaps, strict=True) if y]
    if not by_truth:
        assert found.pairwise_accuracy is None
        return
    assert found.pairwise_accuracy == pytest.approx(
        sum(p / 2 + 0.5 for p in by_truth) / len(by_truth)
    )
    untied = sum(bool(x) for x, _ in gaps) * sum(bool(y) for _, y in gaps)
    if untied:
        assert found.kendall_tau == pytest.approx(sum(products) / math.sqrt(untied))
    else:
        assert found.kendall_tau is None


class Oracle:
    """Knows each agent's skill; keeps what it was shown."""

    def __init__(self, skill):
        self.skill, self.shown = skill, list[Decision]()

    async def score(self, decisions):
        self.shown += decisions
        values = tuple(self.skill.get(decision.agent_id) for decision in decisions)
        return DecisionScores(values=values, explanations=("",) * len(values), metrics={})

    def learn(self, windows):
        return {}

    async def close(self): ...


async def test_outcomes_are_hidden_from_the_scorer(make_window, skill):
    oracle = Oracle(skill)
    report = await examine(oracle, [make_window(0), make_window(1)], skill=skill)
    assert len(oracle.shown) == 160
    assert not any(d.reward or d.next_state or d.result for d in oracle.shown)
    assert report.agents.kendall_tau == report.agents.pairwise_accuracy == 1.0
    assert report.agents.pairs == 6
    assert report.agent_scores == pytest.approx(skill)
    assert set(report.metrics()) == {
        "kendall_tau",
        "pairwise_accuracy",
        "skill_kendall_tau",
        "skill_pairwise_accuracy",
        "agreement_pairs",
        "agreement_unscored",
    }


async def test_outcomes_are_shown_when_asked_for(make_window, skill):
    oracle = Oracle(skill)
    await examine(oracle, [make_window(0)], hide_outcomes=False)
    assert all(decision.complete for decision in oracle.shown)


async def test_decisions_are_compared_within_their_window_only(make_window, skill):
    windows = [make_window(n) for n in range(3)]
    alone = [(await examine(Oracle(skill), [w])).decisions for w in windows]
    together = (await examine(Oracle(skill), windows)).decisions
    assert together.pairs == sum(one.pairs for one in alone)
    mean = sum((one.pairwise_accuracy or 0) * one.pairs for one in alone) / together.pairs
    assert together.pairwise_accuracy == pytest.approx(mean)


async def test_unscored_decisions_are_counted(make_window, skill):
    oracle = Oracle({name: value for name, value in skill.items() if name != "noise"})
    report = await examine(oracle, [make_window(0)], skill=skill)
    assert report.unscored == 20
    assert "noise" not in report.agent_scores


def test_agents_without_a_score_have_no_mean(make_window):
    decisions = make_window(0, each=1).decisions
    assert agent_means(decisions, [0.5, None, 0.25, None]) == {"expert": 0.5, "fair": 0.25}
