import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlforge.continuous.decisions.records import Decision
from rlforge.continuous.ruler.agreement import agent_means, agreement, examine
from rlforge.continuous.ruler.base import DecisionScores


@pytest.mark.parametrize(
    ("scores", "truths", "margin", "tau", "accuracy", "pairs"),
    [
        ([0.1, 0.5, 0.9], [-1.0, 0.0, 3.0], 0.0, 1.0, 1.0, 3),
        ([0.9, 0.5, 0.1], [-1.0, 0.0, 3.0], 0.0, -1.0, 0.0, 3),
        # Equal scores count half and have no tau, equal truths count not at all.
        ([0.2, 0.2, 0.9], [0.0, 1.0, 1.0], 0.0, 0.5, 0.75, 2),
        ([0.2, 0.2, 0.9], [0.0, 0.04, 1.0], 0.05, (2 / 3) ** 0.5, 1.0, 2),
        ([0.5, 0.5], [0.0, 1.0], 0.0, None, 0.5, 1),
        ([], [], 0.0, None, None, 0),
        ([0.3], [1.0], 0.0, None, None, 0),
        ([0.3, 0.4, 0.5], [1.0] * 3, 0.0, None, None, 0),
        # What has no score or no truth is left out.
        ([0.1, None, 0.9, 0.5], [0.0, 5.0, 1.0, None], 0.0, 1.0, 1.0, 1),
    ],
)
def test_agreement_by_hand(scores, truths, margin, tau, accuracy, pairs):
    found = agreement(scores, truths, margin=margin)
    assert (found.pairwise_accuracy, found.pairs) == (accuracy, pairs)
    assert found.kendall_tau == pytest.approx(tau)
    known = [each for each in zip(scores, truths, strict=True) if None not in each]
    assert found.items == len(known)


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


async def test_outcomes_are_hidden_from_the_scorer_unless_asked_for(make_window, skill):
    oracle = Oracle(skill)
    report = await examine(oracle, [make_window(0), make_window(1)], skill=skill)
    assert len(oracle.shown) == 160
    assert not any(d.reward or d.next_state or d.result for d in oracle.shown)
    assert report.agents.kendall_tau == report.agents.pairwise_accuracy == 1.0
    assert report.agents.pairs == 6
    assert report.agent_scores == pytest.approx(skill)
    measures = ("kendall_tau", "pairwise_accuracy")
    both = {*measures, *(f"skill_{measure}" for measure in measures)}
    assert set(report.metrics()) == {*both, "agreement_pairs", "agreement_unscored"}
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
    few = make_window(0, each=1).decisions
    assert agent_means(few, [0.5, None, 0.25, None]) == {"expert": 0.5, "fair": 0.25}
