import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from rlforge.league.payoff import Results, ResultTable, alpha_rank, nash_equilibrium

ROCK_PAPER_SCISSORS = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def antisymmetric(most: int):
    """Payoff matrices of up to ``most`` strategies, many of whose entries are 0."""
    entries = st.one_of(st.just(0.0), st.sampled_from([-1.0, 0.5, 1.0]), st.floats(-1, 1, width=16))
    square = st.integers(1, most).flatmap(
        lambda size: arrays(float, (size, size), elements=entries)
    )
    return square.map(lambda matrix: np.triu(matrix, 1) - np.triu(matrix, 1).T)


# ---------------------------------------------------------------- results


def test_a_pair_has_the_same_games_from_both_sides():
    table = ResultTable()
    for reward in (1, 1, 0, -1):
        table.record([("a", reward), ("b", -reward)])
    assert table.between("a", "b") == Results(wins=2, draws=1, losses=1)
    assert table.between("b", "a") == Results(wins=1, draws=1, losses=2)
    assert table.between("a", "c") == Results()
    assert table.rows() == {"a": {"b": [2, 1, 1]}, "b": {"a": [1, 1, 2]}}
    table, again = ResultTable(), ResultTable()
    table.record([("a", 1), ("b", -1)])
    again.load_rows(table.rows())
    again.record([("a", 1), ("b", -1)])
    assert (again.between("a", "b").wins, table.between("a", "b").wins) == (2, 1)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_what_one_wins_the_other_loses(wins, draws, losses):
    one = Results(wins=wins, draws=draws, losses=losses)
    other = Results(wins=losses, draws=draws, losses=wins)
    assert one.win_probability + other.win_probability == pytest.approx(1)
    assert one.payoff == -other.payoff == pytest.approx(2 * one.win_probability - 1)
    assert 0 < one.win_probability < 1


def test_games_of_many_rank_each_pair_by_the_mean_of_its_seats():
    table = ResultTable()
    table.record([("a", 1.0), ("b", 0.0), ("b", 2.0), ("c", -1.0)])
    assert table.rows() == {
        "a": {"b": [0, 1, 0], "c": [1, 0, 0]},
        "b": {"a": [0, 1, 0], "c": [1, 0, 0]},
        "c": {"a": [0, 0, 1], "b": [0, 0, 1]},
    }
    table.record([("a", 1.0), ("a", -1.0)])  # self-play is no result
    assert "a" not in table.rows()["a"]


def test_payoff_vectors_are_over_all_opponents_of_any_of_them():
    table = ResultTable()
    table.record([("a", 1), ("x", -1)])
    table.record([("b", 0), ("y", 0)])
    table.record([("b", -1), ("z", 1)])
    assert table.payoff_vectors(["a", "b", "c"]).tolist() == [
        [pytest.approx(1 / 3), 0, 0],
        [0, 0, pytest.approx(-1 / 3)],
        [0, 0, 0],
    ]
    assert ResultTable().payoff_vectors(["a", "b"]).shape == (2, 0)


# ---------------------------------------------------------------- Nash equilibria


@pytest.mark.parametrize(
    ("payoffs", "expected"),
    [
        (ROCK_PAPER_SCISSORS, [1 / 3, 1 / 3, 1 / 3]),
        ([[0]], [1]),
        (np.zeros((4, 4)), [0.25] * 4),
        ([[0, 0.2, 0.4], [-0.2, 0, 0.9], [-0.4, -0.9, 0]], [1, 0, 0]),
        # Rock, paper, scissors with different stakes: the shares are those of the opposite games.
        ([[0, -0.2, 0.3], [0.2, 0, -0.5], [-0.3, 0.5, 0]], [0.5, 0.3, 0.2]),
        # The same three, and one that loses to all of them.
        (
            np.block([[ROCK_PAPER_SCISSORS, np.ones((3, 1))], [-np.ones((1, 3)), 0]]),
            [1 / 3] * 3 + [0],
        ),
        # Two equal strategies share.
        ([[0, 0, 1], [0, 0, 1], [-1, -1, 0]], [0.5, 0.5, 0]),
    ],
)
def test_nash_equilibria_by_hand(payoffs, expected):
    assert nash_equilibrium(payoffs) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(antisymmetric(8))
def test_no_strategy_beats_the_nash_equilibrium(payoffs):
    shares = np.array(nash_equilibrium(payoffs))
    assert shares.sum() == pytest.approx(1)
    assert (shares >= 0).all()
    assert (shares @ payoffs).min() > -1e-7


@settings(deadline=None, max_examples=40)
@given(antisymmetric(6))
def test_of_all_nash_equilibria_it_is_the_nearest_to_uniform(payoffs):
    """x is the point of least norm of a convex set where no point y of the set has y·x < x·x."""
    shares, size = np.array(nash_equilibrium(payoffs)), len(payoffs)
    other = linprog(shares, A_ub=-payoffs.T, b_ub=np.zeros(size), A_eq=np.ones((1, size)), b_eq=[1])
    assert other.fun > shares @ shares - 1e-6


@settings(deadline=None, max_examples=40)
@given(antisymmetric(6), st.sampled_from([1e-4, 1.0, 1e4]))
def test_copies_share_the_weight_of_a_strategy_in_any_unit_of_payoffs(payoffs, unit):
    shares = np.array(nash_equilibrium(payoffs))
    doubled = nash_equilibrium(unit * np.tile(payoffs, (2, 2)))
    np.testing.assert_allclose(doubled, np.tile(shares / 2, 2), atol=1e-6)


@settings(deadline=None, max_examples=30)
@given(antisymmetric(6), st.randoms(use_true_random=False))
@pytest.mark.parametrize("strategy", [nash_equilibrium, lambda matrix: alpha_rank(matrix, 1.0)])
def test_meta_strategies_do_not_depend_on_the_order(strategy, payoffs, random):
    order = list(range(len(payoffs)))
    random.shuffle(order)
    shuffled = strategy(payoffs[np.ix_(order, order)])
    assert shuffled == pytest.approx([strategy(payoffs)[index] for index in order], abs=1e-6)


# ---------------------------------------------------------------- alpha-rank


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0, 3.0])
def test_alpha_rank_is_that_of_openspiel(alpha):
    from open_spiel.python.egt import alpharank

    random = np.random.default_rng(0)
    for size in (2, 3, 5, 8):
        upper = np.triu(random.uniform(-1, 1, (size, size)).round(1), 1)
        payoffs = upper - upper.T
        *_, expected, _, _ = alpharank.compute([payoffs], m=50, alpha=alpha)
        assert alpha_rank(payoffs, alpha) == pytest.approx(expected, abs=1e-7)


def test_alpha_rank_by_hand():
    assert alpha_rank(ROCK_PAPER_SCISSORS, 1.0) == pytest.approx([1 / 3] * 3)
    assert alpha_rank([[0]], 1.0) == [1.0]
    # Two strategies: each is left at the rate at which the other one fixes.
    u, m = 2 * 0.1 * 0.5, 50
    rates = [(1 - np.exp(-sign * u)) / (1 - np.exp(-sign * m * u)) for sign in (1, -1)]
    shares = [rates[0] / sum(rates), rates[1] / sum(rates)]
    assert alpha_rank([[0, 0.5], [-0.5, 0]], 0.1) == pytest.approx(shares)


@settings(deadline=None, max_examples=60)
@given(antisymmetric(8), st.floats(1e-6, 1e6))
def test_alpha_rank_is_a_distribution_at_any_intensity(payoffs, alpha):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shares = alpha_rank(payoffs, alpha)
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= 0


@pytest.mark.parametrize("scale", [1, 0.1])
@pytest.mark.parametrize("strategy", [nash_equilibrium, lambda matrix: alpha_rank(matrix, 100.0)])
def test_a_strategy_that_beats_all_others_is_played_alone(strategy, scale):
    payoffs = scale * np.array([[0, 1, 1], [-1, 0, 1], [-1, -1, 0]])
    assert strategy(payoffs) == pytest.approx([1, 0, 0])
