"""What players read about OpenSpiel games, against how these games go."""

import itertools
import random
import re

import pyspiel
import pytest
from tests.factories import random_views, spiel

from rlforge.games.openspiel import OpenSpielGame
from rlforge.games.openspiel_rules import introduction

GAMES = {
    "kuhn_poker(players=3)": 3,
    "hearts": 4,
    "tiny_bridge_4p": 4,
    "tiny_hanabi": 2,
    "catch": 1,
    "matrix_pd": 2,
    "goofspiel(num_cards=4,returns_type=point_difference)": 2,
    "liars_dice": 2,
    "pig(winscore=10)": 2,
}


def new(name, seed=0, players=2):
    return OpenSpielGame(spiel(name, players), seed)


def told(name):
    return introduction(name)[1]


def path(name, *actions):
    """The state of OpenSpiel after actions by its own names; chance takes them, too."""
    state = pyspiel.load_game(name).new_initial_state()
    for action in actions:
        player = state.current_player()
        known = {state.action_to_string(player, each): each for each in state.legal_actions()}
        state.apply_action(known[action])
    return state


def random_states(name, games):
    """Of random games all states in which a player moves, each with its action and the next."""
    for seed in range(games):
        draw = random.Random(seed)
        state = pyspiel.load_game(name).new_initial_state()
        while not state.is_terminal():
            action = draw.choice(state.legal_actions())
            after = state.child(action)
            if not state.is_chance_node():
                yield state, state.action_to_string(state.current_player(), action), after
            state = after


def winner(state):
    first, second = state.returns()
    return None if first == second else int(second > first)


@pytest.mark.parametrize("name", GAMES)
def test_a_player_reads_title_points_and_notation_of_any_game_before_the_state(name):
    game = new(name, players=GAMES[name])
    title, text = introduction(str(pyspiel.load_game(name)))
    first, *others = game.view().observation.split("\n\n")
    assert first.startswith(f"You are player {game.view().player_id} of {GAMES[name]} in {title}.")
    assert "You end the game with " in first
    assert "An action is written in square brackets" in first
    assert text.splitlines()[-1] in first
    assert others[-1].startswith("Your available actions are: [")


@pytest.mark.parametrize("name", GAMES)
def test_the_points_of_finished_games_are_as_a_player_reads(name):
    for seed in range(30):
        game = new(name, seed, GAMES[name])
        [text, *_] = [view.observation for view in random_views(game, seed)]
        said = re.search(r"You end the game with (\S+) to (\S+) points(.*)\.", text)
        low, high, who = said.groups()
        points = [*game.result().rewards.values()]
        assert all(float(low) <= each <= float(high) for each in points)
        if "opponent loses" in who or "add up to 0" in who:
            assert sum(points) == pytest.approx(0)
        if "all players have the same" in who:
            assert len({*points}) == 1


def test_actions_that_are_numbers_are_listed_with_what_they_mean():
    game = new("goofspiel")
    assert "are: [0] (P0 Bid: 1), [1] (P0 Bid: 2), " in game.view().observation
    game.step("[2]")
    assert "(P0 Bid: 3)" not in game.view().observation
    game.step("[5]")
    assert "(P0 Bid: 3)" not in game.view().observation
    assert "P0 hand: 1 2 4 5 " in game.view().observation
    assert "[0] (0,0,10), " in new("blotto").view().observation
    assert new("tic_tac_toe").view().observation.endswith(" [7], [8]")


def test_the_payoffs_of_a_matrix_game_are_told():
    assert "Cooperate and Defect 0 and 10" in new("matrix_pd").view().observation
    game = new("matrix_pd")
    game.step("[Cooperate]")
    assert "Cooperate and Defect 0 and 10" in game.view().observation
    game.step("[Defect]")
    assert game.result().rewards == {0: 0.0, 1: 10.0}


def test_simultaneous_choices_are_announced():
    assert "All players choose before any choice is shown." in new("matrix_rps").view().observation
    assert "before any choice" not in told("hex")
    assert introduction("turn_based_simultaneous_game(game=goofspiel())")[0] == "Goofspiel"


@pytest.mark.parametrize("rule", ["reset-face", "reset-quantity"])
def test_bids_of_liars_dice(rule):
    """Which bids are higher, and that dice with the highest face count as any face."""
    assert "dice with the highest face count as any face" in told("liars_dice")
    for one, two, bid in itertools.product(range(1, 7), range(1, 7), ("1-2", "2-5", "1-6", "2-6")):
        state = path(f"liars_dice(bidding_rule={rule})")
        for die in (one, two):
            state.apply_action(die - 1)
        for wanted in (bid, "Liar"):
            options = {state.action_to_string(each): each for each in state.legal_actions()}
            state.apply_action(options[wanted])
            if wanted == bid and wanted != "2-6":
                higher = {each for each in options if higher_bid(rule, bid, each)}
                now = {state.action_to_string(each) for each in state.legal_actions()}
                assert now == higher | {"Liar"}
        number, face = map(int, bid.split("-"))
        true = sum(die in (face, 6) for die in (one, two)) >= number
        assert winner(state) == (0 if true else 1)


def higher_bid(rule, bid, other):
    (number, face), (more, above) = (map(int, each.split("-")) for each in (bid, other))
    if rule == "reset-face":
        return more > number or (more == number and above > face)
    return above > face or (above == face and more > number)


def test_rounds_of_goofspiel():
    assert "after a tie, -3 in the win sequence, they are lost" in told("goofspiel")
    for seed in range(40):
        game, draw = new("goofspiel(num_cards=5)", seed), random.Random(seed)
        totals, left, played = [0, 0], [{*range(1, 6)}, {*range(1, 6)}], 0
        cards = {*range(1, 6)}
        while not game.done:
            seen = game.view().observation
            sequence = re.search(r"Point card sequence: ([\d ]+)", seen).group(1).split()
            bids = []
            for player in (0, 1):
                action = draw.choice(game.view().legal_actions)
                bid = int(action.strip("[]")) + 1
                assert f"{action} (P{player} Bid: {bid})" in game.view().observation
                bids.append(bid)
                left[player].remove(bid)
                game.step(action)
            if bids[0] != bids[1]:
                totals[bids[1] > bids[0]] += int(sequence[-1])
            cards.remove(int(sequence[-1]))
            played += 1
        assert played == 4
        [[one], [two], [card]] = [*left, cards]
        if one != two:
            totals[two > one] += card
        sign = (totals[0] > totals[1]) - (totals[0] < totals[1])
        assert game.result().rewards == {0: sign, 1: -sign}


def test_pieces_of_breakthrough():
    for name in ("breakthrough(columns=3,rows=6)", "breakthrough"):
        rows = 6 if "rows=6" in name else 8
        for state, action, after in random_states(name, 40):
            player = state.current_player()
            start, goal = (action[0], int(action[1])), (action[2], int(action[3]))
            assert goal[1] - start[1] == (-1, 1)[player]
            assert abs(ord(goal[0]) - ord(start[0])) <= 1
            board = str(state).splitlines()
            target = board[rows - goal[1]][1 + ord(goal[0]) - ord("a")]
            assert board[rows - start[1]][1 + ord(start[0]) - ord("a")] == "bw"[player]
            assert target == ("wb"[player] if action.endswith("*") else ".")
            assert not (action.endswith("*") and goal[0] == start[0])
            left = "".join(line[1:] for line in str(after).splitlines()[:rows])
            won = goal[1] == (1, rows)[player] or "wb"[player] not in left
            assert after.is_terminal() == won
            assert not won or winner(after) == player


def connected(cells, begin, end):
    """Whether cells (column, row) link a cell of ``begin`` to one of ``end``, as is told."""
    assert "the one above to the right and the one below to the left" in told("hex")
    found, edge = set(), [cell for cell in cells if cell in begin]
    while edge:
        column, row = cell = edge.pop()
        found.add(cell)
        steps = ((-1, 0), (1, 0), (0, -1), (0, 1), (1, -1), (-1, 1))
        around = [(column + right, row + down) for right, down in steps]
        edge += [near for near in around if near in cells and near not in found]
    return bool(found & {*end}), found


def test_chains_of_hex():
    size = range(4)
    for player, mine, after in random_chains("hex(board_size=4)"):
        sides = [{(i, 0) for i in size}, {(i, 3) for i in size}]
        if player == 1:
            sides = [{(0, i) for i in size}, {(3, i) for i in size}]
        won, _ = connected(mine, *sides)
        assert after.is_terminal() == won
        assert not won or winner(after) == player


def test_chains_of_y():
    size = range(5)
    sides = [{(i, 0) for i in size}, {(0, i) for i in size}, {(i, 4 - i) for i in size}]
    for player, mine, after in random_chains("y(board_size=5)"):
        won = False
        for cell in mine:
            _, chain = connected(mine, {cell}, ())
            won |= all(chain & side for side in sides)
        assert after.is_terminal() == won
        assert not won or winner(after) == player


def random_chains(name):
    stones = [set(), set()]
    for state, action, after in random_states(name, 60):
        if not state.history():
            stones = [set(), set()]
        player = state.current_player()
        stones[player].add((ord(action[0]) - ord("a"), int(action[1:]) - 1))
        yield player, stones[player], after


def test_the_swap_of_hex():
    assert "[swap]" in told("hex(swap=True)")
    assert "[swap]" not in told("hex")
    rows = str(path("hex(board_size=3,swap=True)", "b1", "swap")).splitlines()
    assert rows[1].split()[0] == "o"
    assert "x" not in "".join(rows)


@pytest.mark.parametrize("loses", [True, False])
def test_the_last_object_of_nim(loses):
    name = f"nim(is_misere={loses})"
    assert ("last object loses" if loses else "last object wins") in told(name)
    for state, action, after in random_states(name, 20):
        pile, taken = map(int, re.findall(r"\d+", action))
        before, now = ([*map(int, str(each).split()[1:])] for each in (state, after))
        before[pile - 1] -= taken
        assert before == now
        assert after.is_terminal() == (sum(now) == 0)
        if after.is_terminal():
            assert (winner(after) == state.current_player()) != loses


def test_the_end_of_othello():
    passed = 0
    for state, action, after in random_states("othello", 30):
        passed += action == "pass"
        assert action != "pass" or len(state.legal_actions()) == 1
        if after.is_terminal():
            more = str(after).count(" x") - str(after).count(" o")
            assert winner(after) == (None if more == 0 else int(more < 0))
    assert passed > 0


def test_turns_of_pig():
    state = path("pig(winscore=8)", "roll", "Roll 6", "roll", "Roll 2")
    assert "Turn total: 8" in str(state)
    assert not state.is_terminal()
    state.apply_action(
        next(a for a in state.legal_actions() if state.action_to_string(a) == "stop")
    )
    assert winner(state) == 0
    lost = path("pig", "roll", "Roll 6", "roll", "Roll 1")
    assert "Scores: 0 0, Turn total: 0" in str(lost)
    assert lost.current_player() == 1
    assert "adds 1 to the turn total, or, one time in 6" in told("pig(piglet=True)")
    chance = path("pig(piglet=True)", "roll")
    assert [likely for _, likely in chance.chance_outcomes()] == pytest.approx([1 / 6, 5 / 6])
    assert "Turn total: 1" in str(path("pig(piglet=True)", "roll", "Roll 1"))
    assert path("pig(piglet=True)", "roll", "Roll 0").current_player() == 1


@pytest.mark.parametrize(
    ("name", "cells"), [("dark_hex", ("a1", "a1")), ("phantom_ttt", ("x(0,0)", "o(0,0)"))]
)
@pytest.mark.parametrize("again", [True, False])
def test_an_occupied_cell_of_a_hidden_board(name, cells, again):
    version = {"dark_hex": ("adh", "cdh"), "phantom_ttt": ("abrupt", "classical")}[name][again]
    game = f"{name}(gameversion={version})"
    assert ("you choose again" if again else "your turn is over") in told(game)
    state = path(game, *cells)
    assert state.current_player() == (1 if again else 0)
    first, _, _, *below = state.information_state_string(1).splitlines()
    assert first == "x.."
    assert " ".join(below).split() == (["2", "1,0"] if name == "dark_hex" else ["1,0"])


def test_rules_follow_the_parameters_of_a_game():
    assert "one of 5 columns" in told("connect_four(columns=5)")
    assert "3 stones in a line win" in told("connect_four(x_in_row=3)")
    assert "sides, 2 per player" in told("liars_dice(numdice=2)")
    assert "point cards from 1 to 4, " in told("goofspiel(num_cards=4)")
    assert "the highest first" in told("goofspiel(points_order=descending)")
    assert "you only see who won" in told("goofspiel(imp_info=True)")
    assert "most points" not in told("goofspiel(returns_type=total_points)")
    assert "a score of 20 wins" in told("pig(winscore=20)")
