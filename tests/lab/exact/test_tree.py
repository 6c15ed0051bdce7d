"""Exact measures against OpenSpiel's own, published equilibria and values found by hand."""

import functools
import random

import pyspiel
import pytest
from open_spiel.python import policy as policies
from open_spiel.python.algorithms import exploitability

from rlforge.errors import ConfigError
from rlforge.games.openspiel import action_numbers
from rlforge.lab.exact.tree import ExactGame
from rlforge.league.payoff import nash_equilibrium


def uniform(game):
    return {
        each.key: dict.fromkeys(each.view.legal_actions, 1 / len(each.view.legal_actions))
        for each in game.decisions
    }


@functools.cache
def tree(name):
    return ExactGame(name)


@pytest.mark.parametrize(("name", "count"), [("kuhn_poker", 12), ("leduc_poker", 936)])
def test_all_information_sets_are_listed_once(name, count):
    decisions = tree(name).decisions
    assert len(decisions) == len({each.key for each in decisions}) == count
    assert {each.player for each in decisions} == {0, 1}
    assert all(each.view.player_id == each.player and each.view.board for each in decisions)
    if name == "kuhn_poker":
        assert len({each.view.board for each in decisions}) == 12


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kuhn_poker", 0.916667),
        ("leduc_poker", 4.747222),
        ("kuhn_poker(players=3)", 2.0625),
        ("liars_dice(numdice=1,dice_sides=4)", 1.310119),
        ("goofspiel(imp_info=True,num_cards=3,points_order=descending)", None),
    ],
)
def test_nash_conv_of_uniform_play(name, expected):
    """As published with OpenSpiel; of simultaneous moves as its own Python code finds."""
    game = tree(name)
    if expected is None:
        turns = pyspiel.convert_to_turn_based(pyspiel.load_game(name))
        expected = exploitability.nash_conv(turns, policies.UniformRandomPolicy(turns))
    assert game.exploitability(uniform(game)).nash_conv == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["kuhn_poker", "tiny_hanabi", "dark_hex(board_size=2)"])
def test_values_and_gains_of_random_policies_are_those_of_openspiel(name, seed):
    game, draw = tree(name), random.Random(seed)
    theirs = policies.TabularPolicy(pyspiel.load_game(name))
    table = {}
    for each in game.decisions:
        weights = [draw.random() for _ in each.view.legal_actions]
        table[each.key] = {
            action: weight / sum(weights)
            for action, weight in zip(each.view.legal_actions, weights, strict=True)
        }
    for state in theirs.states:
        key = state.information_state_string()
        row = theirs.action_probability_array[theirs.state_lookup[key]]
        row[:] = 0.0
        for action, number in action_numbers(state, "words").items():
            row[number] = table[key][action]
    found = game.exploitability(table)
    expected = exploitability.nash_conv(
        pyspiel.load_game(name), theirs, return_only_nash_conv=False, use_cpp_br=False
    )
    assert found.nash_conv == pytest.approx(expected.nash_conv, abs=1e-9)
    assert found.gains == pytest.approx(list(expected.player_improvements), abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_nash_conv_is_zero_at_the_equilibria_of_kuhn_poker(alpha):
    # Kuhn (1950): the first player bets J with alpha and K with three times that, and calls with
    # Q after check and bet with alpha + 1/3; the second bets J and calls with Q one time in three.
    likely = {
        "none none": {"J": alpha, "Q": 0.0, "K": 3 * alpha},
        "check bet": {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0},
        "check none": {"J": 1 / 3, "Q": 0.0, "K": 1.0},
        "bet none": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
    }
    policy = {}
    for each in tree("kuhn_poker").decisions:
        _, card, first, second = each.view.board.split()[:4]
        p = likely[f"{first} {second}"][card]
        brave = next(a for a in each.view.legal_actions if a in ("[bet]", "[call]"))
        other = next(a for a in each.view.legal_actions if a not in ("[bet]", "[call]"))
        policy[each.key] = {brave: p, other: 1 - p}
    found = tree("kuhn_poker").exploitability(policy)
    assert found.nash_conv == pytest.approx(0, abs=1e-9)
    assert found.values == pytest.approx((-1 / 18, 1 / 18))


def test_states_without_hidden_parts_are_decisions_however_they_are_reached():
    """TicTacToe has 5,478 positions, 958 of them final; the first player wins 58.5 % at random."""
    game = tree("tic_tac_toe")
    assert len(game.decisions) == 5478 - 958
    found = game.exploitability(uniform(game))
    assert found.values == pytest.approx((0.58492 - 0.28810, 0.28810 - 0.58492), abs=1e-4)
    assert found.values[0] + found.gains[0] == pytest.approx(0.99480, abs=1e-4)


def test_a_perfect_player_cannot_be_exploited():
    game = tree("tic_tac_toe")
    best = {}

    def solve(state):
        if state.is_terminal():
            return state.returns()[0]
        key = f"{state.current_player()}\n{state}"
        if key not in best:
            sign = 1 if state.current_player() == 0 else -1
            numbers = action_numbers(state, "words")
            values = {a: sign * solve(state.child(n)) for a, n in numbers.items()}
            best[key] = max(values, key=values.get), sign * max(values.values())
        return best[key][1]

    assert solve(pyspiel.load_game("tic_tac_toe").new_initial_state()) == 0
    perfect = {each.key: {best[each.key][0]: 1.0} for each in game.decisions}
    found = game.exploitability(perfect)
    assert (found.nash_conv, found.values) == (0.0, (0.0, 0.0))


def test_a_policy_in_numbers_is_as_exploitable_as_in_words():
    found = []
    for actions in ("words", "numbers"):
        game = ExactGame("kuhn_poker", actions=actions)
        table = {
            each.key: dict(zip(each.view.legal_actions, (0.25, 0.75), strict=True))
            for each in game.decisions
        }
        found.append(game.exploitability(table))
    assert found[0] == found[1]


def test_policies_with_holes_or_other_actions_are_refused():
    game = tree("kuhn_poker")
    table = uniform(game)
    with pytest.raises(ValueError, match="no decision '0'"):
        game.exploitability({key: row for key, row in table.items() if key != "0"})
    with pytest.raises(ValueError, match=r"has no actions \['\[raise\]'\]"):
        game.exploitability(table | {"0": {"[raise]": 1.0}})
    with pytest.raises(ValueError, match="do not sum to 1"):
        game.exploitability(table | {"0": {"[bet]": 0.4}})


def test_a_game_that_is_too_large_is_refused_with_its_size():
    message = r"'connect_four' has more than 2,000 states.*exploit RUN --learn"
    with pytest.raises(ConfigError, match=message):
        ExactGame("connect_four", most_states=2000)


def drawn(game, rng):
    """A policy with random probabilities, some of them 0."""
    table = {}
    for each in game.decisions:
        actions = each.view.legal_actions
        numbers = [max(0.0, rng.gauss(0.3, 1.0)) for _ in actions]
        total = sum(numbers)
        row = [n / total for n in numbers] if total else [1 / len(actions)] * len(actions)
        table[each.key] = dict(zip(actions, row, strict=True))
    return table


@pytest.mark.parametrize("name", ["kuhn_poker", "liars_dice(numdice=1,dice_sides=3)"])
def test_a_mixture_earns_what_its_policies_earn_in_the_mean(name):
    """Against any opponent, as Kuhn 1953 proves of games with perfect recall."""
    game, rng = tree(name), random.Random(3)
    weights = [0.5, 0.3, 0.2]
    policies = [drawn(game, rng) for _ in weights]
    mixed = game.mixture(policies, weights)
    for opponent in (drawn(game, rng) for _ in range(5)):
        payoffs = game.payoffs([*policies, opponent, mixed])
        expected = sum(w * payoffs[i, 3] for i, w in enumerate(weights))
        assert payoffs[4, 3] == pytest.approx(expected, abs=1e-9)
        assert payoffs == pytest.approx(-payoffs.T, abs=1e-12)


def test_the_equilibrium_between_pure_policies_of_a_cycle_cannot_be_exploited():
    game = tree("matrix_rps")
    first = game.decisions[0].view.legal_actions
    pure = [
        {each.key: {each.view.legal_actions[chosen]: 1.0} for each in game.decisions}
        for chosen in range(len(first))
    ]
    assert [game.exploitability(one).nash_conv for one in pure] == [2.0, 2.0, 2.0]
    weights = nash_equilibrium(game.payoffs(pure))
    assert game.exploitability(game.mixture(pure, weights)).nash_conv == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["kuhn_poker(players=3)", "tic_tac_toe", "tiny_hanabi"])
def test_mixtures_are_refused_where_the_matrix_says_nothing(name):
    with pytest.raises(ConfigError, match="of two players whose rewards sum to 0"):
        tree(name).check_mixed()
