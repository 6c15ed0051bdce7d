"""From scored decisions to a batch: which are learned from, with which reward, and when none."""

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import factories

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.advantages import episodes_of
from rlforge.config.training import GrpoConfig, KlConfig, PpoConfig, WindowGrpoConfig
from rlforge.continuous.config.continuous import ContinuousSettings
from rlforge.continuous.loop.batching import Scored, WindowFilter, largest_share


def gather(
    decisions,
    scores,
    *,
    rewards=None,
    algorithm=None,
    version=0,
    max_length=None,
    max_staleness=1,
    foreign=(),
    **settings,
):
    rules = WindowFilter(
        settings=ContinuousSettings(**{"min_selected": 1, **settings}),
        algorithm=make_algorithm(algorithm or WindowGrpoConfig(kl=KlConfig(to="previous")), 16),
        version=version,
        max_staleness=max_staleness,
        max_length=max_length,
        foreign=foreign,
        gamma=0.5,
    )
    rewards = rewards or [decision.reward or 0.0 for decision in decisions]
    return rules.build_window_batch(
        "w",
        [
            Scored(decision=decision, score=score, reward=reward)
            for decision, score, reward in zip(decisions, scores, rewards, strict=True)
        ],
    )


def test_decisions_above_the_threshold_become_steps():
    decisions = [factories.decision(i, reward=i / 10) for i in range(4)]
    found = gather(decisions, [0.5, 0.51, 0.2, 0.9])
    assert [one.info["decision_id"] for one in found.batch.samples] == ["agent-1-1", "agent-1-3"]
    assert found.counts["selected"] == 2
    last = found.batch.samples[1]
    assert (last.prompt_token_ids, last.token_ids, last.logprobs) == ((1, 2, 3), (9,), (-0.5,))
    assert (last.raw_reward, last.reward) == (0.3, 0.3)
    assert (last.policy_uid, last.env_id) == ("deploy-0", "market")


def test_agents_are_episodes_whose_turns_are_consecutive():
    decisions = [factories.decision(i, f"agent-{i % 2}", reward=i / 10) for i in range(6)]
    found = gather(decisions, [0.9, 0.9, 0.1, 0.9, 0.9, 0.9], algorithm=PpoConfig())
    assert found.batch.whole_episodes
    samples = found.batch.samples
    origins = [samples[where][0].origin for where in episodes_of(samples)]
    assert origins == ["w/agent-0", "w/agent-1"]
    assert [sample.turn_index for sample in samples] == [0, 1, 0, 1, 2]


def test_scripted_traders_are_never_learned_from():
    scripted = factories.decision(0, "noise-1", tokens=None, provider="scripted:noise")
    found = gather([scripted, factories.decision(1, reward=0.1), factories.decision(2)], [0.9] * 3)
    assert len(found.batch.samples) == found.counts["selected"] == 2


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"select_by": "score"}, [1]),
        ({"select_by": "reward", "threshold": 0.3}, [1, 2]),
        ({"select_by": "all"}, [0, 1, 2]),
        ({"select_by": "all", "train_on": "score"}, [0, 1]),
    ],
)
def test_select_by_chooses_the_decisions(settings, kept):
    decisions = [
        factories.decision(0, reward=0.1),
        factories.decision(1, reward=0.4),
        factories.decision(2),
    ]
    found = gather(
        [*decisions, factories.decision(9, reward=-1.0)], [0.2, 0.8, None, 0.0], **settings
    )
    assert found.counts["unscored"] == 1
    ids = [sample.info["decision_id"] for sample in found.batch.samples] if found.batch else []
    chosen = {f"agent-1-{i}" for i in kept}
    if settings["select_by"] == "all":
        chosen.add("agent-1-9")
    assert set(ids) == chosen or (not ids and found.counts["selected"] == len(kept))


@pytest.mark.parametrize(
    ("train_on", "expected"), [("reward", 0.4), ("score", 0.9), ("mix", 0.75 * 0.4 + 0.25 * 0.8)]
)
def test_train_on_chooses_the_reward(train_on, expected):
    decisions = [factories.decision(0, reward=0.4), factories.decision(1, reward=-0.5)]
    found = gather(decisions, [0.9, 0.6], train_on=train_on, score_weight=0.25)
    assert found.batch.samples[0].reward == pytest.approx(expected)
    assert found.batch.samples[0].raw_reward == 0.4


def test_train_on_return_sums_the_agents_later_rewards_selected_or_not():
    decisions = [
        factories.decision(0, reward=0.4),
        factories.decision(1, agent="agent-2", reward=0.1),
        factories.decision(2, reward=-0.5),
        factories.decision(3, reward=0.2),
    ]
    found = gather(decisions, [None] * 4, train_on="return", select_by="reward", threshold=0)
    trained = {sample.info["decision_id"]: sample.reward for sample in found.batch.samples}
    assert trained == {
        "agent-1-0": pytest.approx(0.4 - 0.5 * 0.5 + 0.25 * 0.2),
        "agent-1-3": 0.2,
        "agent-2-1": 0.1,
    }
    assert [sample.raw_reward for sample in found.batch.samples] == [0.4, 0.2, 0.1]


def test_old_and_overlong_decisions_are_left_out_and_counted():
    decisions = [
        factories.decision(0, reward=0.1, version=5),
        factories.decision(1, reward=0.2, version=4),
        factories.decision(2, reward=0.3, version=3),
        factories.decision(3, reward=0.4, version=5, prompt=range(20)),
    ]
    found = gather(decisions, [0.9] * 4, version=5, max_staleness=1, max_length=20)
    assert [sample.policy_version for sample in found.batch.samples] == [5, 4]
    assert found.counts == {
        "selected": 4,
        "trained_decisions": 2,
        "refused": 0,
        "unscored": 0,
        "stale": 1,
        "too_long": 1,
        "crowded": 0,
    }


def test_an_agent_has_at_most_its_share_of_what_is_learned_from():
    """One reports a thousand good outcomes, and nine others two each."""
    decisions = [factories.decision(n, "stuffer", reward=1.0) for n in range(1000)]
    decisions += [
        factories.decision(n, f"agent-{a}", reward=n - 0.5) for a in range(9) for n in (0, 1)
    ]
    found = gather(decisions, [None] * len(decisions), select_by="all", max_agent_share=0.25)
    agents = Counter(sample.info["agent_id"] for sample in found.batch.samples)
    assert agents["stuffer"] == 6
    assert sum(agents.values()) == 6 + 18
    assert found.counts["crowded"] == 994
    again = gather(decisions[::-1], [None] * len(decisions), select_by="all", max_agent_share=0.25)
    assert again.batch is not None
    chosen, repeated = (
        {sample.info["decision_id"] for sample in one.batch.samples}
        for one in (found, again)
        if one.batch
    )
    assert chosen == repeated
    whole = gather(decisions, [None] * len(decisions), select_by="all")
    assert len(whole.batch.samples) == len(decisions)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.floats(0.05, 1.0, allow_nan=False))
def test_the_largest_share_is_kept_by_all_and_could_not_be_larger(counts, share):
    most = largest_share(counts, share)

    def fits(each):
        kept = [min(count, each) for count in counts]
        return max(kept) <= share * sum(kept)

    assert most == 0 or fits(most)
    assert not any(fits(more) for more in range(most + 1, max(counts) + 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"decisions": [factories.decision(i, f"agent-{i}", reward=0.2) for i in range(6)]},
            "all 6 decisions have the same reward: there is no gradient",
        ),
        ({"train_on": "score"}, "all 6 decisions have the same score: there is no gradient"),
        # GRPO compares agents; a single one is equal to the mean of all.
        (
            {"algorithm": GrpoConfig()},
            "every advantage is 0: no decision differs from those that it is compared with",
        ),
        (
            {"version": 9},
            "no selected decision can be learned from: 6 are of more than "
            "continuous.max_staleness=1 versions ago",
        ),
        (
            {"scores": [0.9] * 4 + [0.1, None], "min_selected": 5},
            "4 of the model's 6 decisions are selected, and continuous.min_selected is 5",
        ),
        (
            {"max_agent_share": 0.5},
            "no selected decision can be learned from: "
            "there are too few agents for continuous.max_agent_share=0.5",
        ),
        (
            {"decisions": [factories.decision(tokens=None)], "scores": [0.9]},
            "no decision of the trained model is in it",
        ),
    ],
)
def test_a_window_that_trains_nothing_says_why(changes, reason):
    six = [factories.decision(i, reward=i / 10) for i in range(6)]
    found = gather(**{"decisions": six, "scores": [0.9] * 6, **changes})
    assert found.batch is None
    assert found.reason == reason


def test_group_relative_advantages_are_zero_if_rewards_differ_between_agents_only():
    decisions = [factories.decision(i, f"agent-{i % 2}", reward=float(i % 2)) for i in range(4)]
    config = WindowGrpoConfig(advantage="group_relative")
    assert gather(decisions, [0.9] * 4, algorithm=config).batch is None
    assert gather(decisions, [0.9] * 4).batch is not None


@pytest.mark.parametrize("train_on", ["reward", "score"])
def test_answers_that_are_no_action_are_always_learned_from(train_on):
    """Otherwise the filter would hide from the model that the market refuses such answers."""
    good = [factories.decision(i, reward=i / 10) for i in range(2)]
    action = {"type": "SELL_SHARES", "problem": "you have no shares"}
    wrong = dataclasses.replace(factories.decision(2, reward=-1.0), action=action)
    found = gather([*good, wrong], [0.9, 0.8, None], train_on=train_on)
    assert [sample.reward for sample in found.batch.samples][-1] == -1.0
    assert (found.counts["selected"], found.counts["refused"]) == (2, 1)
    as_others = gather([*good, wrong], [0.9, 0.8, 0.1], train_on=train_on, invalid_reward=None)
    assert len(as_others.batch.samples) == 2


def test_decisions_of_a_version_from_elsewhere_are_not_learned_from():
    decisions = [factories.decision(i, reward=i / 10, version=1 + i % 2) for i in range(4)]
    found = gather(decisions, [0.9] * 4, foreign=["deploy-2"], version=2)
    assert {sample.policy_uid for sample in found.batch.samples} == {"deploy-1"}
    none = gather(decisions, [0.9] * 4, foreign=["deploy-1", "deploy-2"], version=2)
    assert none.batch is None
    assert none.reason.startswith(
        "its decisions are of deploy-1, deploy-2, deployed from elsewhere"
    )
    assert "rlforge rollback" in none.reason


def test_normalised_rewards_are_learned_and_raw_ones_kept():
    decisions = [factories.decision(0, reward=1.0), factories.decision(1, reward=3.0)]
    found = gather(decisions, [0.9, 0.9], rewards=[-1.0, 1.0], algorithm=WindowGrpoConfig())
    assert [(s.raw_reward, s.reward) for s in found.batch.samples] == [(1.0, -1.0), (3.0, 1.0)]
    assert math.isclose(sum(sample.reward for sample in found.batch.samples), 0.0)
