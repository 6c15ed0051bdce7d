"""Searches with OpenSpiel: how well they play, and which games they refuse."""

import dataclasses
import inspect
import json
import random
import subprocess
import sys

import pyspiel
import pytest
from open_spiel.python.algorithms import minimax
from tests.factories import scripted_game, spiel

from rlforge.errors import ConfigError
from rlforge.games import tree_search
from rlforge.games.grids import placements, winning_cells
from rlforge.games.openspiel import OpenSpielGame, action_numbers, state_after
from rlforge.games.players import check_player, make_player
from rlforge.games.registry import make_game
from rlforge.games.tree_search import exact_actions
from rlforge.types import EnvSpec

TTT = EnvSpec(id="TicTacToe-v0-train")
TAK = EnvSpec(id="SimpleTak-v0-train")
FOUR = EnvSpec(id="ConnectFour-v0-train")


def reward(env, names, seed):
    """The reward of player 0 in one game."""
    return scripted_game(env, names, seed).result().rewards[0]


def mean_reward(env: EnvSpec, name: str, opponent: str, games: int) -> float:
    """The reward of ``name``, half of the games from each seat; those of a game sum to 0."""
    first = [reward(env, [name, opponent], seed) for seed in range(games // 2)]
    second = [-reward(env, [opponent, name], seed) for seed in range(games // 2)]
    return sum(first + second) / games


@pytest.mark.parametrize(
    ("env", "least"),
    [
        (FOUR, 0.9),
        (spiel("connect_four"), 0.9),
        (spiel("connect_four(rows=4,columns=4,x_in_row=3)"), 0.6),
        (spiel("breakthrough(rows=4,columns=4)"), 0.8),
        (TAK, 0.5),
        (TTT, 0.6),
        (spiel("pig(horizon=60,winscore=15)"), 0.2),
    ],
    ids=lambda value: value.id if isinstance(value, EnvSpec) else "",
)
def test_mcts_beats_random_players(env, least):
    assert mean_reward(env, "mcts:60", "random_legal", 10) >= least


def test_mcts_with_more_simulations_is_stronger():
    assert mean_reward(spiel("connect_four"), "mcts:300", "mcts:10", 10) > 0.3


@pytest.mark.parametrize(
    ("name", "games", "least"), [("kuhn_poker", 120, 0.0), ("leduc_poker", 60, 0.2)]
)
def test_mcts_wins_chips_from_random_players_at_poker(name, games, least):
    assert mean_reward(spiel(name), "mcts:40", "random_legal", games) > least


def test_mcts_does_not_see_hidden_cards():
    """It acts alike in all worlds that it cannot tell apart."""
    env = spiel("kuhn_poker")
    view = make_game(env, 0).view()
    acts: dict[int, list[str]] = {}
    for card in (0, 2):
        # The player holds the queen, the opponent the jack or the king.
        dealt = dataclasses.replace(view, history=(1, card))
        acts[card] = [make_player("mcts:60", env, seed).act(dealt) for seed in range(10)]
    assert acts[0] == acts[2]


@pytest.mark.parametrize("env", [TTT, TAK, FOUR], ids=lambda env: env.id)
def test_mcts_takes_a_win_from_either_seat_of_a_textarena_game(env):
    rng = random.Random(2)
    wins = {0: 0, 1: 0}
    for seed in range(16):
        game = make_game(env, seed)
        while not game.done:
            view = game.view()
            assert view.grid is not None
            assert view.history is None
            winning = winning_cells(view.grid, view.grid.me)
            choices = placements(view.grid)
            if any(winning >> cell & 1 for cell in choices.values()):
                action = make_player("mcts:100", env, seed).act(view)
                assert winning >> choices[action] & 1
                wins[view.player_id] += 1
            else:
                action = rng.choice(list(choices))
            game.step(action)
    assert min(wins.values()) >= 2


def choices(games):
    """What eight searches of each game choose, by seed."""
    from rlforge.games.players import make_player
    from rlforge.games.registry import make_game
    from rlforge.types import EnvSpec

    found = []
    for source, name in games:
        env = EnvSpec(id=name, source=source)
        view = make_game(env, 3).view()
        found.append([make_player("mcts:30", env, seed).act(view) for seed in range(8)])
    return found


def test_choices_follow_from_the_seed_in_every_process():
    games = [
        ("openspiel", "leduc_poker"),
        ("openspiel", "breakthrough"),
        ("textarena", "SimpleTak-v0-train"),
        ("textarena", "ConnectFour-v0-train"),
    ]
    code = f"{inspect.getsource(choices)}\nimport json\nprint(json.dumps(choices({games})))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    here = choices(games)
    assert json.loads(there.stdout) == here
    assert all(len(set(chosen)) > 1 for chosen in here)


@pytest.mark.parametrize(
    "name", ["nim(pile_sizes=2;3;4)", "hex(board_size=3)", "dots_and_boxes(num_rows=1,num_cols=2)"]
)
def test_exact_actions_keep_the_value_of_openspiels_own_search(name):
    env, rng = spiel(name), random.Random(1)
    for _ in range(4):
        game = OpenSpielGame(env, 0)
        for _ in range(4):
            game.step(rng.choice(game.view().legal_actions or ()))
        if game.done:
            continue
        view = game.view()
        state = state_after(name, view.history or ())
        numbers = action_numbers(state, "words")

        def value(after: pyspiel.State, player: int = view.player_id) -> float:
            found, _ = minimax.alpha_beta_search(
                after.get_game(), state=after, maximizing_player_id=player
            )
            return float(found)

        kept = {
            token for token, number in numbers.items() if value(state.child(number)) == value(state)
        }
        assert set(exact_actions(env, view)) <= kept


def test_exact_actions_maximise_the_expected_utility_where_there_is_chance():
    env = spiel("pig(horizon=8,winscore=6,diceoutcomes=3)")
    view = OpenSpielGame(env, 0).view()

    def value(state: pyspiel.State) -> float:
        if state.is_terminal():
            return float(state.returns()[0])
        if state.is_chance_node():
            return sum(chance * value(state.child(a)) for a, chance in state.chance_outcomes())
        children = [value(state.child(action)) for action in state.legal_actions()]
        return max(children) if state.current_player() == 0 else min(children)

    state = state_after(env.id, view.history or ())
    values = {token: value(state.child(n)) for token, n in action_numbers(state, "words").items()}
    best = max(values.values())
    assert exact_actions(env, view) == [t for t, v in values.items() if v == pytest.approx(best)]


def test_minimax_never_loses_a_won_game_of_nim():
    assert mean_reward(spiel("nim"), "minimax", "minimax", 4) == 0
    first = [reward(spiel("nim(pile_sizes=1;2;4)"), ["minimax", "mcts:50"], s) for s in range(6)]
    assert first == [1.0] * 6


@pytest.mark.parametrize(
    ("name", "env", "message"),
    [
        ("mcts:9", spiel("liars_dice"), "would cheat.*cannot draw the hidden part"),
        ("mcts:9", spiel("goofspiel"), "would cheat"),
        ("mcts:9", spiel("cliff_walking", 1), "rewards at the end only"),
        ("minimax", spiel("chess"), "too large to solve: 4,674 actions.*use mcts:200"),
        ("minimax", spiel("kuhn_poker"), "perfect information only; use mcts:200"),
    ],
)
def test_games_that_cannot_be_searched_are_refused_with_the_reason(name, env, message):
    with pytest.raises(ConfigError, match=f"player '{name}' cannot play .*{message}"):
        check_player(name, env)


def test_a_game_of_more_positions_than_are_solved_is_refused(monkeypatch):
    monkeypatch.setattr(tree_search, "MOST_POSITIONS", 100)
    with pytest.raises(ConfigError, match="it has more than 100 positions to solve; use mcts:200"):
        check_player("minimax", spiel("y(board_size=3)"))


def test_a_connect_four_of_other_lines_is_no_grid():
    assert make_game(spiel("connect_four(x_in_row=3)"), 0).view().grid is None
    assert make_game(spiel("connect_four(rows=5)"), 0).view().grid is not None
