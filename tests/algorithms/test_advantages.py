"""Advantages against hand-worked numbers and brute force."""

import dataclasses
import itertools
import math
import statistics
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.parts import make_step

from rlforge.algorithms import make_algorithm
from rlforge.algorithms.advantages import (
    episodes_of,
    explained_variance,
    generalized_advantages,
    has_signal,
    in_groups,
    leave_one_out,
    max_rl,
    standardize,
    turn_rewards,
)
from rlforge.algorithms.policy_gradient import Reinforce
from rlforge.config.compose import compose
from rlforge.config.training import ReinforceConfig
from rlforge.errors import RunError

numbers = st.floats(-10, 10)


def test_standardize_by_hand():
    assert standardize([1, 2, 6], divide=False) == [-2, -1, 3]
    std = (14 / 3) ** 0.5
    assert standardize([1, 2, 6]) == pytest.approx([-2 / std, -1 / std, 3 / std])


@pytest.mark.parametrize("divide", [True, False])
def test_equal_values_standardize_to_exactly_zero(divide):
    assert standardize([0.1 + 0.2, 0.3, 0.3], divide) == [0, 0, 0]
    assert standardize([], divide) == []


@given(st.lists(numbers, min_size=2, max_size=20))
def test_standardized_values_have_mean_zero_and_deviation_one(values):
    result = standardize(values)
    assert statistics.fmean(result) == pytest.approx(0, abs=1e-5)
    if any(result):
        assert statistics.pstdev(result) == pytest.approx(1, abs=1e-5)


# ---------------------------------------------------------------- GRPO


def test_advantages_are_relative_to_group_and_role():
    samples = [
        make_step("g1", 1.0, group_id="x", player_id=0),
        make_step("g1", -1.0, group_id="x", player_id=1),
        make_step("g2", -1.0, group_id="x", player_id=0),
        make_step("g2", -1.0, group_id="x", player_id=1),
        make_step("g3", 5.0, group_id="y", player_id=0),
        make_step("g4", 9.0, group_id="y", player_id=0),
    ]
    relative = in_groups(samples, standardize)
    assert relative.advantages == (1, 0, -1, 0, -1, 1)
    assert relative.metrics == {"groups": 3, "constant_groups": 1}
    assert in_groups(samples, partial(standardize, divide=False)).advantages == (1, 0, -1, 0, -2, 2)


def test_an_episode_has_one_advantage_however_many_steps():
    samples = [
        make_step("g1", 1.0, 0, False, group_id="x"),
        make_step("g1", 2.0, 1, True, group_id="x"),
        make_step("g2", 0.5, 0, True, group_id="x"),
    ]
    assert in_groups(samples, partial(standardize, divide=False)).advantages == (0.5, 0.5, -0.5)


def test_steps_without_a_group_are_refused():
    with pytest.raises(RunError, match=r"game g belongs to no group.*buffer\.kind=episode"):
        in_groups([make_step("g")], standardize)


def test_scores_that_a_formula_refuses_are_reported_with_their_games():
    samples = [make_step("g1", 1.0, group_id="x"), make_step("g2", -0.5, group_id="x")]
    with pytest.raises(RunError, match=r"games g1, g2, player 0: a score is -0\.5, and max_rl"):
        in_groups(samples, max_rl)


@given(st.lists(numbers, min_size=2, max_size=10))
def test_leave_one_out_subtracts_the_mean_of_the_others(scores):
    expected = [
        score - statistics.fmean(scores[:i] + scores[i + 1 :]) for i, score in enumerate(scores)
    ]
    assert leave_one_out(scores) == pytest.approx(expected, abs=1e-7)


def test_a_game_without_others_has_no_advantage():
    assert leave_one_out([3.0]) == [0]
    assert max_rl([3.0]) == [0]


def test_max_rl_weighs_rare_successes_more():
    assert max_rl([1, 0, 0, 0]) == [3, -1, -1, -1]
    assert max_rl([1, 1, 1, 0]) == pytest.approx([1 / 3, 1 / 3, 1 / 3, -1])
    assert max_rl([0.0, 2.0]) == [-1, 1]
    assert max_rl([0.0, 0.0]) == max_rl([0.3, 0.1 + 0.2]) == [0, 0]


def expected_gradient(formula, p, n):
    """The exact mean of (1 / n) sum_i A_i d/dp log P(R_i), over all outcomes of n coins."""
    total = 0.0
    for scores in itertools.product([0.0, 1.0], repeat=n):
        probability = math.prod(p if r else 1 - p for r in scores)
        slopes = [1 / p if r else -1 / (1 - p) for r in scores]
        total += probability * sum(a * s for a, s in zip(formula(scores), slopes, strict=True)) / n
    return total


@pytest.mark.parametrize("p", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("n", [2, 5])
def test_gradients_are_those_of_the_documented_objectives(p, n):
    # d/dp of p, and of the first n - 1 terms of log p.
    assert expected_gradient(leave_one_out, p, n) == pytest.approx(1.0)
    likelihood = sum((1 - p) ** (k - 1) for k in range(1, n))
    assert expected_gradient(max_rl, p, n) == pytest.approx(likelihood)


# ---------------------------------------------------------------- turns of an episode


def test_whole_episodes_are_found():
    samples = [
        make_step("a", turn_index=0, last_turn=False),
        make_step("a", turn_index=1),
        make_step("a", player_id=1),
        make_step("b"),
    ]
    assert list(episodes_of(samples)) == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert list(episodes_of([])) == []


@pytest.mark.parametrize(
    "turns",
    [
        [("a", 0, False)],
        [("a", 1, True)],
        [("a", 0, False), ("b", 0, True)],
        [("a", 0, False), ("b", 1, True)],
        [("a", 0, False), ("a", 2, True)],
    ],
)
def test_broken_episodes_are_refused(turns):
    samples = [make_step(game, turn_index=index, last_turn=last) for game, index, last in turns]
    with pytest.raises(RunError, match=r"episode is not whole.*buffer\.kind=episode"):
        list(episodes_of(samples))


def test_the_outcome_is_paid_once_and_feedback_where_it_arose():
    samples = [
        make_step(reward=1.5, outcome_reward=1.0, turn_index=0, last_turn=False),
        make_step(reward=0.5, outcome_reward=1.0, turn_index=1, last_turn=False),
        make_step(reward=1.25, outcome_reward=1.0, turn_index=2),
    ]
    assert turn_rewards(samples) == [0.5, -0.5, 1.25]


def test_gae_by_hand():
    # delta_1 = 1 - 0.5 = 0.5; delta_0 = 0.9 * 0.5 - 0.2 = 0.25; A_0 = 0.25 + 0.9 * 0.8 * 0.5
    assert generalized_advantages([0, 1], [0.2, 0.5], 0.9, 0.8) == pytest.approx([0.61, 0.5])


turns = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8)
rates = st.floats(0, 1)


@given(turns, rates, rates | st.just(1.0))
def test_gae_is_the_weighted_sum_of_n_step_advantages(episode, gamma, lam):
    """Brute force of eq. 16: (1 - lam) sum_n lam^(n-1) A^(n), the rest of the mass on the last."""
    rewards, values = zip(*episode, strict=True)
    length = len(episode)

    def n_step(t, n):
        end = min(t + n, length)
        bootstrap = gamma**n * values[end] if end < length else 0.0
        return sum(gamma ** (k - t) * rewards[k] for k in range(t, end)) + bootstrap - values[t]

    expected = []
    for t in range(length):
        left = length - t
        weighted = sum((1 - lam) * lam ** (n - 1) * n_step(t, n) for n in range(1, left))
        expected.append(weighted + lam ** (left - 1) * n_step(t, left))
    assert generalized_advantages(rewards, values, gamma, lam) == pytest.approx(expected, abs=1e-9)


def test_explained_variance():
    assert explained_variance([1, 2, 3], [1, 2, 3]) == 1
    assert explained_variance([5, 5, 5], [1, 2, 3]) == pytest.approx(0)
    assert explained_variance([3, 2, 1], [1, 2, 3]) == pytest.approx(-3)
    assert explained_variance([1, 2], [4, 4]) == 0


def signal_of(name, samples, *overrides):
    """Whether the algorithm of that option sees a signal; critics guess as they like."""
    algorithm = make_algorithm(compose([f"algorithm={name}", *overrides]).config.algorithm, 8)
    guesses = [0.1 * index for index in range(len(samples))] if algorithm.needs_values else None
    return has_signal(algorithm, samples, algorithm.targets(samples, guesses).advantages)


def games(*rewards, raw=None, feedback=0.0):
    """One game of two turns for each outcome, all of a group."""
    return [
        make_step(
            f"game-{number}",
            reward + feedback,
            turn,
            last_turn=turn == 1,
            group_id="group",
            raw_reward=reward if raw is None else raw,
            outcome_reward=reward,
        )
        for number, reward in enumerate(rewards)
        for turn in range(2)
    ]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", ["grpo", "rloo", "ppo", "a2c", "gspo"])
def test_games_that_end_alike_have_no_signal_and_others_have(name):
    buffer = "buffer=episode"
    for penalty in ("algorithm.kl.coef=0.1", "algorithm.entropy_coef=0.1"):
        assert not signal_of(name, games(-1.0, -1.0, -1.0), buffer, penalty)
    assert signal_of(name, games(-1.0, -1.0, 0.0), buffer)


def test_equal_rewards_are_a_signal_where_nothing_is_subtracted_from_them():
    assert signal_of("reinforce", games(1.0, 1.0))
    assert not signal_of("reinforce", games(0.0, 0.0, raw=1.0))


def lagging(*rewards: float, raw: tuple[float, ...]):
    """Games whose rewards have a running mean of their seat subtracted."""
    return [
        dataclasses.replace(one, raw_reward=before, before_baseline=float(before))
        for one, before in zip(games(*rewards), [x for x in raw for _ in range(2)], strict=True)
    ]


@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_what_a_running_mean_lags_behind_equal_rewards_is_no_signal(name):
    assert not signal_of(name, lagging(1.0, 0.95, 0.9025, raw=(1, 1, 1)), "buffer=episode")
    assert signal_of(name, lagging(1.0, -0.95, 0.9025, raw=(1, -1, 1)), "buffer=episode")


def test_a_running_mean_of_each_seat_leaves_no_signal_where_the_first_always_wins():
    won = [*lagging(1.0, 0.95, raw=(1, 1))]
    lost = [
        dataclasses.replace(one, origin=f"{one.origin}b", player_id=1)
        for one in lagging(-1.0, -0.95, raw=(-1, -1))
    ]
    assert not signal_of("ppo", won + lost)


def test_rewards_that_tell_equal_outcomes_apart_are_a_signal():
    for name in ("reinforce", "ppo"):
        assert signal_of(name, games(0.2, 0.7, raw=0.0), "buffer=episode")


def test_a_critic_has_a_signal_in_feedback_on_turns_and_none_in_baselines_of_seats():
    given = ("ppo", games(-1.0, -1.0, feedback=0.5), "buffer=episode")
    assert signal_of(*given)
    assert not signal_of("ppo", lagging(-0.3, 0.3, raw=(0.0, 0.0)), "buffer=episode")


def test_a_critic_has_no_signal_in_raw_rewards_that_the_transforms_make_equal():
    lost = [
        dataclasses.replace(one, raw_reward=-number) for number, one in enumerate(games(-1, -1))
    ]
    assert not signal_of("ppo", lost, "buffer=episode")


@pytest.mark.parametrize("name", ["mmd", "nash_pg"])
def test_algorithms_with_a_moving_reference_need_no_signal(name):
    assert signal_of(name, games(0.0, 0.0), "buffer=episode")


def test_an_algorithm_of_a_users_may_declare_a_moving_reference():
    class Own(Reinforce):
        moving_reference = True

    assert has_signal(Own(ReinforceConfig(), 8), (), (0.0,))
    assert not has_signal(Reinforce(ReinforceConfig(), 8), (), (0.0, -0.0, 1e-17))
