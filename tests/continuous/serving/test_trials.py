"""Comparisons of versions against their formulas, their error rates, and the places of users."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlforge.continuous.config.serving import AbTestConfig
from rlforge.continuous.serving import trials
from rlforge.continuous.serving.records import Deployment, PairedOutcomes
from rlforge.continuous.serving.trials import MixtureSprt, Trial, compare, mixture_p_value, place

# ---------------------------------------------------------------- non-inferiority

TESTS = ("t", "wilcoxon", "sign")


def _outcomes(candidate, current):
    return PairedOutcomes(candidate=tuple(candidate), current=tuple(current))


def _games(draw, number):
    """Games of two equal versions that share half of their luck."""
    luck = draw.uniform(size=number)
    other = np.where(draw.uniform(size=number) < 0.5, luck, draw.uniform(size=number))
    return _outcomes(np.where(other < 0.5, 1.0, -1.0), np.where(luck < 0.5, 1.0, -1.0))


@pytest.mark.parametrize("test", TESTS)
def test_symmetric_noise_around_the_margin_passes_with_probability_alpha_at_most(test):
    draw, runs = np.random.default_rng(1), 500
    games = (_outcomes(draw.standard_t(3, size=60) - 0.25, np.zeros(60)) for _ in range(runs))
    passed = sum(compare(one, margin=0.25, alpha=0.05, test=test).passed for one in games)
    assert passed / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_an_equal_version_passes_with_enough_games():
    draw = np.random.default_rng(2)
    passed = [
        compare(_games(draw, 200), margin=0.25, alpha=0.05, test="t").passed for _ in range(200)
    ]
    assert np.mean(passed) > 0.85


def test_the_p_value_is_that_of_students_distribution():
    outcomes = _outcomes([1.0, 0.5, 0.0, 2.0], [0.5, 1.0, 0.0, 1.0])
    result = compare(outcomes, margin=0.1, alpha=0.05, test="t")
    difference = np.array([0.5, -0.5, 0.0, 1.0])
    statistic = (difference.mean() + 0.1) / (difference.std(ddof=1) / 2)
    assert result.p_value == pytest.approx(stats.t.sf(statistic, df=3))
    assert result.difference == pytest.approx(0.25)


@given(difference=st.floats(-1, 1), margin=st.floats(0, 1), items=st.integers(1, 5))
def test_equal_differences_are_compared_with_the_margin(difference, margin, items):
    outcomes = _outcomes([difference] * items, [0.0] * items)
    for test in TESTS:
        result = compare(outcomes, margin=margin, alpha=0.05, test=test)
        assert result.passed == (difference + margin >= 0)


def test_no_items_do_not_pass_and_odd_ones_and_unknown_tests_are_refused():
    assert not compare(_outcomes([], []), margin=1.0, alpha=0.5, test="sign").passed
    with pytest.raises(ValueError, match="finite"):
        compare(_outcomes([math.nan], [0.0]), margin=0.1, alpha=0.05, test="t")
    with pytest.raises(ValueError, match="finite"):
        MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=1).add("new", math.nan, stage="1")
    with pytest.raises(ValueError, match="no test is named wilcoxn; there are t, wil"):
        compare(_outcomes([1.0, 0.0], [0.0, 0.0]), margin=0, alpha=0.05, test="wilcoxn")


# ---------------------------------------------------------------- the sequential test


@given(difference=st.floats(-0.5, 0.5), variance=st.floats(1e-3, 0.2), effect=st.floats(0.05, 0.5))
def test_the_p_value_is_one_over_the_averaged_likelihood_ratio(difference, variance, effect):
    # A difference drawn from N(0, effect²) and seen through N(·, variance) is N(0, their sum).
    averaged = stats.norm.logpdf(difference, 0, math.sqrt(variance + effect**2))
    ratio = math.exp(averaged - stats.norm.logpdf(difference, 0, math.sqrt(variance)))
    expected = pytest.approx(min(1, 1 / ratio), rel=1e-6)
    assert mixture_p_value(difference, variance, effect) == expected


def test_the_difference_is_that_within_stages_whatever_the_level_and_the_share():
    test, draw = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=10), np.random.default_rng(2)
    for stage, (level, share) in enumerate([(0.0, 0.2), (5.0, 0.5), (-3.0, 0.8)]):
        for user in range(100):
            arm = "new" if user < 100 * share else "current"
            reward = level + 0.25 * (arm == "new") + draw.normal(0, 1e-3)
            test.add(arm, reward, stage=str(stage), cluster=f"{user}/{stage}")
    test.look()
    assert test.difference == pytest.approx(0.25, abs=1e-3)


def test_the_variance_is_that_of_clusters(monkeypatch):
    """One stage, g clusters of equal size a side: that of the difference of cluster means."""
    seen = []

    def noted(difference, variance, effect):
        seen.append(variance)
        return mixture_p_value(difference, variance, effect)

    monkeypatch.setattr(trials, "mixture_p_value", noted)
    draw = np.random.default_rng(3)
    test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=10)
    means = {"current": [], "new": []}
    for arm, clusters in (("current", 40), ("new", 25)):
        for cluster in range(clusters):
            rewards = draw.normal(draw.normal(0, 0.2), 0.4, size=6)
            means[arm].append(rewards.mean())
            for reward in rewards:
                test.add(arm, reward, stage="1", cluster=f"{arm}{cluster}")
    test.look()
    # Each side's variance of the mean of its g clusters is sum (m - mean)^2 / (g - 1) / g.
    plain = sum(np.var(own, ddof=1) / len(own) for own in means.values())
    sides = map(np.array, means.values())
    influences = np.concatenate(
        [(own - own.mean()) / math.sqrt(len(own) * (len(own) - 1)) for own in sides]
    )
    effective = (influences**2).sum() ** 2 / (influences**4).sum()
    assert seen[-1] == pytest.approx(plain * effective / (effective - 2))


def test_a_user_counts_once_in_a_stage_however_many_the_outcomes():
    test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=10)
    for user in range(20):
        for arm, reward in (("current", 0.1 * (user % 2)), ("new", 0.5 + 0.1 * (user % 3))):
            test.add(arm, reward, stage="1", cluster=f"{arm}{user}")
    for _ in range(1000):
        test.add("new", -1.0, stage="1", cluster="new0")
    test.look()
    # The mean of user 0 becomes (0.5 - 1000) / 1001, one of twenty.
    new = [0.5 + 0.1 * (user % 3) for user in range(1, 20)] + [(0.5 - 1000) / 1001]
    assert test.difference == pytest.approx(np.mean(new) - 0.05)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_one_client_cannot_decide_a_trial_of_equal_versions(share):
    """A ``share`` of the outcomes is its own: 1 for the new version, -1 for the current one.

    Were it another cluster in each stage, the difference would be four standard errors or more.
    """
    for seed in range(5):
        draw = np.random.default_rng(seed)
        test = MixtureSprt(alpha=0.05, effect=0.03, min_outcomes=50)
        for number in range(5000):
            arm = "new" if draw.uniform() < 0.5 else "current"
            lies = draw.uniform() < share
            test.add(
                arm,
                (1.0 if arm == "new" else -1.0) if lies else draw.normal(0.3, 0.35),
                stage=str(number // 100),
                cluster="liar" if lies else f"user {number}",
            )
        test.look()
        assert test.verdict is None


@pytest.mark.parametrize("persistent", [False, True])
def test_equal_versions_are_told_apart_rarely_by_dependent_drifting_outcomes(persistent):
    """Agents alike within themselves, levels that drift, and a share that grows."""
    false = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        test = MixtureSprt(alpha=0.05, effect=0.03, min_outcomes=50)
        places, own = draw.uniform(size=24), draw.normal(0, 0.08, size=24)
        for episode in range(20):
            level, share = draw.normal(0, 0.12), min(0.5, 0.1 + 0.05 * episode)
            own = own if persistent else draw.normal(0, 0.08, size=24)
            rewards = level + own + draw.normal(0, 0.35, size=(12, 24))
            for row in rewards:
                for agent, reward in enumerate(row):
                    arm = "new" if places[agent] < share else "current"
                    cluster = str(agent) if persistent else f"{agent}/{episode}"
                    test.add(arm, float(reward), stage=str(episode), cluster=cluster)
        test.look()
        false += test.verdict is not None
    assert false <= 4  # 3 expected at most; the test is conservative


def test_outcomes_without_spread_decide_when_they_differ():
    test = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=3)
    for _ in range(3):
        test.add("current", 0.0, stage="1")
        test.add("new", 1.0, stage="1")
    assert test.verdict is None  # the stage goes on
    test.look()
    assert test.verdict == "new_is_better"
    same = MixtureSprt(alpha=0.05, effect=0.1, min_outcomes=3)
    for number in range(100):
        same.add("current", 1.0, stage=str(number // 10))
        same.add("new", 1.0, stage=str(number // 10))
    assert same.verdict is None
    assert same.p_value == 1.0


# ---------------------------------------------------------------- trials

NEW = Deployment(number=3, phase="trial", strategy="ab_test", source="somewhere")


def _trial(**settings):
    return Trial(NEW, AbTestConfig(**settings))


def test_places_are_spread_evenly_and_independently_in_two_trials():
    places = [place(f"agent-{index}", "deploy-1") for index in range(4000)]
    counts, _ = np.histogram(places, bins=10, range=(0, 1))
    assert counts.min() > 300
    assert counts.max() < 500
    others = [place(f"agent-{index}", "deploy-2") for index in range(4000)]
    assert abs(np.corrcoef(places, others)[0, 1]) < 0.07  # over four standard deviations


@given(user=st.text(min_size=1))
def test_a_user_changes_to_the_new_version_once_and_never_back(user):
    trial = _trial(shares=[0.2, 0.5, 0.9], step_outcomes=10)
    arms = []
    for _ in range(40):
        arms.append(trial.arm(user))
        trial.add("new", 0.0)
    assert arms == sorted(arms)  # "current" comes before "new"
    expected = ["new" if place(user, NEW.uid) < share else "current" for share in (0.2, 0.5, 0.9)]
    assert [arms[0], arms[10], arms[20]] == expected


def test_a_trial_goes_on_where_no_agent_is_among_the_first_share():
    """Of the 16 agents of a default run, deploy-2 gets none at first."""
    trial = Trial(dataclasses.replace(NEW, number=2), AbTestConfig())
    agents = [f"agent-{number}" for number in range(1, 17)]
    assert {trial.arm(agent) for agent in agents} == {"current"}
    draw = np.random.default_rng(0)
    for episode in range(100):
        for agent in agents * 24:
            if trial.ending is not None:
                break
            arm = trial.arm(agent)
            reward = draw.normal(0.2 * (arm == "new"), 0.35)
            trial.add(arm, reward, cluster=f"{agent}/{episode}", stage=str(episode))
    assert trial.ending == "promote"
    assert trial.test.outcomes < 10_000


@given(number=st.integers(0, 10**6), agents=st.integers(1, 40))
def test_every_trial_ends_whatever_the_places_of_its_agents(number, agents):
    config = AbTestConfig(step_outcomes=20, max_outcomes=100)
    trial, shares = Trial(dataclasses.replace(NEW, number=number), config), set()
    outcomes = 0
    while trial.ending is None:
        agent = f"agent-{outcomes % agents + 1}"
        shares.add(trial.share)
        trial.add(trial.arm(agent), outcomes % 2, cluster=agent, stage=str(outcomes // 40))
        outcomes += 1
    assert outcomes <= 100
    assert outcomes < 100 or shares == {0.1, 0.25, 0.5}


def test_requests_without_a_user_are_divided_by_the_share():
    trial = _trial(shares=[0.5])
    arms = [trial.arm(None) for _ in range(400)]
    assert 120 < arms.count("new") < 280


def test_an_undecided_trial_ends_as_configured():
    for undecided, ending in (("keep", "roll_back"), ("promote", "promote")):
        trial = _trial(max_outcomes=4, undecided=undecided)
        for index in range(4):
            assert trial.ending is None
            trial.add("new", index % 2)
        assert trial.ending == ending
